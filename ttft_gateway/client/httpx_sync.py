"""The synchronous transports for httpx and httpx2: `httpx.Client(transport=HedgingTransport())`."""

import contextlib
import threading
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from ttft_gateway.client.hedger import log_failure
from ttft_gateway.client.httpx_transports import (
    HttpxBody,
    HttpxTransport,
    Inner,
    Response,
    WrongUseError,
    transport_class,
)
from ttft_gateway.client.messages import HttpxRequest, without_switch
from ttft_gateway.client.racing import Opened
from ttft_gateway.client.report import EXTENSION, RaceReport
from ttft_gateway.client.sockets import raced
from ttft_gateway.client.sync_race import SyncRace, ThreadedRace
from ttft_gateway.hedging.outcomes import Outcome

_T = TypeVar("_T")
_JOIN_S: Final = 1.0  # for all threads that close a connection


class HttpxSender:
    """Sends through a synchronous transport of httpx."""

    def __init__(self, inner: Inner) -> None:
        self._inner = inner

    async def send(self, request: HttpxRequest) -> Opened[Response]:
        response = self._inner.handle_request(request)
        body = response.stream
        return Opened(response, body, response.status_code, response.headers.raw, _Pieces(iter(body)))

    async def close(self, opened: Opened[Response]) -> None:
        opened.body.close()

    async def wait(self, fetching: "Future[None]", limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            fetching.result(limit_s)


class _Pieces:
    """An iterator as a race reads it; it never waits for an event loop."""

    __slots__ = ("rest",)

    def __init__(self, rest: Iterator[bytes]) -> None:
        self.rest = rest

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        for piece in self.rest:
            return piece
        raise StopAsyncIteration


class _Transport(HttpxTransport[_T]):
    _sends = "handle_request"

    def _use(self, transport: _T | None) -> None:
        self._inner = transport or self._library.HTTPTransport()
        self._race: type[SyncRace[Opened[Response]]] = ThreadedRace
        if isinstance(self._inner, self._library.HTTPTransport):
            raced(getattr(self._inner, "_pool", None), self._library.__name__.replace("httpx", "httpcore"))
            self._race = SyncRace
            self.errors = self._library.TransportError
        self.adapter = HttpxSender(self._inner)
        self._threads: set[threading.Thread] = set()

    def handle_request(self, request: HttpxRequest) -> Any:
        """Send a request, and a backup if it is late; return the response with the first event."""
        entrant = None
        try:
            entrant = self.enter(request)
        except WrongUseError:
            raise
        except Exception:
            log_failure()
        if entrant is None:
            return self._inner.handle_request(without_switch(request))
        opened = self._race(entrant, self._threads, self.errors).run()
        response = opened.response
        response.stream = self._body(entrant.race, opened)
        response.extensions[EXTENSION] = RaceReport(entrant.race)
        return response

    async def __aenter__(self) -> Self:
        raise WrongUseError(f"{type(self).__name__} is for a Client; use Async{type(self).__name__} in an AsyncClient")

    async def handle_async_request(self, _request: HttpxRequest) -> Any:
        """Raise an error: this transport blocks."""
        await self.__aenter__()

    def close(self) -> None:
        """Close all connections."""
        self._inner.close()
        for thread in list(self._threads):
            thread.join(_JOIN_S)


class _Body(HttpxBody):
    """The body, as httpx reads it."""

    def __iter__(self) -> Iterator[bytes]:
        opened, pieces = self._opened, self._opened.chunks
        rest: Any = opened.rest  # `_Pieces`
        opened.chunks = []
        try:
            for self.pieces, self.last in enumerate(chain(pieces, rest.rest if opened.error is None else ()), 1):
                yield self.last
            if opened.error is not None:
                raise opened.error
        except Exception:
            self.report(Outcome.CUT)
            raise
        self.report(Outcome.FINISHED)

    def close(self) -> None:
        """Close the response."""
        if self._attempt is not None:
            self.report_close()
        self._opened.body.close()


if TYPE_CHECKING:
    from concurrent.futures import Future

    import httpx
    import httpx2

    class HedgingTransport(_Transport[httpx.BaseTransport], httpx.BaseTransport):
        """The transport for `httpx.Client`."""

    class HedgingTransport2(_Transport[httpx2.BaseTransport], httpx2.BaseTransport):
        """The transport for `httpx2.Client`."""


def __getattr__(name: str) -> type:
    globals()[name] = made = transport_class(name, _Transport, _Body, "Sync")
    return made
