"""A session of aiohttp that races: `HedgingSession()` in the place of `aiohttp.ClientSession()`.

Each attempt is a request of an inner session, through its public API: it has a timeout, traces and redirects of its
own. A middleware of aiohttp could not race, because all that it sends shares the timer of one request.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Self, cast

import msgspec
from aiohttp import (
    BytesPayload,
    ClientConnectionError,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    StreamReader,
)
from aiohttp.hdrs import CONTENT_ENCODING
from multidict import CIMultiDict
from yarl import URL

from ttft_gateway.apis.base import Headers
from ttft_gateway.client.aiohttp_content import RacedContent
from ttft_gateway.client.asked import HEDGE_HEADER, ask
from ttft_gateway.client.async_race import AsyncRace, RaceAlarm, alarm_of, cancel_all, wait_for
from ttft_gateway.client.budget import Budget
from ttft_gateway.client.config import First, HedgeConfig
from ttft_gateway.client.hedger import ClientAttempt, safely
from ttft_gateway.client.messages import Raw, address_at, body_to, headers_to, is_plain, origin_of, public
from ttft_gateway.client.racing import Ending, Entrant, Opened, Racing
from ttft_gateway.client.report import ATTRIBUTE, RaceReport
from ttft_gateway.client.stats import Stats
from ttft_gateway.client.targets import Target

_DECOMPRESSED: Final = ("gzip", "deflate", "br", "zstd")  # by aiohttp; of several codings together, none is

_JSON: Final = "application/json"
_SWITCH: Final = HEDGE_HEADER.decode()
_FRAMING: Final = frozenset({b"connection", b"content-encoding", b"expect", b"transfer-encoding"})  # of one connection
_ADDRESSES_MAX: Final = 64  # URLs that are remembered
_LEFT_S_MIN: Final = 0.001  # aiohttp takes 0 for no limit
_BYTES: Final = (bytes, bytearray, memoryview)

Check = bool | Callable[[ClientResponse], Awaitable[None]] | None
"""The argument `raise_for_status`."""
Options = dict[str, Any]
"""Arguments of `ClientSession.request`."""
Sent = tuple[str, str | URL, Options]
"""Method, address and arguments of an attempt."""
Handler = Callable[[ClientRequest], Awaitable[ClientResponse]]


class SessionCall(msgspec.Struct):
    """One request.

    Attributes:
        url: its whole address, with the query of its parameters.
        given: its address as the session gets it.
        options: its arguments.
        headers: its headers and the session's.
        body: whole body; None if it can be sent only once.
        is_json: True if the body is from the argument `json`.
    """

    method: str
    url: URL
    given: str | URL
    options: Options
    headers: Raw
    body: bytes | None
    is_json: bool


class HedgingSession(Racing[SessionCall, Sent, ClientResponse]):
    """Hedges the requests of an `aiohttp.ClientSession`, and has its methods and attributes.

    Args:
        config: settings; None: the defaults.
        replicas: addresses, or targets with keys and model names. Requests below the base URL of one of them go to any
            of them; all others are sent without a race. Empty: a request and its backups go to its own address.
        stats: counts; None: own ones, at `stats`.
        first: event that ends a race.
        budget: limit on backups, shared with other transports; None: its own, of the settings.
        options: arguments of `aiohttp.ClientSession`.
    """

    __class__: Any = ClientSession  # for `isinstance`, by which SDKs such as Google's check a session

    def __init__(
        self,
        config: HedgeConfig | None = None,
        *,
        replicas: Iterable[Target | str] = (),
        stats: Stats | None = None,
        first: First = "content",
        budget: Budget | None = None,
        **options: Any,
    ) -> None:
        super().__init__(config, replicas, stats, first, budget)
        self._inner = ClientSession(**options)
        self.adapter = SessionSender(self._inner)
        self.hedger.sender = self._inner
        self.unsent = ClientConnectionError
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: RaceAlarm | None = None
        base = options.get("base_url")
        self._base = None if base is None else URL(base)
        self._dumps = options.get("json_serialize_bytes")
        self._middlewares = tuple(options.get("middlewares") or ())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def request(self, method: str, url: str | URL, **options: object) -> "_Request":
        """Send a request, and a backup if it is late; the response is the one with the first event."""
        return _Request(self._send(method, url, options))

    def get(self, url: str | URL, *, allow_redirects: bool = True, **options: object) -> "_Request":
        """Send a GET request."""
        return self.request("GET", url, allow_redirects=allow_redirects, **options)

    def options(self, url: str | URL, *, allow_redirects: bool = True, **options: object) -> "_Request":
        """Send an OPTIONS request."""
        return self.request("OPTIONS", url, allow_redirects=allow_redirects, **options)

    def head(self, url: str | URL, *, allow_redirects: bool = False, **options: object) -> "_Request":
        """Send a HEAD request."""
        return self.request("HEAD", url, allow_redirects=allow_redirects, **options)

    def post(self, url: str | URL, *, data: object = None, **options: object) -> "_Request":
        """Send a POST request."""
        return self.request("POST", url, data=data, **options)

    def put(self, url: str | URL, *, data: object = None, **options: object) -> "_Request":
        """Send a PUT request."""
        return self.request("PUT", url, data=data, **options)

    def patch(self, url: str | URL, *, data: object = None, **options: object) -> "_Request":
        """Send a PATCH request."""
        return self.request("PATCH", url, data=data, **options)

    def delete(self, url: str | URL, **options: object) -> "_Request":
        """Send a DELETE request."""
        return self.request("DELETE", url, **options)

    async def close(self) -> None:
        """Close all connections."""
        if self._alarm is not None:
            self._alarm.close()
        await cancel_all(self._tasks)
        await self._inner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(self, method: str, url: str | URL, options: Options) -> ClientResponse:
        call = self._read(method, url, options)
        entrant = None if call is None else safely(self._enter, call)
        if call is None or entrant is None:
            return await self._inner.request(method, url, **(options if call is None else call.options))
        self._alarm = alarm_of(self.hedger, self._alarm)
        opened = await AsyncRace(entrant, self._tasks, self._alarm).run()
        response = opened.response
        setattr(response, ATTRIBUTE, RaceReport(entrant.race))
        ending = Ending(entrant.race, len(opened.chunks))
        response.content = cast(StreamReader, RacedContent(response.content, opened.body.held, ending))
        given: Check = call.options.get("raise_for_status")
        check = self._inner.raise_for_status if given is None else given
        try:
            if callable(check):
                await check(response)
            elif check:
                response.raise_for_status()
        except BaseException:
            response.close()
            raise
        return response

    # requests

    def _read(self, method: str, given: str | URL, options: Options) -> SessionCall | None:
        """Read a request; None if aiohttp rejects it."""
        session = self._inner
        try:
            url = URL(given)
            if self._base is not None and not url.absolute:
                url = self._base.join(url)
            if options.get("params"):
                url = url.extend_query(options["params"])
            own = options.get("headers") or {}
            if type(own) is not dict:
                own = CIMultiDict(own)
            found = {**session.headers, **CIMultiDict(own)} if session.headers else own
            headers = [(name.encode(), str(value).encode()) for name, value in found.items()]
            is_json = options.get("json") is not None
            body = self._json(options) if is_json else _body(options.get("data"))
        except (AttributeError, TypeError, ValueError):
            return None
        is_http = url.scheme in ("http", "https") and url.host
        return SessionCall(method.upper(), url, given, options, headers, body, is_json) if is_http else None

    def _enter(self, request: SessionCall) -> "Entrant[SessionCall, Sent, ClientResponse] | None":
        """Return the race of a request; None: it is sent without a race."""
        url, hedger = request.url, self.hedger
        origin, path = _address_of(url)
        asked = ask(request.method, origin, path, request.headers, request.body, hedger.rand(), hedger.rules)
        entrant = self.race(request, url, asked, _limit_s(self._limits(request.options)))
        if entrant is None and asked.has_switch:
            request.options = self._guarded(request.options, None, None)
        return entrant

    def request_to(self, entrant: Entrant[SessionCall, Sent, ClientResponse], attempt: ClientAttempt) -> Sent:
        """Return method, address and arguments of an attempt."""
        call, asked, home, target = entrant.request, entrant.asked, entrant.home, attempt.target
        options = {**call.options, "raise_for_status": False}
        body = None if target is None else body_to(asked, target)
        if body is None and call.is_json and (attempt.number or attempt.is_repeated):
            body = call.body  # aiohttp closes a payload that was sent
        if body is not None:
            options["data"] = BytesPayload(body, content_type=_JSON)
        if attempt.number:
            options.pop("upload_tracker", None)  # it follows one request
            options["timeout"] = self._left(options, attempt.start_s - entrant.primary.start_s)
        address = call.given
        if not is_plain(home, target) or asked.has_switch:
            options = self._guarded(options, home, None if is_plain(home, target) else target)
        if home is None or target is None or is_plain(home, target):
            return call.method, address, options
        if target is not home:
            address = URL(address_at(call.url.raw_path_qs.encode(), home, target)[1], encoded=True)
            options.pop("params", None)
        if target.origin != home.origin:
            for name in ("auth", "cookies"):
                options.pop(name, None)
        return call.method, address, options

    def _json(self, options: Options) -> bytes:
        """Replace a value for JSON by its bytes and return these."""
        if options.get("data") is not None:
            raise ValueError
        value = options["json"]
        body: bytes = self._inner.json_serialize(value).encode() if self._dumps is None else self._dumps(value)
        del options["json"]
        options["data"] = BytesPayload(body, content_type=_JSON)
        return body

    def _left(self, options: Options, passed_s: float) -> ClientTimeout:
        """Return the timeouts of a backup: in total, the time that is left."""
        limits = self._limits(options)
        total = limits.total and max(_LEFT_S_MIN, limits.total - passed_s)
        return ClientTimeout(total, limits.connect, limits.sock_read, limits.sock_connect, limits.ceil_threshold)

    def _limits(self, options: Options) -> ClientTimeout:
        """Return the timeouts of a request."""
        if "timeout" not in options:
            return self._inner.timeout
        given = options["timeout"]
        if isinstance(given, int | float) or given is None:
            given = ClientTimeout(total=given)
        return given if isinstance(given, ClientTimeout) else self._inner.timeout

    def _guarded(self, options: Options, home: Target | None, target: Target | None) -> Options:
        """Return the arguments with a last middleware that sets the headers of each request before it is sent."""
        given = options.get("middlewares")
        before = self._middlewares if given is None else tuple(given)

        async def guard(request: ClientRequest, handler: Handler) -> ClientResponse:
            request.headers.popall(_SWITCH, None)
            if home is not None and target is not None:
                _set_headers(request, home, target)
            return await handler(request)

        return {**options, "middlewares": (*before, guard)}


class _Request(Coroutine[object, None, ClientResponse]):
    """A request to await, or to enter: `async with session.get(url) as response`."""

    __slots__ = ("_response", "_work")

    def __init__(self, work: Coroutine[object, None, ClientResponse]) -> None:
        self._work = work

    def send(self, value: None) -> object:
        return self._work.send(value)

    def throw(self, *error: Any) -> object:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[object, None, ClientResponse]:
        return self._work.__await__()

    async def __aenter__(self) -> ClientResponse:
        self._response = await self._work
        return await self._response.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._response.__aexit__(kind, error, traceback)


class SessionSender:
    """Sends the attempts of a race through a session."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def send(self, request: Sent) -> Opened[ClientResponse]:
        method, url, options = request
        plain = options.get("auto_decompress")
        response = await self._session.request(method, url, **options)
        headers: Headers = response.raw_headers
        is_plain = self._session.auto_decompress if plain is None else plain
        if is_plain and response.headers.get(CONTENT_ENCODING, "").lower() in _DECOMPRESSED:
            headers = tuple(each for each in headers if each[0].lower() != b"content-encoding")
        body = _Pieces(response)
        return Opened(response, body, response.status, headers, body)

    async def close(self, opened: Opened[ClientResponse]) -> None:
        opened.response.close()

    async def wait(self, fetching: "Future[None]", limit_s: float) -> None:
        await wait_for(fetching, limit_s)


