"""The head of a request: its fields, the heads that are rejected, Azure's paths and WebSocket handshakes.

A head is rejected if it is too large or late, if two servers could read it differently, or if its version or coding is
not supported. Independent of connections and exchanges. Units: bytes.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import httptools
import msgspec

from gateway.errors import BadRequest, LoopDetected
from ttft_gateway.apis.base import HOPS, Api, Headers
from ttft_gateway.requests.headers import hops

_BODIES: Final = (b"content-length", b"transfer-encoding")
_SINGLE: Final = (b"host", b"authorization", b"x-api-key", b"api-key")
AZURE_APIS: Final = {"chat/completions": Api.CHAT, "completions": Api.COMPLETIONS, "embeddings": Api.EMBEDDINGS}
_HOPS_MAX: Final = 4  # gateways before this one: a sidecar, a team's, a company's, and one to spare
_deployment = re.compile(rf"/openai/deployments/([^/].*?)/({'|'.join(AZURE_APIS)})").fullmatch


class RequestHead(msgspec.Struct, gc=False):
    """The head of a request; never changed.

    Attributes:
        method: method as sent.
        target: target as sent.
        version: "1.1" or "1.0".
        headers: headers, with names in lower case.
        by_name: the same; of a repeated header, the last one.
        keep_alive: True if another request may follow on the connection.
        expects_continue: True if the client waits for a 100 before it sends the body.
    """

    method: str
    target: bytes
    version: str
    headers: Headers
    by_name: Mapping[bytes, bytes]
    keep_alive: bool = True
    expects_continue: bool = False
    _path: str | None = None  # once it has been read

    @property
    def path(self) -> str:
        """Path of the target, without escapes; raises an error of httptools for a target that is none."""
        if self._path is None:
            path = httptools.parse_url(self.target).path.decode("ascii")
            self._path = unquote(path) if "%" in path else path
        return self._path


class HeadersTooLarge(BadRequest):
    """The request line and headers are over the limit."""

    status = 431
    code = "headers_too_large"


class TargetTooLong(BadRequest):
    """The path and query of the request are over the limit."""

    status = 414
    code = "uri_too_long"


class SlowHeaders(BadRequest):
    """The request line and headers arrived too late."""

    status = 408
    kind = "timeout_error"
    code = "request_timeout"


def too_large(bytes_max: int) -> HeadersTooLarge:
    """Return the error for headers or trailers over a limit."""
    return HeadersTooLarge(f"the request's headers are over {bytes_max} bytes; send fewer or shorter headers")


def field_bytes(fields: Headers) -> int:
    """Return the size of headers or trailers, with the four bytes around each name and value."""
    return sum(len(name) + len(value) + 4 for name, value in fields)


def head_without_upgrade(method: bytes, target: bytes, version: str, headers: Headers) -> bytes:
    """Return the bytes of a head without its `Upgrade`, empty for a request without a body.

    The gateway ignores upgrades (RFC 9110, 7.8), but the parser takes what follows such a head for another protocol,
    and skips the body. Java's HTTP client and `curl --http2` request HTTP/2 with each first request, even with a POST.
    """
    if not any(name in _BODIES and value != b"0" for name, value in headers):
        return b""
    lines = [b"%b %b HTTP/%b" % (method, target, version.encode())]
    lines += (b"%b: %b" % header for header in headers if header[0] != b"upgrade")
    return b"\r\n".join([*lines, b"", b""])


def head_error(version: str, headers: Headers, by_name: Mapping[bytes, bytes]) -> BadRequest | None:
    """Return the error for a head that is not served, None if there is none.

    RFC 9112 requires one `Host` in HTTP/1.1 (3.2), and rejects a coding other than `chunked` (6.1), of which the parser
    sees only the last one. Of two keys, a proxy could check one and the gateway the other.

    Args:
        version: version of HTTP.
        headers: the headers, with names in lower case.
        by_name: the same; of a repeated header, the last one.
    """
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if version not in ("1.1", "1.0") or (codings and (codings != [b"chunked"] or version == "1.0")):
        message = "the request is neither HTTP/1.1 nor HTTP/1.0, or has another transfer coding than `chunked` once"
        return BadRequest(f"{message}; send HTTP/1.1 with a length or chunks", code="invalid_http")
    names = [name for name, _ in headers]
    for single in _SINGLE:
        if names.count(single) > 1:
            name = single.decode()
            message = f"header `{name}` is sent {names.count(single)} times; send it once"
            return BadRequest(message, param=name, code="invalid_http")
    if version != "1.0" and b"host" not in by_name:
        return BadRequest("header `host` is missing; send it", param="host", code="invalid_http")
    return None


def check_hops(by_name: Mapping[bytes, bytes]) -> None:
    """Reject a request that goes round in gateways: each could send it on several times, for ever.

    Raises:
        LoopDetected: it has gone through too many gateways.
    """
    if HOPS in by_name and (count := hops(by_name)) >= _HOPS_MAX:
        raise LoopDetected(
            f"the request went through {count} gateways (header `{HOPS.decode()}`), so a `base_url` leads back to a "
            f"gateway before it; write the address of a model server in the `base_url` of the gateways' replicas"
        )


def is_handshake(head: RequestHead) -> bool:
    """Return true for the opening request of a WebSocket.

    A proxy that does not support upgrades removes `Upgrade` and may send HTTP/1.0, but forwards `Sec-WebSocket-Key`:
    nginx does so by default. `Upgrade` in HTTP/1.0 is ignored (RFC 9110, 7.8).
    """
    if head.method != "GET":
        return False
    return any(
        name == b"sec-websocket-key" or (name == b"upgrade" and head.version != "1.0" and b"websocket" in value.lower())
        for name, value in head.headers
    )


def deployment_of(path: str) -> tuple[Api, str] | None:
    """Return the API and the model of one of Azure's paths, None for any other path.

    Clients made for Azure OpenAI name the model in the path: `/openai/deployments/llama-70b/chat/completions` is
    `/v1/chat/completions` with `"model": "llama-70b"`. The `api-version` of the query is not read: the gateway has one
    form of each API.
    """
    found = _deployment(path)
    return None if found is None else (AZURE_APIS[found[2]], found[1])
