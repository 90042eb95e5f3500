"""Detects from the attempts that wait at one replica that the replica has stopped answering.

A loser sends no signal to the breaker, so this detects a replica that holds requests without failing them
(docs/hedging.md, "Replicas that stop answering"). Independent of other replicas: if all are suspect, the caller
ignores the result. Responses with an error concern the breaker, not this detector.

Units: seconds.
"""

import math
from collections.abc import Mapping
from itertools import islice
from typing import Final

LATE_PREDICTIONS: Final = 3.0  # two consecutive at 1.5 fired a thousand times per run on healthy fleets
"""Multiple of its prediction that an attempt has waited when it is late."""
LATE_MAX: Final = 3
"""Consecutive late attempts, all sent after the last one that was answered, that make a replica suspect."""
_LATE_MIN_S: Final = 1.0
_LATE_OVERDUE_S: Final = 0.66  # a late attempt is overdue for at least 2/3 s: after a prediction of 1/3 s
_OLDEST_MAX: Final = 8  # oldest waiting attempts: bounds the work per call

_Waiting = tuple[float, float, float]  # due time, predicted TTFT, time at which it was sent


class StallDetector:
    """One replica's attempts without a first content, identified by numbers of the caller's choice.

    An attempt that a later one has overtaken is a straggler, and shows nothing about the replica: it is removed.

    Attributes:
        due_s: earliest due time among the oldest attempts, before which none of them is late; infinite without any.
            Attempts of other gateways are included at their last report, and while there is no own attempt.
        late: late attempts given up since the last first content, and the late attempts of other gateways.
        barred_until_s: time before which a probe is left to other gateways.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}  # oldest first
        self.due_s = math.inf
        self.late = 0
        self.barred_until_s = -math.inf
        self._answered_s = -math.inf
        self._probe_s = -math.inf
        self._others_late = 0
        self._others_due_s = math.inf

    def sent(self, attempt: int, predicted_s: float, now_s: float) -> None:
        """Add an attempt that was sent."""
        waiting, due_s = self._waiting, now_s + predicted_s
        waiting[attempt] = (due_s, predicted_s, now_s)
        if due_s < self.due_s and len(waiting) <= _OLDEST_MAX:
            self.due_s = due_s

    def first_content(self, attempt: int, now_s: float) -> None:
        """Clear the suspicion: attempts that are late by now, or were sent before this one, no longer count."""
        waiting = self._waiting
        answered = waiting.pop(attempt, None)
        if waiting and answered is not None:
            for older, (_, _, sent_s) in tuple(waiting.items()):
                if sent_s >= answered[2]:
                    break
                del waiting[older]
        self.due_s = _earliest_s(waiting) if waiting else self._others_due_s
        self.late = self._others_late = 0
        self._answered_s = now_s

    def given_up(self, attempt: int, now_s: float) -> None:
        """Remove an attempt that was cancelled or timed out without a first content."""
        waiting_attempt = self._remove(attempt)
        if waiting_attempt is not None and self._answered_s < _late_s(waiting_attempt) <= now_s:
            self.late += 1

    def failed(self, attempt: int) -> None:
        """Remove an attempt that ended with an error."""
        self._remove(attempt)

    def is_suspect(self, now_s: float) -> bool:
        """Return True if three attempts since the last first content are, or were, late."""
        late = self.late
        if now_s < self.due_s + _LATE_OVERDUE_S:
            return late >= LATE_MAX
        if late < LATE_MAX <= late + len(self._waiting):
            for waiting_attempt in islice(self._waiting.values(), _OLDEST_MAX):
                if waiting_attempt[2] > now_s - _LATE_MIN_S:
                    break  # neither this attempt nor a younger one can be late
                late += self._answered_s < _late_s(waiting_attempt) <= now_s
        return late >= LATE_MAX

    def take_probe(self, now_s: float, every_s: float) -> bool:
        """Return True if a suspect replica may get a primary now; the next probe may follow after `every_s`."""
        if now_s < self._probe_s + every_s or now_s < self.barred_until_s:
            return False
        self._probe_s = now_s
        return True

    def overdue_s(self, now_s: float) -> float:
        """Return the time since the earliest missed prediction among the oldest attempts; 0 if none is missed.

        May influence the choice of primaries, but not the predictions that scale timers.
        """
        return now_s - self.due_s if now_s > self.due_s else 0.0

    def restore(self, late: int) -> None:
        """Go on with late attempts from before a restart."""
        self.late += late

    def state(self, now_s: float) -> int:
        """Return the number of own late attempts that a restart keeps."""
        return min(LATE_MAX, self.own_late(now_s))

    # state shared with other gateways

    def own_late(self, now_s: float) -> int:
        """Return the number of late attempts of this gateway."""
        oldest = islice(self._waiting.values(), _OLDEST_MAX)
        waiting = sum(self._answered_s < _late_s(each) <= now_s for each in oldest)
        return self.late - self._others_late + waiting

    def own_overdue_s(self, now_s: float) -> float:
        """Return `overdue_s` without the attempts of other gateways."""
        if not self._waiting:
            return 0.0
        return max(0.0, now_s - _earliest_s(self._waiting))

    def answered_elsewhere(self, now_s: float) -> None:
        """Record a first content at another gateway: attempts that are late by now no longer count."""
        self.late = self._others_late = 0
        self._answered_s = now_s

    def put_others(self, late: int, due_s: float) -> None:
        """Replace the attempts of other gateways: the number of late ones, and the earliest due time."""
        self.late += late - self._others_late
        self._others_late, self._others_due_s = late, due_s
        self.due_s = min(_earliest_s(self._waiting), due_s) if self._waiting else due_s

    def grant_probe(self) -> None:
        """Let the next request be a probe: other gateways send none."""
        self._probe_s = self.barred_until_s = -math.inf

    def _remove(self, attempt: int) -> _Waiting | None:
        waiting = self._waiting
        removed = waiting.pop(attempt, None)
        self.due_s = _earliest_s(waiting) if waiting else self._others_due_s
        return removed


def _earliest_s(waiting: Mapping[int, _Waiting]) -> float:
    """Return the earliest due time among the oldest attempts; there is at least one."""
    return min(islice(waiting.values(), _OLDEST_MAX))[0]


def _late_s(waiting: _Waiting) -> float:
    _, predicted_s, sent_s = waiting
    return sent_s + max(LATE_PREDICTIONS * predicted_s, _LATE_MIN_S)
