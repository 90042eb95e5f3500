"""Detects from all of a replica's attempts, cancelled ones included, that it is much slower than the other replicas.

A hedge that wins cancels the slow attempt, so its TTFT is never seen; its wait is a lower bound (a censored sample). An
attempt counts as slow if it waited for over 1.75 times what is usual at the other replicas, answered or not, as quick
if it was answered sooner, and shows nothing if it was given up sooner. A sequential test (Page's cumulative sum of
logarithms of likelihood ratios) compares the share of slow ones with the share that is usual at the other replicas.

For a healthy replica (independent attempts, slow ones at most the expected share), false alarms are on
average at least e^14 of its own attempts apart, 1.2 million (Lorden 1971). A replica of which nine in ten attempts are
slow is found after 8 to 20 of them: the larger the usual share, the later. A replica that is always 1.6 times as slow
as the only other one may be called slow now and then.

Attempts of other gateways count like own ones, so that many gateways with few requests each find a replica together.

Independent of replicas that stop answering altogether (stall_detector.py), and of the law that predicts.

Units: waits are logarithms of the wait as a factor of the prediction at level 1.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from math import log
from typing import Annotated, Final, NamedTuple

import msgspec

_SLOW: Final = log(1.75)  # with usual noise 1 to 15 % of the attempts are slow, and over 85 % at three times the TTFT
_SHARE_SLOW: Final = 0.8  # of slow attempts, at a slow replica
_SHARE_MIN: Final = 0.1  # of slow attempts, at a healthy one,
_SHARE_FACTOR: Final = 1.5  # or this times the usual share, which is an estimate,
_SHARE_MAX: Final = 0.55  # up to this: with more slow attempts everywhere, nothing can be shown
_SHARE_WEIGHT: Final = 0.05  # of an attempt in its replica's share
_EVIDENCE_MAX: Final = 14.0  # logarithm of the likelihood ratio at which a replica is slow
_EVIDENCE_OVER: Final = 8.0  # and below which it no longer is: after four quick attempts
_QUICK: Final = 4  # the number of them, from which the level of a replica is estimated that is no longer slow
_WAITS: Final = 8  # recent attempts from which the level of a slow replica is estimated

SLOW_STATE_S_MAX: Final = 600.0
"""A restart keeps younger states of slow replicas: later, a replica may have been repaired."""
_OTHERS_MAX: Final = 32  # attempts of other gateways that one report adds: more show no more
_EXCESS_MIN: Final = 1e-3  # of a slow wait over the limit

Wait = tuple[float, bool]
"""Wait of an attempt, and True if it ended with a first content."""


class Tally(NamedTuple):
    """Attempts of one replica since a start, for other gateways; an attempt that shows nothing is not counted.

    Attributes:
        quick: number of quick attempts.
        late: number of slow attempts that ended with a first content.
        given_up: number of slow attempts that ended without.
        excess: sum of the slow waits over the limit.
    """

    quick: int = 0
    late: int = 0
    given_up: int = 0
    excess: float = 0.0


class SlownessState(msgspec.Struct, frozen=True):
    """One replica's part of the test as plain values.

    Attributes:
        share: share of slow attempts.
        evidence: logarithm of the likelihood ratio.
        is_slow: True from the evidence for slowness until there is evidence against it.
        waits: recent waits.
    """

    share: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
    evidence: Annotated[float, msgspec.Meta(ge=0.0, le=_EVIDENCE_MAX)]
    is_slow: bool
    waits: Annotated[
        list[tuple[Annotated[float, msgspec.Meta(ge=-40.0, le=40.0)], bool]], msgspec.Meta(max_length=_WAITS)
    ]


class Slowness:
    """One replica's part of the test.

    Attributes:
        share: share of slow attempts among about the last 20.
        is_slow: True from the evidence for slowness until there is evidence against it.
        judged_s: time of the last test.
        tally: own attempts.
    """

    __slots__ = ("_evidence", "_waits", "is_slow", "judged_s", "share", "tally")

    def __init__(self) -> None:
        self.share = 0.0
        self.is_slow = False
        self.judged_s = -math.inf
        self.tally = Tally()
        self._evidence = 0.0
        self._waits: deque[Wait] = deque(maxlen=_WAITS)

    @staticmethod
    def restored(state: SlownessState, now_s: float) -> "Slowness":
        """Return a test that goes on from a recorded state; a slow replica has waits."""
        slowness = Slowness()
        slowness.share, slowness._evidence, slowness.judged_s = state.share, state.evidence, now_s
        slowness._waits.extend(state.waits)
        slowness.is_slow = state.is_slow and bool(state.waits)
        return slowness

    @property
    def state(self) -> SlownessState:
        """The state as plain values."""
        return SlownessState(self.share, self._evidence, self.is_slow, list(self._waits))

    def count(self, waits: Iterable[Wait], usual: float) -> None:
        """Count the slow attempts.

        Args:
            usual: level of the other replicas.
        """
        limit = usual + _SLOW
        for wait, is_event in waits:
            if wait > limit:
                self.share += _SHARE_WEIGHT * (1.0 - self.share)
            elif is_event:
                self.share -= _SHARE_WEIGHT * self.share

    def report(self, waits: Iterable[Wait], usual: float) -> None:
        """Add own attempts to the tally; see `count`."""
        quick, late, given_up, excess = self.tally
        limit = usual + _SLOW
        for wait, is_event in waits:
            if wait > limit:
                late, given_up = late + is_event, given_up + (not is_event)
                excess += wait - limit
            else:
                quick += is_event
        self.tally = Tally(quick, late, given_up, excess)

    def judge(self, waits: Sequence[Wait], usual: float, usual_share: float) -> bool:
        """Test the attempts; return True if `level()` is a lower bound of its level: it is slow, and was slow just now.

        Args:
            usual: level of the other replicas.
            usual_share: share of slow attempts at the other replicas.
        """
        self._waits.extend(waits)
        expected = max(_SHARE_MIN, _SHARE_FACTOR * usual_share)
        limit = usual + _SLOW
        if expected < _SHARE_MAX:
            slow, quick = log(_SHARE_SLOW / expected), log((1.0 - _SHARE_SLOW) / (1.0 - expected))
            for wait, is_event in waits:
                if wait > limit:
                    self._evidence = min(_EVIDENCE_MAX, self._evidence + slow)
                elif is_event:
                    self._evidence = max(0.0, self._evidence + quick)
            self.is_slow = self._evidence >= (_EVIDENCE_OVER if self.is_slow else _EVIDENCE_MAX)
        return self.is_slow and waits[-1][0] > limit

    @property
    def is_doubted(self) -> bool:
        """True while there is evidence that it is slow, and not enough."""
        return self._evidence > 0.0 and not self.is_slow

    def level(self) -> float:
        """Return the median of the recent waits (Kaplan and Meier), or their largest bound if the median is hidden."""
        ordered = sorted(self._waits)
        left, at_risk = 1.0, len(ordered)
        for wait, is_event in ordered:
            if is_event:
                left *= 1.0 - 1.0 / at_risk
                if left <= 0.5:
                    return wait
            at_risk -= 1
        return ordered[-1][0]

    def quick_level(self) -> float:
        """Return the longest of the last four waits: a bound of the level of a replica that is no longer slow."""
        return max(self._waits[-number][0] for number in range(1, min(_QUICK, len(self._waits)) + 1))


def waits_of(tally: Tally, usual: float) -> list[Wait]:
    """Return the attempts of other gateways as waits: the slow ones with their mean, before the quick ones.

    In another order the evidence would be larger.

    Args:
        usual: level of the replicas, which a quick attempt has.
    """
    quick, late, given_up, excess = tally
    count = quick + late + given_up
    if count > _OTHERS_MAX:
        quick, late, given_up = (round(_OTHERS_MAX * each / count) for each in (quick, late, given_up))
    slow = tally.late + tally.given_up
    wait = usual + _SLOW + max(_EXCESS_MIN, excess / slow if slow else 0.0)
    return [(wait, False)] * given_up + [(wait, True)] * late + [(usual, True)] * quick
