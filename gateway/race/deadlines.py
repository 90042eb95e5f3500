"""The times of a race: its limits, the deadlines of a request and of its attempts, and the timer that calls the race.

Each object of deadlines owns its times; others call its methods. An infinite time is never due.

A race sets a wake-up for every request, and most are cancelled or postponed, because answers come long before. The
timers of asyncio are Python objects that are compared in Python. Here setting a wake-up is one step of a heap of
tuples, and cancelling or postponing it takes none: the entry is found out of date when its time comes. A call is made
no earlier than its time; due calls are made in the order of their times.

Units: seconds of the loop's clock.
"""

import asyncio
import enum
import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from ttft_gateway.apis.base import PASSED_THROUGH, Call
from ttft_gateway.hedging.contract import RequestFacts

_TRANSIT_S: Final = 0.02  # after a stream's deadline: the caller counts from its own receipt of the last content
_READ_SHARE: Final = 0.8  # of a client's read timeout: it must have received some bytes by then
_LATE_EXPECTATIONS: Final = 3.0  # times the usual time to content: by then an attempt that reasons unseen is overdue
_KEEP_ALIVE_S_MIN: Final = 0.1  # whatever a client's read timeout is: keep-alives are no stream
_STALE_MAX: Final = 256  # entries out of date in the heap; above it, they are at most half of all


class Timeouts(msgspec.Struct, frozen=True):
    """Time limits of a request, in seconds.

    Attributes:
        ttft_failover_s: time without first content after which another attempt is started.
        ttft_failover_per_token_s: addition to `ttft_failover_s` per prompt token.
        ttft_max_s: time without first content after which an attempt is given up.
        stall_s: longest silence in a stream of text, after first content.
        stall_thinking_s: the same while the model sends reasoning.
        stall_tool_call_s: the same within a tool call.
        total_s: longest duration of the whole request.
        commit_status_after_s: time after which a streaming client gets its 200 even without content.
        keepalive_interval_s: longest silence towards a streaming client from then on; a keep-alive ends it.
        retry_after_s_max: longest Retry-After that is waited out before a fallback is used.
    """

    ttft_failover_s: float
    ttft_failover_per_token_s: float
    ttft_max_s: float
    stall_s: float
    stall_thinking_s: float
    stall_tool_call_s: float
    total_s: float
    commit_status_after_s: float
    keepalive_interval_s: float
    retry_after_s_max: float


class Due(enum.Enum):
    """An action that is due of an attempt."""

    GIVE_UP = "give up"
    FAILOVER = "failover"  # start another attempt, and let this attempt continue
    HEDGE = "hedge"  # ask its pool for a backup


class AttemptDeadlines(msgspec.Struct, eq=False, gc=False):
    """Deadlines of an attempt until its first content; by default nothing is ever due.

    Attributes:
        start_s: loop time of the attempt's start.
        timeout_s: loop time at which its TTFT timeout is over, whatever the client's own deadline is.
        failover_s: loop time at which another attempt is started while it continues, sooner than `timeout_s` where the
            caller's deadline leaves no time.
        give_up_s: loop time at which it has failed.
        hedge_s: loop time at which a backup is next requested.
        hedge_after_s: time from the attempt's start to the first such request; None if there is none.
        overdue: `failover_s` has passed, and another attempt was started or waits.
    """

    start_s: float
    timeout_s: float = math.inf
    failover_s: float = math.inf
    give_up_s: float = math.inf
    hedge_s: float = math.inf
    hedge_after_s: float | None = None
    overdue: bool = False

    def hedge_after(self, after_s: float) -> None:
        """Request a backup `after_s` after the start; infinite: never."""
        if after_s != math.inf:
            self.hedge_after_s = after_s
            self.hedge_s = self.start_s + after_s

    def await_reasoning(self, expected_s: float, timeouts: Timeouts, deadline_s: float | None = None) -> None:
        """Extend the deadlines of an attempt that reasons unseen before its content.

        Args:
            expected_s: usual time to content; 0 if it is unknown.
            deadline_s: the caller's deadline, None if it has none. Half of it is reserved for another attempt, unless
                that would be too late as well.
        """
        timeout_s = min(_LATE_EXPECTATIONS * expected_s, timeouts.stall_thinking_s)
        self.timeout_s = max(self.timeout_s, self.start_s + timeout_s)
        failover_s = self.timeout_s
        if deadline_s is not None and expected_s <= deadline_s / 2:
            failover_s = min(failover_s, self.start_s + deadline_s / 2)
        self.failover_s = max(self.failover_s, failover_s)
        self.give_up_s = max(self.give_up_s, self.start_s + timeouts.stall_thinking_s)

    def await_content(self, give_up_s: float) -> None:
        """Replace all deadlines by `give_up_s`: the attempt works, so no other attempt is started."""
        self.hedge_s = self.failover_s = math.inf
        self.give_up_s = give_up_s
        self.overdue = False

    def forgive(self, late_s: float) -> None:
        """Postpone everything by a time in which the gateway did not run."""
        self.hedge_s += late_s
        self.failover_s += late_s
        self.give_up_s += late_s

    def due(self, now_s: float) -> Due | None:
        """Return what is due now, most final first."""
        if now_s >= self.give_up_s:
            return Due.GIVE_UP
        if now_s >= self.failover_s:
            return Due.FAILOVER
        return Due.HEDGE if now_s >= self.hedge_s else None


