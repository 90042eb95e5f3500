"""The asynchronous transports for httpx and httpx2: `httpx.AsyncClient(transport=AsyncHedgingTransport())`."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ttft_gateway.client import slots
from ttft_gateway.client.async_race import AsyncRace, RaceAlarm, alarm_of, cancel_all, wait_for
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
from ttft_gateway.hedging.outcomes import Outcome

_T = TypeVar("_T")


class AsyncHttpxSender:
    """Sends through an asynchronous transport of httpx."""

    def __init__(self, inner: Inner) -> None:
        self._inner = inner

    async def send(self, request: HttpxRequest) -> Opened[Response]:
        try:
            response = await self._inner.handle_async_request(request)
        except asyncio.CancelledError:
            await slots.free(getattr(self._inner, "_pool", None))
            raise
        body = response.stream
        return Opened(response, body, response.status_code, response.headers.raw, aiter(body))

    async def close(self, opened: Opened[Response]) -> None:
        try:
            await opened.body.aclose()
        finally:
            await slots.free_after(opened.body)

    async def wait(self, fetching: "Future[None]", limit_s: float) -> None:
        await wait_for(fetching, limit_s)


class _Transport(HttpxTransport[_T]):
    _sends = "handle_async_request"

    def _use(self, transport: _T | None) -> None:
        self._inner = transport or self._library.AsyncHTTPTransport()
        from ttft_gateway.client.streams import quick  # only a client needs it

        quick(getattr(self._inner, "_pool", None))
        self.adapter = AsyncHttpxSender(self._inner)
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: RaceAlarm | None = None

    async def handle_async_request(self, request: HttpxRequest) -> Any:
        """Send a request, and a backup if it is late; return the response with the first event."""
        try:
            self._alarm = alarm = alarm_of(self.hedger, self._alarm)
        except RuntimeError:  # trio: no race
            return await self._inner.handle_async_request(without_switch(request))
        entrant = None
        try:
            entrant = self.enter(request)
        except WrongUseError:
            raise
        except Exception:
            log_failure()
        if entrant is None:
            opened, race = await self.adapter.send(without_switch(request)), None
        else:
            opened, race = await AsyncRace(entrant, self._tasks, alarm).run(), entrant.race
            opened.response.extensions[EXTENSION] = RaceReport(race)
        opened.response.stream = self._body(race, opened)
        return opened.response

    def __enter__(self) -> Self:
        raise WrongUseError(f"{type(self).__name__} is for an AsyncClient; use {type(self).__name__[5:]} in a Client")

    def handle_request(self, _request: HttpxRequest) -> Any:
        """Raise an error: a `Client` has no event loop."""
        self.__enter__()

    async def aclose(self) -> None:
        """Close all connections."""
        if self._alarm is not None:
            self._alarm.close()
        await cancel_all(self._tasks)
        await self._inner.aclose()


class _Body(HttpxBody):
    """The body, as httpx reads it."""

    _is_whole = False  # read to its end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        opened, pieces = self._opened, self._opened.chunks
        opened.chunks = []
        try:
            for self.last in pieces:
                yield self.last
            if opened.error is not None:
                raise opened.error
            async for self.last in opened.rest:
                self.pieces += 1
                yield self.last
        except Exception:
            self.report(Outcome.CUT)
            raise
        self._is_whole = True
        self.report(Outcome.FINISHED)

    async def aclose(self) -> None:
        """Close the response."""
        if self._attempt is not None:
            self.report_close()
        body = self._opened.body
        try:
            await body.aclose()
        except asyncio.CancelledError:
            self._is_whole = False
            raise
        finally:
            if not self._is_whole:
                await slots.free_after(body)


if TYPE_CHECKING:
    from concurrent.futures import Future

    import httpx
    import httpx2

    class AsyncHedgingTransport(_Transport[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport):
        """The transport for `httpx.AsyncClient`."""

    class AsyncHedgingTransport2(_Transport[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport):
        """The transport for `httpx2.AsyncClient`."""


def __getattr__(name: str) -> type:
    globals()[name] = made = transport_class(name, _Transport, _Body, "Async")
    return made
