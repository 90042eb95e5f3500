"""The fleet as one process sees it, and the way to ask the engine; shared by all leases and gauges of a process. Pure.

A process is *alone* from the first late or lost reply to the next reply in time: no request waits for the engine any
more, and limits are divided by the number of processes last seen. Units: seconds of the loop's clock.
"""

import enum
import math
from collections.abc import Callable
from typing import Final, Protocol

from gateway.share.messages import AWAY_SHARE, Answer, Ask

ASK_S_MAX: Final = 0.09  # time limit of a reply: under 100 ms with the delay of timers
ASK_WAIT_S: Final = 0.001  # wait that limits report while the engine is asked: after it, the reply has usually come
QUIET_S: Final = 0.05  # longest time after a refusal without another ask
IDLE_S: Final = 2.0  # without use, after which unspent amounts and spare slots are given back
_WAITS_S_MAX: Final = 2 * ASK_S_MAX + 0.005  # of one request: it may arrive just after an ask without it was sent
_UNKNOWN_SIZE: Final = 16  # of a fleet that was never counted: too small a part costs less than too large a part
_COUNTED_S_MAX: Final = 0.005  # of the time between two looks of a request, which come every ASK_WAIT_S
_ROUNDING_S: Final = 1e-6


class WhenAway(enum.Enum):
    """The part of each limit that a gateway uses while the engine is away."""

    SHARE = "share"  # an equal part of 0.9 of the limit
    ALONE = "alone"  # all of it
    REFUSE = "refuse"  # none


class WaitAllowance:
    """The time for which something waits for the engine, by default one request.

    A pause of this process does not count: a reply that has come during the pause is read after it.

    Args:
        limit_s: length of the wait, without pauses.
        counted_s_max: longest time that counts between two calls of `lasts`; what is more is a pause.
    """

    __slots__ = ("_counted_s_max", "_left_s", "_now_s")

    def __init__(self, limit_s: float = _WAITS_S_MAX, counted_s_max: float = _COUNTED_S_MAX) -> None:
        self._counted_s_max = counted_s_max
        self._left_s = limit_s - _ROUNDING_S
        self._now_s = math.inf

    def lasts(self, now_s: float) -> bool:
        """Return True if the wait may go on; called at its begin, and again and again."""
        self._left_s -= min(max(0.0, now_s - self._now_s), self._counted_s_max)
        self._now_s = now_s
        return self._left_s > 0


class Requester(Protocol):
    """Something that asks the engine; at most one ask is under way."""

    def ask(self, now_s: float) -> Ask | None:
        """Return the ask that is sent now; None if there is nothing to ask any more."""

    def answered(self, answer: Answer, now_s: float) -> None:
        """Receive the answer, possibly long after the time limit."""

    def lost(self, now_s: float) -> None:
        """There will be no answer; the engine has executed the ask or not."""


class Fleet:
    """The fleet of processes that share limits, as one process sees it.

    Args:
        when_away: the part of each limit to use alone.

    Attributes:
        processes: number of processes in the last reply; 0 before the first.
        expected: number of processes as it is known without the engine; None if it is not.
        is_rejected: returns True while the engine answers, but rejects this process: the others use the whole limit.
        is_alone: True while the engine does not answer in time.
        is_away: True once the asker treats the silence as an outage, until a reply is in time again.
        alone_since_s: time of the last change of `is_alone` to True.
        times_alone: number of these changes.
        back_since_s: time of the last change of `is_alone` to False.
        want: has a requester's ask sent with the next batch.
    """

    __slots__ = (
        "alone_since_s",
        "back_since_s",
        "expected",
        "is_alone",
        "is_away",
        "is_rejected",
        "processes",
        "times_alone",
        "want",
        "when_away",
    )

    def __init__(self, when_away: WhenAway = WhenAway.SHARE) -> None:
        self.when_away = when_away
        self.processes = 0
        self.expected: int | None = None
        self.is_rejected: Callable[[], bool] = bool
        self.is_alone = True
        self.is_away = False
        self.alone_since_s = self.back_since_s = -math.inf
        self.times_alone = 1
        self.want: Callable[[Requester], None] = _ignore

    @property
    def size(self) -> int:
        """Number of processes that may share the limits now."""
        return max(self.processes, self.expected or (0 if self.processes else _UNKNOWN_SIZE))

    @property
    def part(self) -> float:
        """Part of each limit that this process uses alone."""
        if self.when_away is WhenAway.SHARE:
            return 0.0 if not self.processes and self.is_rejected() else AWAY_SHARE / self.size
        return 1.0 if self.when_away is WhenAway.ALONE else 0.0

    def leave(self, now_s: float) -> None:
        """Go on alone."""
        if not self.is_alone:
            self.is_alone = True
            self.alone_since_s = now_s
            self.times_alone += 1

    def come_back(self, now_s: float) -> None:
        """Go on with the engine."""
        self.is_alone = self.is_away = False
        self.back_since_s = now_s


def _ignore(_: Requester) -> None:
    """Send nothing: there is no asker yet."""
