"""The cheapest way to ask that keeps a TTFT target, with the backup that can still save a late request. Pure.

A way is one replica, which may be one tier of a provider: the cheap tier, the usual one, the dear one. A course is the
way of the primary, the way of a backup, and the latest time at which the backup can still keep the target. Its bill is
an expectation: a cancelled attempt pays its prompt, the winner prompt and answer, and a refused attempt nothing. Both
waits are taken as independent.

Owns the choice for one request at given curves. Does not learn, and takes no money (`ttft_gateway.pool.bills`).

Units: seconds; money as a multiple of the bill of the request on the usual way; shares are fractions of 1.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ttft_gateway.estimation.waits import WaitCurve

_STEPS: Final = 30  # of a target, at which a backup may begin
_LATE_MAX: Final = 0.10  # of the backups may be too late, whatever the primary's curve is: it may have just changed
_MISS_BILL: Final = 20.0  # bill of a miss beyond the permitted ones: a point too many costs a fifth of a bill
_NEAR: Final = 1.25  # times the least share of late backups counts as equal, where none is small enough
_HOPELESS: Final = 0.5  # share of misses at which no money is spent on a target that is missed anyway


class Way(msgspec.Struct, frozen=True):
    """One way to ask.

    Attributes:
        name: name of its replica.
        prompt, answer: bills of the request's prompt and answer here.
        curve: its waits.
        recent: its waits as a primary's way: the last ones of a way that is not in use, else all.
        refused: share of its attempts that are refused.
        is_backup: True if backups may go to it.
        is_billed_whole: True if it bills a cancelled request as if it had run to its end.
    """

    name: str
    prompt: float
    answer: float
    curve: WaitCurve
    recent: WaitCurve
    refused: float = 0.0
    is_backup: bool = True
    is_billed_whole: bool = False

    @property
    def whole(self) -> float:
        """Bill of a request that ends here."""
        return self.prompt + self.answer

    @property
    def lost(self) -> float:
        """Bill of an attempt that is cancelled before its first token."""
        return self.whole if self.is_billed_whole else self.prompt


class Course(msgspec.Struct, frozen=True):
    """A way with the backup that can save it.

    Attributes:
        first: name of the way of the primary.
        backup: name of the way of the backup; None without a backup.
        delay_s: time at which the backup begins; infinite without a backup.
        bill: expected bill.
        missed: expected share of the requests that miss the target.
        in_time: True if nearly all backups that begin then keep the target.
    """

    first: str
    backup: str | None
    delay_s: float
    bill: float
    missed: float
    in_time: bool = False


def course_alone(first: Way, target_s: float, others: Iterable[Way] = ()) -> Course:
    """Return the course without a backup; a refused request goes to the cheapest other way."""
    instead = min(others, key=_whole, default=first)
    bill = (1.0 - first.refused) * first.whole + first.refused * instead.whole
    longer = first.recent.longer(target_s)
    return Course(first.name, None, float("inf"), bill, longer + first.refused * instead.curve.longer(target_s))


def course_with(first: Way, backup: Way, target_s: float, missed_max: float, delay_s_min: float) -> Course:
    """Return the course with a backup at the latest time that keeps the target, or else at the best time."""
    late, refused = first.recent.longer(target_s), first.refused
    best_s, best, in_time = delay_s_min, 2.0, False
    for step in range(_STEPS - 1, -1, -1):
        delay_s = max(delay_s_min, step * target_s / _STEPS)
        too_late = backup.curve.longer(target_s - delay_s)
        missed = (1.0 - refused) * late * too_late + refused * backup.curve.longer(target_s)
        if missed < best - 1e-12:
            best_s, best = delay_s, missed
        if missed <= missed_max and too_late <= _LATE_MAX:
            best_s, best, in_time = delay_s, missed, True
            break
        if delay_s <= delay_s_min:
            break
    bill = (1.0 - refused) * _raced(first, backup, best_s) + refused * backup.whole
    return Course(first.name, backup.name, best_s, bill, best, in_time)


def courses(ways: Sequence[Way], target_s: float, missed_max: float, delay_s_min: float) -> dict[str, Course]:
    """Return the best course from each way, by its name; a way that keeps the target alone gets a late backup, too.

    Args:
        ways: all ways that can be used.
        missed_max: largest share of misses that is wanted.
        delay_s_min: shortest delay of a backup.
    """
    found = {}
    for first in ways:
        others = [way for way in ways if way is not first]
        pairs = [course_with(first, way, target_s, missed_max, delay_s_min) for way in others if way.is_backup]
        in_time = [pair for pair in pairs if pair.in_time]
        found[first.name] = cheapest(in_time or [course_alone(first, target_s, others), *pairs], missed_max)
    return found


def cheapest(found: Sequence[Course], missed_max: float) -> Course:
    """Return the course with the lowest bill, in which misses beyond `missed_max` count as dear."""
    return min(found, key=lambda course: course.bill + _MISS_BILL * max(0.0, course.missed - missed_max))


def is_hopeless(found: Iterable[Course]) -> bool:
    """Return True if most requests miss the target on every course."""
    return min(course.missed for course in found) > _HOPELESS


def rescue(ways: Sequence[Way], left_s: float) -> Way:
    """Return the cheapest way to save a late request.

    Args:
        ways: at least one.
        left_s: time until the target; where it is over, the quickest way counts.
    """
    late = [way.curve.longer(left_s) for way in ways] if left_s > 0.0 else [way.curve.quantile_s(0.9) for way in ways]
    limit = _NEAR * min(late)
    if left_s > 0.0:
        limit = max(_LATE_MAX, limit)
    in_time = [way for way, share in zip(ways, late, strict=True) if share <= limit]
    return min(in_time, key=_whole)


def _raced(first: Way, backup: Way, delay_s: float) -> float:
    """Return the bill of a request that was not refused."""
    longer = first.recent.longer(delay_s)
    if longer <= 0.0:
        return first.whole
    waits_s = backup.curve.parts_s
    beaten = sum([first.recent.longer(delay_s + wait_s) for wait_s in waits_s]) / len(waits_s)
    return (
        (1.0 - longer) * first.whole
        + (longer - beaten) * (first.whole + backup.lost)
        + beaten * (first.lost + backup.whole)
    )


def _whole(way: Way) -> float:
    return way.whole
