"""A session of aiohttp that races: `HedgingSession()` in the place of `aiohttp.ClientSession()`.

Each attempt is a request of an inner session, through its public API: it has a timeout, traces and redirects of its
own. A middleware of aiohttp could not race, because all that it sends shares the timer of one request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from types import TracebackType
from typing import Any, Self, cast

from aiohttp import ClientResponse, ClientSession
from aiohttp.hdrs import CONTENT_ENCODING

from gateway.client.aiohttp_calls import Call, Entered, SessionCalls
from gateway.client.aiohttp_content import Ending, RacedContent
from gateway.client.async_race import AsyncRace
from gateway.client.config import HedgeConfig
from gateway.client.first import First
from gateway.client.hedger import safely
from gateway.client.stats import Stats
from gateway.client.targets import Target

Check = bool | Callable[[ClientResponse], Awaitable[None]] | None
"""The argument `raise_for_status`."""


class HedgingSession:
    """Hedges the requests of an `aiohttp.ClientSession`, whose methods and attributes it has.

    Args:
        config: settings; None: the defaults.
        replicas: addresses, or targets with keys and model names. Requests below the base URL of one of them go to any
            of them; all others are sent without a race. Empty: a request and its backups go to its own address.
        stats: counts; None: own ones, at `stats`.
        first: event that ends a race.
        options: arguments of `aiohttp.ClientSession`.
    """

    def __init__(
        self,
        config: HedgeConfig | None = None,
        *,
        replicas: Iterable[Target | str] = (),
        stats: Stats | None = None,
        first: First = "content",
        **options: Any,
    ) -> None:
        self._calls = SessionCalls(config, replicas, stats, first)
        self._inner = ClientSession(**options)
        self._calls.use(self._inner, options)
        self._sender = _Sender(self._inner)
        self._tasks: set[asyncio.Task[None]] = set()
        self.hedger = self._calls.hedger
        self.stats = self.hedger.stats

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def request(self, method: str, url: Any, **options: Any) -> "_Request":
        """Send a request, and a backup if it is late; the response is the one with the first event."""
        return _Request(self._send(method, url, options))

    def get(self, url: Any, *, allow_redirects: bool = True, **options: Any) -> "_Request":
        """Send a GET request."""
        return self.request("GET", url, allow_redirects=allow_redirects, **options)

    def options(self, url: Any, *, allow_redirects: bool = True, **options: Any) -> "_Request":
        """Send an OPTIONS request."""
        return self.request("OPTIONS", url, allow_redirects=allow_redirects, **options)

    def head(self, url: Any, *, allow_redirects: bool = False, **options: Any) -> "_Request":
        """Send a HEAD request."""
        return self.request("HEAD", url, allow_redirects=allow_redirects, **options)

    def post(self, url: Any, *, data: Any = None, **options: Any) -> "_Request":
        """Send a POST request."""
        return self.request("POST", url, data=data, **options)

    def put(self, url: Any, *, data: Any = None, **options: Any) -> "_Request":
        """Send a PUT request."""
        return self.request("PUT", url, data=data, **options)

    def patch(self, url: Any, *, data: Any = None, **options: Any) -> "_Request":
        """Send a PATCH request."""
        return self.request("PATCH", url, data=data, **options)

    def delete(self, url: Any, **options: Any) -> "_Request":
        """Send a DELETE request."""
        return self.request("DELETE", url, **options)

    async def close(self) -> None:
        """Close all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._inner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(self, method: str, url: Any, options: dict[str, Any]) -> ClientResponse:
        call = self._calls.read(method, url, options)
        entered = None if call is None else safely(self._calls.enter, call)
        if isinstance(entered, Entered):
            return await self._race(entered)
        if isinstance(entered, Call):
            options = entered.options
        return await self._inner.request(method, url, **options)

    async def _race(self, entered: Entered) -> ClientResponse:
        race = entered.race
        opened = await AsyncRace(self._sender, self.hedger, entered, self._calls.first, self._tasks).run()
        answered: _Answered = opened.response
        response, stream = answered.response, answered.stream
        if race.winner is None:
            race.close()  # each attempt has failed, and the primary's error is the answer
        else:
            ending = Ending(race, opened.attempt, len(stream.held))
            response.content = cast(Any, RacedContent(response.content, stream.held, ending))
        given: Check = entered.request.options.get("raise_for_status")
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


class _Request(Coroutine[Any, Any, ClientResponse]):
    """A request to await, or to enter: `async with session.get(url) as response`."""

    __slots__ = ("_response", "_work")

    def __init__(self, work: Coroutine[Any, Any, ClientResponse]) -> None:
        self._work = work

    def send(self, value: Any) -> Any:
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, ClientResponse]:
        return self._work.__await__()

    async def __aenter__(self) -> ClientResponse:
        self._response = await self._work
        return await self._response.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._response.__aexit__(kind, error, traceback)


class _Sender:
    """Sends the attempts of a race through a session."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def handle_async_request(self, request: tuple[str, Any, dict[str, Any]]) -> "_Answered":
        """Send an attempt; return its response after its headers."""
        method, url, options = request
        plain = options.get("auto_decompress")
        response = await self._session.request(method, url, **options)
        return _Answered(response, is_plain=self._session.auto_decompress if plain is None else plain)


class _Answered:
    """A response with the attributes that a race reads.

    Args:
        is_plain: True if aiohttp decompresses its body.
    """

    __slots__ = ("headers", "response", "status_code", "stream")

    def __init__(self, response: ClientResponse, *, is_plain: bool) -> None:
        self.response = response
        self.status_code = response.status
        self.headers = _Headers(response, is_plain=is_plain)
        self.stream = _Stream(response)


class _Headers:
    __slots__ = ("raw",)

    def __init__(self, response: ClientResponse, *, is_plain: bool) -> None:
        self.raw = response.raw_headers
        if is_plain and CONTENT_ENCODING in response.headers:
            self.raw = tuple(each for each in self.raw if each[0].lower() != b"content-encoding")


class _Stream:
    """The pieces of a body up to the first event.

    Attributes:
        held: pieces that were read, each with True at the end of a chunk of HTTP.
    """

    __slots__ = ("_response", "held")

    def __init__(self, response: ClientResponse) -> None:
        self._response = response
        self.held: list[tuple[bytes, bool]] = []

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> bytes:
        content = self._response.content
        piece = (b"", False) if content.at_eof() else await content.readchunk()
        if piece == (b"", False):
            raise StopAsyncIteration
        self.held.append(piece)
        return piece[0]

    async def aclose(self) -> None:
        """Close the connection."""
        self._response.close()
