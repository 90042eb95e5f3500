"""The settings of the traces that the gateway exports. Shares are fractions of 1."""

import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, WithJsonSchema

from gateway.config.request_values import HeaderValue, header_name
from gateway.config.section import Section
from gateway.config.values import Share, invalid_value

_PATH = "/v1/traces"
_GRPC_PORT = 4317
_EXAMPLE = "for example http://otel-collector:4318"
_OWN_HEADERS = frozenset(["connection", "content-encoding", "content-length", "content-type", "host"])


def _endpoint(value: str) -> str:
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError:
        raise invalid_value("it is not a URL", _EXAMPLE) from None
    if not re.fullmatch(r"[!-~]+", value) or url.scheme not in ("http", "https") or not url.hostname:
        raise invalid_value("an endpoint must be http:// or https:// with a host", _EXAMPLE)
    if "@" in url.netloc:
        raise invalid_value("a URL with a user or password would appear in logs", "the login in headers")
    if url.query or url.fragment or value.endswith(("?", "#")):
        raise invalid_value("an endpoint must not contain ? or #", "the part before it, and a key in headers")
    if port == _GRPC_PORT:
        raise invalid_value("4317 is the port of OTLP over gRPC", value.replace(":4317", ":4318", 1))
    return value.rstrip("/")


def _export_header(value: str) -> str:
    name = header_name(value)
    if name in _OWN_HEADERS:
        raise invalid_value("the gateway sets this header itself; remove it")
    return name


Endpoint = Annotated[
    str,
    AfterValidator(_endpoint),
    WithJsonSchema({"type": "string", "pattern": r"^(https?://.+)$|\$\{", "examples": ["http://otel-collector:4318"]}),
]
"""Base URL of a receiver of OTLP over HTTP, without a trailing slash."""
ExportHeader = Annotated[str, AfterValidator(_export_header)]


class TracingSettings(Section):
    """Traces of requests, exported with OTLP over HTTP."""

    endpoint: Endpoint = Field(examples=["http://otel-collector:4318"])
    """Base URL of the receiver; the gateway adds `/v1/traces`."""
    sample: Share = 0.10
    """Share of the requests that are traced, where the caller has not decided."""
    headers: Mapping[ExportHeader, HeaderValue] = Field(
        default={}, max_length=20, examples=["{authorization: 'Bearer ${TRACES_TOKEN}'}"]
    )
    """Headers of each export, such as a login."""

    @property
    def url(self) -> str:
        """The URL that traces are sent to."""
        return self.endpoint if self.endpoint.endswith(_PATH) else self.endpoint + _PATH