class RequestDeadlines(msgspec.Struct, eq=False, gc=False):
    """Deadlines of a request.

    Attributes:
        start_s: loop time of the request's arrival, before its wait in a queue.
        total_s: loop time at which the request ends, whatever happens.
        keep_alive_s: loop time of the next keep-alive.
        interval_s: longest silence towards the client after the first keep-alive; infinite if it reads no stream.
        retry_s: loop time at which a retry is due; finite while one waits.
        content_s: loop time at which the stream ends if the client has received no new content; of no meaning while a
            winner's content is forwarded.
        silence_s: longest silence of content in the stream; infinite without a deadline of the caller. Keep-alives do
            not end it.
        recovery_s: loop time by which an attempt has to carry on a broken stream; of no meaning while it has.
    """

    start_s: float
    total_s: float
    keep_alive_s: float = math.inf
    interval_s: float = math.inf
    retry_s: float = math.inf
    content_s: float = math.inf
    silence_s: float = math.inf
    recovery_s: float = math.inf

    def keep_alive_after(self, sent_s: float) -> None:
        """Send the next keep-alive one interval after the last bytes to the client, if it reads a stream."""
        self.keep_alive_s = sent_s + self.interval_s

    def next_due_s(self, attempts: Iterable[AttemptDeadlines] = ()) -> float:
        """Return the loop time at which something of the request or of these attempts is due next."""
        due_s = min(self.total_s, self.content_s, self.keep_alive_s, self.retry_s, self.recovery_s)
        for attempt in attempts:
            due_s = min(due_s, attempt.hedge_s, attempt.failover_s, attempt.give_up_s)
        return due_s


def request_deadlines(call: Call, facts: RequestFacts, timeouts: Timeouts, start_s: float) -> RequestDeadlines:
    """Return the deadlines of a client's call; only a stream can get keep-alives.

    Args:
        start_s: loop time of the request's arrival, before its wait in a queue.
    """
    total_s, deadline_s, read_timeout_s = timeouts.total_s, facts.deadline_s, facts.read_timeout_s
    if facts.total_s < total_s:
        total_s = facts.total_s
    silence_s = deadline_s if facts.silence_s is None else facts.silence_s
    if not call.streaming:
        if silence_s and silence_s < total_s:
            total_s = silence_s
        deadlines = RequestDeadlines(start_s, start_s + total_s)
        if deadline_s:
            deadlines.content_s = start_s + deadline_s
        return deadlines
    total_s += start_s
    deadlines = RequestDeadlines(start_s, total_s, start_s + timeouts.commit_status_after_s)
    deadlines.interval_s = timeouts.keepalive_interval_s
    if read_timeout_s:  # else its library would close the connection, and send the request again
        shortened_s = _READ_SHARE * read_timeout_s
        deadlines.keep_alive_s = min(deadlines.keep_alive_s, start_s + shortened_s)
        deadlines.interval_s = min(deadlines.interval_s, max(_KEEP_ALIVE_S_MIN, shortened_s))
    if deadline_s and silence_s:
        deadlines.silence_s = silence_s + _TRANSIT_S
        deadlines.content_s = start_s + deadline_s + _TRANSIT_S
    return deadlines