class _Pieces:
    """The pieces of a body up to the first event.

    Attributes:
        held: pieces that were read, each with True at the end of a chunk of HTTP.
    """

    __slots__ = ("_response", "held")

    def __init__(self, response: ClientResponse) -> None:
        self._response = response
        self.held: list[tuple[bytes, bool]] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        content = self._response.content
        piece = (b"", False) if content.at_eof() else await content.readchunk()
        if piece == (b"", False):
            raise StopAsyncIteration
        self.held.append(piece)
        return piece[0]


@lru_cache(_ADDRESSES_MAX)
def _address_of(url: URL) -> tuple[str, bytes]:
    """Return origin and path, with its query, of a URL."""
    origin = f"{url.scheme}://{url.raw_host}:{'' if url.is_default_port() else url.port}"
    return origin, url.raw_path_qs.encode()


def _limit_s(limits: ClientTimeout) -> float:
    """Return the time after which aiohttp's own timeouts end a request without an event."""
    total_s, read_s = limits.total or math.inf, limits.sock_read or math.inf
    return total_s if total_s < read_s else read_s


def _body(data: object) -> bytes | None:
    """Return the whole body; None if it can be sent only once."""
    if isinstance(data, str):
        return data.encode()
    return b"" if data is None else bytes(data) if isinstance(data, _BYTES) else None


def _set_headers(request: ClientRequest, home: Target, target: Target) -> None:
    """Set the headers of a target, after the session's headers, cookies and other middlewares.

    After a redirect to another host, that host gets no key and no header of its own.
    """
    raw = [(name.encode(), value.encode()) for name, value in request.headers.items()]
    framing = [each for each in raw if each[0].lower() in _FRAMING]
    raw = [each for each in raw if each[0].lower() not in _FRAMING]
    raw = headers_to(raw, home, target) if origin_of(request.url) == target.origin else public(raw)
    if target.origin != home.origin:
        host = request.url.host_port_subcomponent or ""
        raw = [(b"Host", host.encode()), *(each for each in raw if each[0].lower() != b"host")]
    request.headers.clear()
    request.headers.extend([(name.decode(), value.decode()) for name, value in (*raw, *framing)])
