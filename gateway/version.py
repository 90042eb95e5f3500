"""Version of the installed distribution.

A separate module, so that `ttft-gateway version` loads nothing else. No units.
"""

from importlib.metadata import PackageNotFoundError, version


def gateway_version() -> str:
    """Return the version of the distribution; "0.0.0" if none is installed."""
    try:
        return version("ttft-gateway")
    except PackageNotFoundError:
        return "0.0.0"
