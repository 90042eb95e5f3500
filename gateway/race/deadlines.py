"""Deadlines: of one attempt that has no first content yet, and of one request. Pure.

Each object owns its times; others call its methods. An infinite time is never due.

Units: seconds of the loop's clock.
"""

import enum
import math
from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.race.context import Timeouts
from ttft_gateway.apis.base import PASSED_THROUGH, Call
from ttft_gateway.hedging.contract import RequestFacts

_TRANSIT_S: Final = 0.02  # after a stream's deadline: the caller counts from its own receipt of the last content
_READ_SHARE: Final = 0.8  # of a client's read timeout: it must have received some bytes by then
_LATE_EXPECTATIONS: Final = 3.0  # times the usual time to content: by then an attempt that reasons unseen is overdue
_KEEP_ALIVE_S_MIN: Final = 0.1  # whatever a client's read timeout is: keep-alives are no stream


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
    """

    start_s: float
    total_s: float
    keep_alive_s: float = math.inf
    interval_s: float = math.inf
    retry_s: float = math.inf
    content_s: float = math.inf
    silence_s: float = math.inf

    def keep_alive_after(self, sent_s: float) -> None:
        """Send the next keep-alive one interval after the last bytes to the client, if it reads a stream."""
        self.keep_alive_s = sent_s + self.interval_s

    def next_due_s(self, attempts: Iterable[AttemptDeadlines] = ()) -> float:
        """Return the loop time at which something of the request or of these attempts is due next."""
        due_s = min(self.total_s, self.content_s, self.keep_alive_s, self.retry_s)
        for attempt in attempts:
            due_s = min(due_s, attempt.hedge_s, attempt.failover_s, attempt.give_up_s)
        return due_s


def request_deadlines(call: Call, facts: RequestFacts, timeouts: Timeouts, start_s: float) -> RequestDeadlines:
    """Return the deadlines of a client's call; only a stream can get keep-alives.

    Args:
        start_s: loop time of the request's arrival, before its wait in a queue.
    """
    total_s, deadline_s, read_timeout_s = start_s + timeouts.total_s, facts.deadline_s, facts.read_timeout_s
    if not call.streaming:
        return RequestDeadlines(start_s, min(total_s, start_s + deadline_s) if deadline_s else total_s)
    deadlines = RequestDeadlines(start_s, total_s, start_s + timeouts.commit_status_after_s)
    deadlines.interval_s = timeouts.keepalive_interval_s
    if read_timeout_s:  # else its library would close the connection, and send the request again
        shortened_s = _READ_SHARE * read_timeout_s
        deadlines.keep_alive_s = min(deadlines.keep_alive_s, start_s + shortened_s)
        deadlines.interval_s = min(deadlines.interval_s, max(_KEEP_ALIVE_S_MIN, shortened_s))
    if deadline_s:
        deadlines.silence_s = deadline_s + _TRANSIT_S
        deadlines.content_s = start_s + deadlines.silence_s
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
