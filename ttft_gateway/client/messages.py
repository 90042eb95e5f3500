"""Addresses one request to a target: URL, key, headers and model name. No I/O, and no import of httpx.

A key never reaches another replica's host: only headers of an allow-list are sent there, with the target's own, and of
the query only the version of the API.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from ttft_gateway.apis.catalog import Auth
from ttft_gateway.client.asked import HEDGE_HEADER, Asked, parsed
from ttft_gateway.client.targets import PORTS, Target

Raw = list[tuple[bytes, bytes]]
"""Headers in order, names in any case."""

_encode: Final = msgspec.json.Encoder().encode
_PASSED: Final = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"anthropic-beta",
        b"anthropic-version",
        b"baggage",
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"openai-beta",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-client-request-id",
        b"x-request-id",
    }
)
_PASSED_PREFIX: Final = b"x-stainless-"  # of the SDKs of OpenAI and Anthropic: their version, platform and retries
_AUTH: Final = frozenset(auth.value.encode() for auth in Auth)
_VERSION: Final = b"api-version="


class Url(Protocol):
    """The address of a request: of httpx, httpx2 or yarl."""

    @property
    def scheme(self) -> str: ...
    @property
    def host(self) -> str | None: ...
    @property
    def port(self) -> int | None: ...
    @property
    def path(self) -> str: ...


class HttpxUrl(Url, Protocol):
    """An address of httpx or httpx2."""

    @property
    def raw_host(self) -> bytes: ...
    @property
    def raw_path(self) -> bytes: ...


class HttpxHeaders(Protocol):
    """Headers of httpx or httpx2."""

    @property
    def raw(self) -> Raw: ...


class HttpxRequest(Protocol):
    """A request of httpx or httpx2."""

    method: str

    @property
    def url(self) -> HttpxUrl: ...
    @property
    def headers(self) -> HttpxHeaders: ...
    @property
    def content(self) -> bytes: ...
    @property
    def extensions(self) -> Mapping[str, Any]: ...


_Request = TypeVar("_Request", bound=HttpxRequest)


def origin_of(url: Url) -> tuple[str, str, int]:
    """Return scheme, host and port of a URL."""
    return url.scheme, url.host or "", url.port or PORTS.get(url.scheme, 0)


def home_of(url: Url, targets: Sequence[Target]) -> Target | None:
    """Return the target with a base URL above a request's URL; None if the request is for another address."""
    origin, path = origin_of(url), url.path
    for target in targets:
        if target.origin == origin and (path == target.path or path.startswith(target.path + "/")):
            return target
    return None


def addressed(request: _Request, asked: Asked, home: Target | None, target: Target | None) -> _Request:
    """Return the request for a target; the same object if nothing changes.

    Args:
        home: target with a base URL above the request's URL; None for no such target.
        target: None: the request's own address.
    """
    if target is None or home is None or is_plain(home, target):
        return without_switch(request) if asked.has_switch else request
    raw: Raw = [(name, value) for name, value in request.headers.raw if name.lower() != HEDGE_HEADER]
    url: HttpxUrl | str = request.url
    if target is not home:
        authority, url = address_at(request.url.raw_path, home, target)
        raw = [(b"Host", authority.encode()), *((name, value) for name, value in raw if name.lower() != b"host")]
    return _copy(request, url, headers_to(raw, home, target), body_to(asked, target))


def without_switch(request: _Request) -> _Request:
    """Return a request without `x-ttft-hedge`; the same object if nothing changes."""
    raw = request.headers.raw
    kept = [each for each in raw if each[0].lower() != HEDGE_HEADER]
    return request if len(kept) == len(raw) else _copy(request, request.url, kept, None)


def is_plain(home: Target | None, target: Target | None) -> bool:
    """Return True if a target gets the request unchanged."""
    if target is None:
        return True
    return target is home and target.api_key is target.credential is target.model is None and not target.headers


def address_at(raw_path: bytes, home: Target, target: Target) -> tuple[str, str]:
    """Return the host with its port, and the URL, of a request at another target.

    Args:
        raw_path: path with query.
    """
    path, _, query = raw_path.partition(b"?")
    path = target.path.encode() + path[len(home.path.encode()) :]
    if target.origin != home.origin:
        query = b"&".join(part for part in query.split(b"&") if part.startswith(_VERSION))
    scheme, host, port = target.origin
    named = f"[{host}]" if ":" in host else host
    authority = named if port == PORTS[scheme] else f"{named}:{port}"
    return authority, f"{scheme}://{authority}{path.decode('latin-1')}{'?' if query else ''}{query.decode('latin-1')}"


def headers_to(raw: Raw, home: Target, target: Target) -> Raw:
    """Return the headers for a target."""
    own = {name.lower().encode(): value.encode() for name, value in target.headers.items()}
    used = next((name.lower() for name, _ in raw if name.lower() in _AUTH), Auth.BEARER.value.encode())
    secret = target.api_key if target.token is None else target.token.value
    if secret is not None:
        kind = target.facts
        is_known = target.kind is not None or kind.auth is not Auth.BEARER
        name = kind.auth.value.encode() if is_known else used
        if target.token is not None and target.token.is_bearer:
            name = Auth.BEARER.value.encode()
        own.setdefault(name, f"{'Bearer ' if name == b'authorization' else ''}{secret}".encode())
        raw = [each for each in raw if each[0].lower() not in _AUTH]
    if target.origin != home.origin:
        raw = public(raw)
    return [*(each for each in raw if each[0].lower() not in own), *own.items()]


def public(raw: Raw) -> Raw:
    """Return the headers that any host may get."""
    return [each for each in raw if (name := each[0].lower()) in _PASSED or name.startswith(_PASSED_PREFIX)]


def body_to(asked: Asked, target: Target) -> bytes | None:
    """Return the body with the target's name of the model; None: the request's own."""
    if target.model is None or asked.api is None:
        return None
    call = parsed(asked)
    body, (start, end) = call.body, call.spans["model"]
    return body[:start] + _encode(target.model) + body[end:]


def _copy(request: _Request, url: HttpxUrl | str, raw: Raw, body: bytes | None) -> _Request:
    """Return a request with other headers; `body` None: the same body."""
    given: Any = request
    content = {"stream": given.stream}
    if body is not None:
        raw = [each for each in raw if each[0].lower() not in (b"content-length", b"transfer-encoding")]
        content = {"content": body}
    copied: _Request = type(given)(request.method, url, headers=raw, extensions=given.extensions, **content)
    return copied
