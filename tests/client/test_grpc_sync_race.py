"""The race of an RPC over a synchronous channel, without a server and without time: events at the same instant."""

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc

from ttft_gateway.client.asked import Asked, Event
from ttft_gateway.client.config import HedgeConfig
from ttft_gateway.client.grpc_sync_race import Alarm, Appointment, SyncGrpcRace
from ttft_gateway.client.hedger import ClientAttempt, Hedger
from ttft_gateway.hedging.contract import RequestFacts

CONFIG = HedgeConfig(warmup_delay=2.0, budget_percent=100.0)
_TIME_LIMIT_S = 60.0


class Failed(grpc.RpcError, grpc.Call):
    """The error of an RPC."""

    def __init__(self, code: grpc.StatusCode, pushback: str | None = None) -> None:
        self._code = code
        self._pushback = pushback

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return ""

    def initial_metadata(self) -> Any:
        return ()

    def trailing_metadata(self) -> Any:
        return () if self._pushback is None else (("grpc-retry-pushback-ms", self._pushback),)

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> Any:
        return None

    def cancel(self) -> Any:
        return False

    def add_callback(self, callback: Any) -> Any:
        return False


UNAVAILABLE = Failed(grpc.StatusCode.UNAVAILABLE)


class Call:
    """A call that ends with `end` or `cancel`."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Any], None]] = []
        self._error: Any = None
        self._is_ended = False
        self.is_cancelled = False
        self._may_end = threading.Event()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self._is_ended:
            callback(self)
        else:
            self._callbacks.append(callback)

    def __next__(self) -> str:
        """Wait for the first message; raises the error of the call."""
        self._may_end.wait()
        if self._error is not None:
            raise self._error
        return "first"

    def add_callback(self, _callback: Callable[[], None]) -> bool:
        return True

    def end(self, error: Any = None) -> None:
        """End with a response, or with an error."""
        callbacks, self._callbacks, self._error, self._is_ended = self._callbacks, [], error, True
        self._may_end.set()
        for callback in callbacks:
            callback(self)

    def exception(self) -> Any:
        if self.is_cancelled:
            raise grpc.FutureCancelledError
        return self._error

    def cancel(self) -> bool:
        self.is_cancelled = True
        self.end()
        return True


class Site:
    """A hedger with a clock that stands still, and the calls of one RPC."""

    def __init__(
        self, timeout_s: float | None = None, config: HedgeConfig = CONFIG, *, is_stream: bool = False
    ) -> None:
        self.now_s = 0.0
        self._is_stream = is_stream
        self.hedger = Hedger(config, clock=lambda: self.now_s, rand=lambda: 0.5)
        self.left_s: list[float | None] = []
        self.calls: list[Call] = []
        self.on_start: dict[int, Callable[[], Any]] = {}
        race = self.hedger.race(Asked(("grpc://a:", "/p.S/M"), RequestFacts(coin=0.5), Event.HEADERS))
        self.hedger.credits.requests.spend(-5.0)  # a client in use has saved some
        self._due: list[Callable[[], None]] = []
        alarm: Any = self
        self.race = SyncGrpcRace(race, alarm, self._start, is_stream=is_stream)
        self.race.begin(race.begin(math.inf if timeout_s is None else timeout_s))

    def after(self, _delay_s: float, function: Callable[[], None]) -> Appointment:
        """Take the place of the alarm."""
        self._due.append(function)
        return Appointment(self.now_s, len(self._due), function)

    def advance(self, seconds: float) -> None:
        """Let time pass and make the decisions that are due; wait for the threads that send backups."""
        self.now_s += seconds
        due, self._due = self._due, []
        for function in due:
            function()
        attempts, pause = self.race.race.attempts, threading.Event()
        while self._is_stream and len(attempts) > 1 and attempts[1].outcome is None:
            pause.wait(0.001)  # the thread of the primary goes on
        for thread in threading.enumerate():
            if thread.name.startswith("ttft-hedge") and not self._is_stream:
                thread.join()

    def _start(self, attempt: ClientAttempt, left_s: float | None) -> Call:
        self.left_s.append(left_s)
        self.on_start.get(attempt.number, lambda: None)()
        self.calls.append(Call())
        return self.calls[-1]

    @property
    def in_flight(self) -> int:
        """Number of attempts that the policy takes for unfinished."""
        pools = [found.pool for found in self.hedger._populations.values()]
        return sum(replica.in_flight for pool in pools for replica in pool.replicas)


def test_the_backup_gets_the_time_that_is_left() -> None:
    """A backup has the deadline of its RPC; the loser's call is cancelled."""
    site = Site(timeout_s=10.0)
    site.advance(2.0)
    site.calls[1].end()
    assert (site.race.wait().call, site.left_s, site.race.left_s()) == (site.calls[1], [10.0, 8.0], 8.0)
    assert (site.calls[0].is_cancelled, site.in_flight) == (True, 0)


def test_no_backup_after_the_deadline() -> None:
    """An RPC gets no backup if its deadline comes before it is late."""
    site = Site(timeout_s=1.5)
    site.advance(60.0)
    site.calls[0].end(Failed(grpc.StatusCode.DEADLINE_EXCEEDED))
    assert (site.race.wait().error is not None, len(site.calls), site.in_flight) == (True, 1, 0)