def attempt_deadlines(call: Call, facts: RequestFacts, timeouts: Timeouts, start_s: float) -> AttemptDeadlines:
    """Return the deadlines of an attempt of a client's call.

    Args:
        start_s: loop time of the attempt's start.
    """
    if not call.streaming and not call.timed and call.api not in PASSED_THROUGH:
        return AttemptDeadlines(start_s)  # the whole answer arrives in one piece: only its end is timed
    timeout_s = start_s + (timeouts.ttft_failover_s + timeouts.ttft_failover_per_token_s * facts.prompt_tokens)
    failover_s, give_up_s = timeout_s, start_s + timeouts.ttft_max_s
    if facts.deadline_s is not None:  # leave time for another attempt
        failover_s = min(timeout_s, start_s + facts.deadline_s / 2)
    return AttemptDeadlines(start_s, timeout_s, failover_s, give_up_s if give_up_s > failover_s else failover_s)


def recovery_deadlines(facts: RequestFacts, timeouts: Timeouts, start_s: float) -> AttemptDeadlines:
    """Return the deadlines of an attempt that continues a stream: it fails instead of being joined by another attempt.

    Args:
        facts: facts about the call of the attempt.
        start_s: loop time of the attempt's start.
    """
    timeout_s = start_s + (timeouts.ttft_failover_s + timeouts.ttft_failover_per_token_s * facts.prompt_tokens)
    return AttemptDeadlines(start_s, timeout_s, math.inf, timeout_s)


class Wakeup(msgspec.Struct, eq=False):
    """One function that is called at a time; it may find nothing due and set the next call.

    Attributes:
        queue: the queue of the loop.
        callback: called without arguments.
        at_s: loop time of the last call that was set.
        entry_s: time of its entry in the heap, not after `at_s`; infinite while it has no entry.
    """

    queue: "TimerQueue"
    callback: Callable[[], None]
    at_s: float = math.inf
    entry_s: float = math.inf

    def no_later_than(self, at_s: float) -> None:
        """Call the function at `at_s`, or earlier if an earlier call is set."""
        if at_s < self.at_s or self.entry_s == math.inf:
            self.at(at_s)

    def at(self, at_s: float) -> None:
        """Call the function at `at_s`, in place of any call that is set."""
        self.at_s = at_s
        if at_s < self.entry_s:
            self.queue.add(at_s, self)

    def cancel(self) -> None:
        """Call nothing any more."""
        if self.entry_s != math.inf:
            self.entry_s = math.inf
            self.queue.note_stale()
        self.callback = _nothing  # the owner of the function would be part of a cycle


class TimerQueue:
    """The wake-ups of one loop.

    Args:
        loop: event loop with the clock and the one timer.

    Attributes:
        stale: number of entries in the heap that are out of date.
    """

    __slots__ = ("_due_s", "_heap", "_loop", "_numbers", "_timer", "stale")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Wakeup]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf  # time at which the loop's timer runs
        self.stale = 0

    def add(self, at_s: float, wakeup: Wakeup) -> None:
        """Add the entry of a wake-up, in place of a later one."""
        replaced_s, wakeup.entry_s = wakeup.entry_s, at_s
        heapq.heappush(self._heap, (at_s, next(self._numbers), wakeup))
        if at_s < self._due_s:
            self._wait(at_s)
        if replaced_s != math.inf:
            self.note_stale()

    def note_stale(self) -> None:
        """Count an entry that is out of date from now on."""
        self.stale += 1
        if self.stale > _STALE_MAX and 2 * self.stale > len(self._heap):
            self._heap[:] = [entry for entry in self._heap if entry[0] == entry[2].entry_s]
            heapq.heapify(self._heap)
            self.stale = 0

    def _wait(self, until_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = until_s
        self._timer = self._loop.call_at(until_s, self._run)

    def _run(self) -> None:
        """Make the due calls."""
        self._timer, self._due_s = None, math.inf
        heap, now_s = self._heap, self._loop.time()
        try:
            while heap:
                entry_s, _, wakeup = heap[0]
                if entry_s != wakeup.entry_s:
                    heapq.heappop(heap)
                    self.stale -= 1
                elif entry_s > now_s:
                    break
                elif wakeup.at_s > now_s:  # it was postponed
                    wakeup.entry_s = wakeup.at_s
                    heapq.heapreplace(heap, (wakeup.at_s, next(self._numbers), wakeup))
                else:
                    heapq.heappop(heap)
                    wakeup.entry_s = math.inf
                    wakeup.callback()
        finally:  # the loop reports a callback that raises; the other calls must still be made
            if heap and heap[0][0] < self._due_s:
                self._wait(heap[0][0])


def _nothing() -> None:
    """Do nothing."""
