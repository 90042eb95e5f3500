"""The asynchronous transport without a base class of a library; httpx's and httpx2's differ in nothing else."""

import asyncio
from collections.abc import Iterable
from typing import Any, Self

from gateway.client.async_race import AsyncRace
from gateway.client.attempt import ClientAttempt
from gateway.client.config import HedgeConfig
from gateway.client.first import First
from gateway.client.hedger import ClientRace, log_failure
from gateway.client.racing import Entrant, Opened, Racing, outcome_of
from gateway.client.stats import Stats
from gateway.client.targets import Target
from gateway.hedging.outcomes import Outcome


class AsyncRacedBody:
    """The body of a winner: the pieces that were read in its race, then the others."""

    _last = b""

    def __init__(self, opened: Opened, race: ClientRace) -> None:
        self._body = opened.body
        self._held = opened.chunks
        self._rest = opened.rest
        self._attempt: ClientAttempt | None = opened.attempt
        self._race = race
        self._pieces = len(opened.chunks)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._held:
            self._last = self._held.pop(0)
            return self._last
        try:
            self._last = await anext(self._rest)
        except StopAsyncIteration:
            self._end(Outcome.FINISHED)
            raise
        except Exception:
            self._end(Outcome.CUT)
            raise
        self._pieces += 1
        return self._last

    async def aclose(self) -> None:
        """Close the response."""
        if self._attempt is not None:
            self._end(outcome_of(self._last))
        await self._body.aclose()

    def _end(self, outcome: Outcome) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            try:
                self._race.on_end(attempt, outcome=outcome, events=self._pieces)
            except Exception:
                log_failure()


class AsyncTransport(Racing):
    """Hedges requests of an asynchronous client; under another library than asyncio it passes them on.

    Args:
        inner: transport that sends.
        body: class of response bodies.
    """

    def __init__(
        self,
        inner: Any,
        body: type[AsyncRacedBody],
        config: HedgeConfig | None,
        replicas: Iterable[Target | str],
        stats: Stats | None,
        first: First,
    ) -> None:
        super().__init__(config, replicas, stats, first)
        self._inner = inner
        self._body = body
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request, and a backup if it is late; return the response with the first event."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # trio
            return await self._inner.handle_async_request(request)
        try:
            entered = self.enter(request)
        except Exception:
            log_failure()
            entered = None
        if not isinstance(entered, Entrant):
            return await self._inner.handle_async_request(request if entered is None else entered)
        opened = await AsyncRace(self._inner, self.hedger, entered, self.first, self._tasks).run()
        opened.response.stream = self._body(opened, entered.race)
        return opened.response

    async def aclose(self) -> None:
        """Close all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._inner.aclose()
