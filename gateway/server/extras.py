"""Finds packages that settings need and that are not installed. Part of the composition root. No units."""

from importlib.util import find_spec

from gateway.config.settings import Settings
from gateway.server.credentials.board import token_sources
from ttft_gateway.credentials.sources import package_fault


def missing_extra(settings: Settings) -> str | None:
    """Return the error if the settings need a package that is not installed; otherwise None."""
    if settings.share is not None and not _is_installed("redis"):
        return "`share` needs redis-py, which is not installed; run `pip install 'redis>=8.1'`"
    if settings.tracing is not None and not _is_installed("opentelemetry.proto.trace"):
        return "`tracing` needs opentelemetry-proto, which is not installed; install the project with its extra `otel`"
    faults = (package_fault(source.name) for source in token_sources(settings))
    return next((fault for fault in faults if fault is not None), None)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package around it is missing
        return False
