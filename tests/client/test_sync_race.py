"""The race of a synchronous client, in an order of events that sockets rarely produce."""

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from ttft_gateway import HedgingTransport
from ttft_gateway.client.asked import Asked, Event
from ttft_gateway.client.config import HedgeConfig
from ttft_gateway.client.hedger import ClientAttempt, Failure, Hedger
from ttft_gateway.client.httpx_sync import HttpxSender
from ttft_gateway.client.race import Overtaken
from ttft_gateway.client.sockets import current
from ttft_gateway.client.sync_race import SyncRace, ThreadedRace
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome

_CONFIG = HedgeConfig(warmup_delay=0.5, warmup_requests=100_000, budget_percent=100.0, max_hedges=2)
_TIME_LIMIT_S = 60.0


class _Replica(httpx.BaseTransport):
    """Fails the primary after its first backup was sent, the first backup on demand, and answers the second one.

    Attributes:
        now_s: the time.
        may_fail: set when the first backup is to fail.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.may_fail = threading.Event()
        self._requests = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._requests += 1
        number = self._requests
        if number == 1:
            watch = current.watch
            assert watch is not None
            self.now_s = 1.0
            assert not watch.wait(None, 0, 0.0)
            self.now_s = 2.0
        elif number == 2:
            assert self.may_fail.wait(_TIME_LIMIT_S)
        else:
            return httpx.Response(200, content=b"hello")
        raise httpx.ConnectError("refused")


class _Race:
    """A race in which the first backup fails after the second was approved and before it was sent."""

    def __init__(self, race: Any, replica: _Replica) -> None:
        self._race = race
        self._replica = replica

    def __getattr__(self, name: str) -> Any:
        return getattr(self._race, name)

    def late(self) -> Any:
        backup = self._race.late()
        if backup is not None and backup.number == 2:
            self._replica.may_fail.set()
            pause = threading.Event()
            while self._race.attempts[1].outcome is None:
                pause.wait(0.001)
        return backup


def test_a_backup_that_is_sent_while_the_last_one_fails_is_awaited() -> None:
    """The second backup wins although the first one has failed, and nothing is left in the policy."""
    replica = _Replica()
    transport = HedgingTransport(_CONFIG)
    transport.hedger.clock, transport.adapter = lambda: replica.now_s, HttpxSender(replica)
    transport.hedger.budget.credits(lambda: 0.5).requests.spend(-5.0)  # a client in use has saved some
    entrant: Any = transport.enter(httpx.Request("GET", "http://replica/"))
    race = entrant.race = _Race(entrant.race, replica)
    threads: set[threading.Thread] = set()
    opened = SyncRace(entrant, threads).run()
    assert (race.winner.number, opened.response.status_code) == (2, 200)
    opened.body.close()
    race.close()
    for thread in list(threads):
        thread.join(_TIME_LIMIT_S)
    population = next(iter(transport.hedger._populations.values()))
    assert [each.in_flight for each in population.pool.replicas] == [0] * len(population.pool.replicas)


class _Exit(BaseException):
    """An exit of a thread, as by a signal's handler or a debugger."""


class _Attempts:
    """Attempts that do what is written for them; they send nothing.

    Args:
        primary, backup: called for the attempt; returns its response or raises an error.
    """

    def __init__(self, primary: Callable[["_Attempts"], str], backup: Callable[["_Attempts"], str]) -> None:
        self.now_s = 0.0
        hedger = Hedger(replace(_CONFIG, warmup_delay=0.001), clock=lambda: self.now_s, rand=lambda: 0.5)
        self.race = hedger.race(Asked(("http://a:", "GET /"), RequestFacts(coin=0.5), Event.HEADERS))
        hedger.credits.requests.spend(-5.0)
        self.primary = self.race.begin()
        self.closed: list[str] = []
        self._work = (primary, backup)

    async def open(self, attempt: ClientAttempt) -> str:
        return self._work[min(attempt.number, 1)](self)

    def failure(self, _error: Exception) -> Failure:
        return Failure(Outcome.FAILED)

    async def close(self, opened: str) -> None:
        self.closed.append(opened)

    def win(self, number: int, *, then: BaseException | None = None) -> str:
        """Bring the first event, and perhaps an error after it."""
        assert self.race.on_first(self.race.attempts[number])
        if then is not None:
            raise then
        return f"attempt {number}"

    def late(self) -> None:
        """Be late, in the thread of the primary, until a backup has won or ended."""
        watch, self.now_s, pause = current.watch, 1.0, threading.Event()
        assert watch is not None
        watch.wait(None, 0, 0.0)
        while len(self.race.attempts) == 1 or (self.race.attempts[1].outcome is None and self.race.winner is None):
            pause.wait(0.001)

    def run(self, kind: type[SyncRace[str]]) -> str:
        """Run the race and look for what it has left in the policy."""
        threads: set[threading.Thread] = set()
        try:
            return kind(self, threads).run()
        finally:
            for thread in list(threads):
                thread.join(_TIME_LIMIT_S)
            self.race.close()
            assert [each.in_flight for each in self.race._pool.replicas] == [0, 0, 0]


def _raise(error: BaseException) -> str:
    raise error


def _late_win(race: _Attempts) -> str:
    race.late()
    return race.win(0)


def _late_failure(race: _Attempts) -> str:
    race.late()
    raise httpx.ConnectError("refused")


def _late_loss(race: _Attempts) -> str:
    race.late()
    raise Overtaken


KINDS = pytest.mark.parametrize("kind", [SyncRace, ThreadedRace])


@KINDS
def test_a_backup_with_a_thread_that_exits_leaves_the_race_to_the_primary(kind: type[SyncRace[str]]) -> None:
    """The primary's answer is returned."""
    assert _Attempts(_late_win, lambda _: _raise(_Exit())).run(kind) == "attempt 0"


@KINDS
def test_after_a_failed_primary_a_backup_with_a_thread_that_exits_is_not_awaited(kind: type[SyncRace[str]]) -> None:
    """The primary's error is raised."""
    with pytest.raises(httpx.ConnectError):
        _Attempts(_late_failure, lambda _: _raise(_Exit())).run(kind)


@KINDS
def test_a_primary_that_exits_ends_the_race_for_its_caller(kind: type[SyncRace[str]]) -> None:
    """The caller gets what the primary has raised, in its own thread or in another one."""
    with pytest.raises(_Exit):
        _Attempts(lambda _: _raise(_Exit()), lambda race: race.win(1)).run(kind)


@KINDS
@pytest.mark.parametrize("error", [_Exit(), OSError("no more files")])
def test_a_backup_that_breaks_after_it_has_won_is_not_awaited(kind: type[SyncRace[str]], error: BaseException) -> None:
    """The caller gets its error: the primary was closed, because the backup had won."""
    with pytest.raises(type(error)):
        _Attempts(_late_loss, lambda race: race.win(1, then=error)).run(kind)


@KINDS
def test_a_backup_without_a_thread_leaves_the_race_to_the_primary(
    kind: type[SyncRace[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the lack of threads nor of memory for one ends a race."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if kind is SyncRace or any(each.name.startswith("ttft-hedge-a") for each in threading.enumerate()):
            raise MemoryError
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert _Attempts(_late_win, lambda race: race.win(1)).run(kind) == "attempt 0"
