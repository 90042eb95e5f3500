"""Keeps tokens: fetches them off the loop, renews them before their end, and passes on every change.

One task and at most one fetch at a time for each source, shared by all replicas with the source; with several workers,
the supervisor keeps the tokens of all. A fetch that hangs is reported and not repeated, so that its thread stays the
only one. Units: seconds of the loop's clock.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import Final

import msgspec

from gateway.observe.process import ProcessValue
from gateway.process_events import CredentialChanged
from gateway.race.context import Runtime
from gateway.server.daemon_thread import on_thread
from ttft_gateway.credentials.renewal import Renewal
from ttft_gateway.credentials.sources import FILE_EVERY_S, FIRST_S_MAX, Source, fault_of, fetch_of
from ttft_gateway.credentials.token import Token

_SLOW_S: Final = 10.0  # a fetch that takes longer is reported
NOT_YET: Final = "its token has not arrived yet"

FetchToken = Callable[[], Awaitable[Token]]


class TokenState(msgspec.Struct, frozen=True):
    """The state of a token.

    Attributes:
        value: the token; None if there is none.
        fault: reason for which there is none, or for which its renewal fails; None after a success.
        is_cure: True if the token before it was rejected.
    """

    value: str | None = None
    fault: str | None = None
    is_cure: bool = False

    def __repr__(self) -> str:
        return f"TokenState({'None' if self.value is None else '****'}, {self.fault!r})"


def fetch_on_thread(source: Source) -> FetchToken:
    """Return the function that fetches a token on a thread of its own."""
    fetch = fetch_of(source)
    return lambda: on_thread(fetch, "fetch token")


def token_values(source: str, left_s: float, fault: str | None) -> Iterator[ProcessValue]:
    """Yield the values of one token for a scrape."""
    labels = {"source": source}
    text = "1 if the last fetch of a token succeeded"
    yield ProcessValue("ttft_gateway_credential_up", text, "gauge", float(fault is None), labels)
    text = "Time until the end of the token in use"
    yield ProcessValue("ttft_gateway_credential_left_seconds", text, "gauge", left_s, labels)


class TokenKeeper:
    """The token of one source.

    Args:
        source: the source.
        fetch: fetches a token.
        tasks: owner of the fetches.
        runtime: clock, random numbers and receiver of events.
        put: receives each new state.

    Attributes:
        is_known: set after the first fetch.
    """

    def __init__(
        self,
        source: Source,
        fetch: FetchToken,
        tasks: asyncio.TaskGroup,
        runtime: Runtime,
        put: Callable[[Source, TokenState], None],
    ) -> None:
        self.source = source
        self._tasks = tasks
        self.is_known = asyncio.Event()
        self._fetch = fetch
        self._runtime = runtime
        self._put = put
        self._renewal = Renewal(every_s=FILE_EVERY_S if source.name == "file" else math.inf)
        self._woken = asyncio.Event()
        self._fetching: asyncio.Task[Token | Exception] | None = None
        self._slow_s = math.inf  # time from which the fetch under way is reported
        self._reported: str | None = None  # fault in the last event
        self._has_ended = True  # the last state that was passed on has no token
        self._was_rejected = False

    async def keep(self) -> None:
        """Keep the token until the task is cancelled."""
        loop = self._runtime.loop
        try:
            while True:
                self._woken.clear()
                self._step(loop.time())
                wait_s = max(0.0, self._wake_s() - loop.time())
                try:
                    async with asyncio.timeout(None if math.isinf(wait_s) else wait_s):
                        await self._woken.wait()
                except TimeoutError:
                    pass
        finally:
            if self._fetching is not None:
                self._fetching.cancel()

    def on_rejected(self, sent_s: float) -> None:
        """Renew the token at once if an upstream has rejected a request that was sent with it."""
        if self._renewal.on_rejected(sent_s, self._runtime.loop.time()):
            self._was_rejected = True
            self._woken.set()

    def values(self) -> Iterator[ProcessValue]:
        """Yield the values for a scrape."""
        left_s = max(0.0, self._renewal.until_s - self._runtime.loop.time())
        yield from token_values(str(self.source), left_s, self._renewal.fault)

    def _wake_s(self) -> float:
        state = self._renewal
        until_s = math.inf if self._has_ended else state.until_s
        return min(until_s, self._slow_s if self._fetching is not None else state.next_s)

    def _step(self, now_s: float) -> None:
        """Take the result of a fetch, report, and start a fetch that is due."""
        if self._fetching is not None and self._fetching.done():
            fetching, self._fetching, self._slow_s = self._fetching, None, math.inf
            self._take(fetching.result(), now_s)
        if now_s >= self._slow_s:
            self._slow_s = math.inf
            self._renewal.fault = f"{self.source} has returned nothing for {_SLOW_S:g} s"
            self._report(now_s)
        if not self._has_ended and now_s >= self._renewal.until_s:
            self._has_ended = True
            self._put(self.source, TokenState(None, self._why_locked()))
            self._report(now_s)
        if self._fetching is None and now_s >= self._renewal.next_s:
            self._fetching = self._tasks.create_task(self._try())
            self._fetching.add_done_callback(lambda _: self._woken.set())
            self._slow_s = now_s + _SLOW_S

    async def _try(self) -> Token | Exception:
        """Return a token, or what its fetch raises."""
        try:
            return await self._fetch()
        except Exception as error:
            return error

    def _take(self, found: Token | Exception, now_s: float) -> None:
        """Use the result of a fetch."""
        state, rand = self._renewal, self._runtime.rand()
        if isinstance(found, Exception):
            fault = fault_of(found)
            if fault is None:
                self._runtime.report("credentials", found)
            state.on_failure(fault or "the fetch failed with an internal error", now_s, rand)
        elif state.on_token(found, now_s, rand) or self._has_ended:
            self._has_ended = False
            self._put(self.source, TokenState(found.value, None, is_cure=self._was_rejected))
            self._was_rejected = False
        self._report(now_s)
        if not self.is_known.is_set():
            self.is_known.set()
            if self._has_ended:
                self._put(self.source, TokenState(None, self._why_locked()))

    def _why_locked(self) -> str:
        return f"its token cannot be fetched: {self._renewal.fault}" if self._renewal.fault else "its token has ended"

    def _report(self, now_s: float) -> None:
        """Emit an event if failures have begun or ended, or the token has ended."""
        state = self._renewal
        now = None if state.fault is None else f"{self._has_ended} {state.fault}"
        if now == self._reported:
            return
        self._reported = now
        left_s = 0.0 if self._has_ended else min(state.until_s - now_s, 1e9)
        self._runtime.emit(CredentialChanged(now_s, str(self.source), round(max(0.0, left_s), 1), state.fault))


class TokenKeepers:
    """The tokens of all sources of the settings.

    Args:
        tasks: owner of the tasks.
        runtime: clock, random numbers and receiver of events.
        put: receives each new state of a token.
        fetcher: returns the function that fetches tokens of a source.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        runtime: Runtime,
        put: Callable[[Source, TokenState], None],
        fetcher: Callable[[Source], FetchToken] = fetch_on_thread,
    ) -> None:
        self._tasks = tasks
        self._runtime = runtime
        self._put = put
        self._fetcher = fetcher
        self._kept: dict[Source, tuple[TokenKeeper, asyncio.Task[None]]] = {}

    async def prepare(self, sources: Collection[Source]) -> None:
        """Keep the tokens of these sources, too; wait for the first fetch of each new one, at most ten seconds."""
        waits = []
        for source in [each for each in sources if each not in self._kept]:
            self._put(source, TokenState(None, NOT_YET))
            keeper = TokenKeeper(source, self._fetcher(source), self._tasks, self._runtime, self._put)
            self._kept[source] = keeper, self._tasks.create_task(keeper.keep())
            waits.append(keeper.is_known.wait())
        try:
            async with asyncio.timeout(FIRST_S_MAX):
                await asyncio.gather(*waits)
        except TimeoutError:
            pass

    def follow(self, sources: Iterable[Source]) -> None:
        """Keep the tokens of no other sources."""
        wanted = set(sources)
        for source in [each for each in self._kept if each not in wanted]:
            self._kept.pop(source)[1].cancel()

    def on_rejected(self, source: Source, sent_s: float) -> None:
        """Renew a token at once if an upstream has rejected a request that was sent with it."""
        if source in self._kept:
            self._kept[source][0].on_rejected(sent_s)

    def values(self) -> Iterator[ProcessValue]:
        """Yield the values for a scrape."""
        for keeper, _ in self._kept.values():
            yield from keeper.values()

    def close(self) -> None:
        """Fetch no more."""
        for _, task in self._kept.values():
            task.cancel()
        self._kept.clear()
