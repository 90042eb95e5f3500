"""Rejects heads that are too large or late, that two servers could read differently, or that are not served. Pure.

Units: bytes.
"""

from collections.abc import Mapping
from typing import Final

from gateway.errors import BadRequest
from providers.base import Headers

_BODIES: Final = (b"content-length", b"transfer-encoding")
_SINGLE: Final = (b"host", b"authorization", b"x-api-key", b"api-key")


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


def head_error(version: str, headers: Headers, by_name: Mapping[bytes, bytes], *, upgrades: bool) -> BadRequest | None:
    """Return the error for a head that is not served, None if there is none.

    RFC 9112 requires one `Host` in HTTP/1.1 (3.2), and rejects a coding other than `chunked` (6.1), of which the parser
    sees only the last one. Of two keys, a proxy could check one and the gateway the other.

    Args:
        version: version of HTTP.
        headers: the headers, with names in lower case.
        by_name: the same; of a repeated header, the last one.
        upgrades: True if the parser takes what follows for another protocol.
    """
    if upgrades and any(name in _BODIES and value != b"0" for name, value in headers):
        message = "a protocol upgrade is not supported for a request with a body; remove the `Upgrade` header"
        return BadRequest(message, code="invalid_http")  # the parser would take the body for a request
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