def test_a_failure_while_a_backup_is_sent_does_not_end_the_race() -> None:
    """A backup that the policy has approved is awaited, although the last attempt fails before its call exists."""
    site = Site()
    site.on_start[1] = lambda: site.calls[0].end(UNAVAILABLE)
    site.advance(2.0)
    assert site.race.answer is None
    site.calls[1].end()
    assert (site.race.wait().call, site.in_flight) == (site.calls[1], 0)


def test_a_winner_while_a_backup_is_sent_cancels_it() -> None:
    """A call that comes into being after the end of its race is cancelled."""
    site = Site()
    site.on_start[1] = site.calls[0].end
    site.advance(2.0)
    assert (site.race.wait().call, site.calls[1].is_cancelled, site.in_flight) == (site.calls[0], True, 0)


def test_a_caller_that_cancels_while_a_backup_is_sent() -> None:
    """A cancelled race cancels a call that comes into being later."""
    site = Site()
    site.on_start[1] = site.race.cancel
    site.advance(2.0)
    assert (site.race.answer is not None, site.calls[1].is_cancelled, site.in_flight) == (True, True, 0)


def test_a_backup_that_cannot_be_sent_leaves_the_race_to_the_primary() -> None:
    """An error of the channel is no answer of the server."""

    def closed() -> None:
        raise ValueError("closed")

    site = Site()
    site.on_start[1] = closed
    site.advance(2.0)
    site.calls[0].end()
    assert (site.race.wait().call, site.in_flight) == (site.calls[0], 0)


class _Exit(BaseException):
    """An exit of a thread, as by a signal's handler or a debugger."""


class _Strange(Failed):
    """An error without a status."""

    def code(self) -> Any:
        return None


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("error", [_Exit(), _Strange(grpc.StatusCode.OK), MemoryError()])
def test_a_primary_that_ends_in_any_way_ends_its_race(error: BaseException, *, is_stream: bool) -> None:
    """The caller gets the error, and does not wait for ever."""
    site = Site(is_stream=is_stream)
    site.calls[0].end(error)
    assert (site.race.wait(_TIME_LIMIT_S).error, site.in_flight) == (error, 0)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("error", [_Exit(), _Strange(grpc.StatusCode.OK)])
def test_a_backup_that_ends_in_any_way_leaves_the_race_to_the_primary(error: BaseException, *, is_stream: bool) -> None:
    """The primary's answer is returned."""
    site = Site(is_stream=is_stream)
    send = site._start

    def start(attempt: ClientAttempt, left_s: float | None) -> Call:
        call = send(attempt, left_s)
        call.end(error)
        return call

    site.race._start = start
    site.advance(2.0)
    assert site.race.answer is None
    site.calls[0].end()
    assert site.race.wait(_TIME_LIMIT_S).call is site.calls[0]


def test_an_exit_of_a_thread_that_sends_a_backup_leaves_the_race_to_the_primary() -> None:
    """An attempt without a call has ended."""

    def leave() -> None:
        raise _Exit

    site = Site()
    site.on_start[1] = leave
    site.advance(2.0)
    site.calls[0].end()
    assert (site.race.wait(_TIME_LIMIT_S).call, site.in_flight) == (site.calls[0], 0)


def test_an_error_while_a_winner_is_taken_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug after the first event costs the answer, and no caller waits for it."""
    site, end = Site(), SyncGrpcRace._end
    errors = [ZeroDivisionError()]

    def broken(race: SyncGrpcRace, answer: Any) -> None:
        if errors:
            raise errors.pop()
        end(race, answer)

    monkeypatch.setattr(SyncGrpcRace, "_end", broken)
    site.calls[0].end()
    assert (type(site.race.wait(_TIME_LIMIT_S).error), site.in_flight) == (ZeroDivisionError, 0)


def test_an_error_of_one_callback_keeps_no_other_one_from_its_call() -> None:
    """The callbacks of a call are its user's code."""

    def fail() -> None:
        raise ValueError

    site, called = Site(), []
    site.race.when_over(fail)
    site.race.when_over(lambda: called.append(1))
    site.calls[0].end()
    assert called == [1]


@pytest.mark.parametrize(("pushback", "calls"), [("-1", 2), ("soon", 2), (None, 3)])
def test_a_server_that_forbids_attempts_gets_none(pushback: str | None, calls: int) -> None:
    """A pushback of one attempt that is negative or no number ends the backups of its RPC."""
    site = Site(config=HedgeConfig(warmup_delay=2.0, budget_percent=100.0, max_hedges=2))
    site.advance(2.0)
    site.calls[0].end(Failed(grpc.StatusCode.UNAVAILABLE, pushback))
    for _ in range(5):
        site.advance(1.0)
    assert len(site.calls) == calls
    site.calls[1].end()
    assert site.in_flight == 0


def test_an_alarm_ends_with_its_last_call() -> None:
    """Functions are called in the order of their times, and the thread ends after them or when it is closed."""
    alarm, called = Alarm(), threading.Semaphore(0)
    order: list[str] = []
    alarm.after(3600.0, called.release)
    alarm.after(0.02, called.release)
    alarm.after(0.0, lambda: order.append("first")).cancel()
    alarm.after(0.0, lambda: order.append("second"))
    called.acquire()
    assert order == ["second"]
    alarm.close()
    assert alarm.after(0.0, called.release).function is not None
    other = Alarm()
    other.after(0.0, called.release)
    called.acquire()
    for thread in threading.enumerate():
        if thread.name == "ttft-hedge-alarm":
            thread.join()
    assert other._thread is None
