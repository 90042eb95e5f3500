"""Decides when a stream of a pool is silent or slow for its replica, so that a guard may be sent beside it. Pure.

A guard is an attempt that continues an answer while the answer's own stream is still open. A stream is looked at about
once a second while it runs, never when a token arrives. It is silent after a gap longer than the gaps of nine of ten
streams of its replica in the same phase, and slow if an event takes three times the usual time in two looks.

A guard that loses has cost its prompt and gained nothing, which happens where all replicas share the cause. So guards
of each cause have a credit of their own: one takes 1 when it is sent, and gives back 4 if it wins; 3,000 answers add 1.

Units: seconds of the loop's clock; gaps are seconds an event.
"""

import math
from collections.abc import Collection
from typing import Final

from ttft_gateway.apis.base import Phase
from ttft_gateway.hedging.contract import AttemptView, StreamWatch
from ttft_gateway.hedging.outcomes import GuardCause
from ttft_gateway.routing.replicas import Replica

LOOK_S: Final = 1.0
"""Time between two looks at a stream, and the shortest silence after which a guard is sent."""
_UNKNOWN_S: Final = 5.0  # silence of text at a replica with few streams; other phases have no such value
_MARGIN: Final = 1.5  # of a silence over the longest gap that is usual
_USUAL_SHARE: Final = 0.9  # of the streams show no longer gap
_STREAMS_MIN: Final = 20.0  # before the longest gaps of a phase are known
_DECAY: Final = 0.99  # of a stream in the longest gaps with each later one: the last 100 count
_BOUNDS_S: Final = tuple(0.5 * 2 ** (step / 2) for step in range(17))  # to 128 s
_SLOW: Final = 3.0  # times the usual gap
_LOOKS_MIN: Final = 20  # before the usual gap is known
_EVENTS_MIN: Final = 4  # of a look that measures a gap
_STEP: Final = 0.05  # of the usual gap towards each measured one: it is their median, as load changes
_FIRST_STEPS: Final = 0.5  # the same for the n-th measured gap, divided by n
_QUICKER: Final = 1.5  # ratio of gaps by which a guard of a slow stream has to be quicker
_AGAIN_S: Final = 0.5  # shortest time between two decisions about one stream
_AGAIN: Final = 0.5  # the same as a share of the silence
_CREDIT: Final = 2.0  # of guards at the start; one of them wins in nearly all pools without a shared cause
_CREDIT_MAX: Final = 16.0
_CREDIT_SHARE: Final = 1 / 3000  # of an answer
_WON: Final = 4.0
_EARLY: Final = 0.9  # given back by a guard that was beaten before it could show anything, and had a small price
_TEXT: Final = Phase.TEXT


class _Silences:
    """Longest gaps of the streams in one phase, as decayed counts of the streams with a gap of at least each bound.

    Attributes:
        streams: decayed number of the streams.
        limit_s: silence after which a guard may be sent, infinite if longer ones are usual.
    """

    __slots__ = ("_counts", "limit_s", "streams")

    def __init__(self) -> None:
        self.streams = 0.0
        self.limit_s = LOOK_S
        self._counts = [0.0] * len(_BOUNDS_S)

    def add(self, gap_s: float) -> None:
        """Add the longest gap of one stream; 0 if no gap was long."""
        self.streams = _DECAY * self.streams + 1.0
        self._counts = [
            _DECAY * count + (gap_s >= bound_s) for count, bound_s in zip(self._counts, _BOUNDS_S, strict=True)
        ]
        self.limit_s = self._new_limit_s()

    def _new_limit_s(self) -> float:
        rare = (1.0 - _USUAL_SHARE) * self.streams
        for count, bound_s in zip(self._counts, _BOUNDS_S, strict=True):
            if count <= rare:
                return max(LOOK_S, _MARGIN * bound_s) if bound_s > _BOUNDS_S[0] else LOOK_S
        return math.inf


class _Usual:
    """The usual streams of one replica.

    Attributes:
        silences: longest gaps by phase.
        gap_s: median gap; 0 before the first.
        looks: number of measured gaps.
        live: streams under way that were looked at.
    """

    __slots__ = ("gap_s", "live", "looks", "silences")

    def __init__(self) -> None:
        self.silences: dict[Phase, _Silences] = {}
        self.gap_s = 0.0
        self.looks = 0
        self.live: set[AttemptView] = set()

    def add_gap(self, gap_s: float) -> None:
        """Move the median towards a measured gap."""
        self.looks += 1
        if self.looks == 1:
            self.gap_s = gap_s
            return
        step = math.exp(max(_STEP, _FIRST_STEPS / self.looks))
        self.gap_s = min(gap_s, self.gap_s * step) if gap_s > self.gap_s else max(gap_s, self.gap_s / step)


class Guards:
    """The guards of one pool.

    Args:
        names: names of its replicas.
        is_on: False if no guard is ever sent.

    Attributes:
        every_s: time from the first content of a stream to the first look; infinite while no guard is ever sent.
    """

    def __init__(self, names: Collection[str], *, is_on: bool) -> None:
        self.every_s = LOOK_S if is_on else math.inf
        self.of = {name: _Usual() for name in names}
        self.all: dict[Phase, _Silences] = {}  # of the whole pool
        self.credits = dict.fromkeys(GuardCause, _CREDIT)
        self.answers = dict.fromkeys(GuardCause, 0)  # first contents of the pool when a credit was last used

    def adopt_state(self, old: "Guards", stay: Collection[str]) -> None:
        """Take over what was learned under other settings; `stay` has the names of unchanged replicas."""
        self.of |= {name: usual for name, usual in old.of.items() if name in stay}
        self.all, self.credits, self.answers = old.all, old.credits, old.answers

    def look(self, attempt: AttemptView, watch: StreamWatch, now_s: float) -> GuardCause | None:
        """Look at a stream; return the reason for a guard, None if there is none. Sets the time of the next look."""
        usual = self.of.get(attempt.replica.name)
        if usual is None:  # removed by a reload
            watch.due_s = math.inf
            return None
        usual.live.add(attempt)
        phase = attempt.phase or _TEXT
        watch.phases |= {phase}
        silent_since_s, limit_s = attempt.output_s, self._limit_s(usual, phase)
        silence_s = now_s - silent_since_s
        if silence_s >= limit_s:
            watch.due_s = now_s + max(_AGAIN_S, _AGAIN * silence_s)
            return GuardCause.SILENT
        watch.due_s = min(now_s + LOOK_S, silent_since_s + limit_s)
        return GuardCause.SLOW if self._is_slow(attempt, watch, usual) else None

    def _is_slow(self, attempt: AttemptView, watch: StreamWatch, usual: _Usual) -> bool:
        """Measure the gap since the last look; return True if this one and the last one are slow."""
        events, time_s = attempt.events - watch.mark_events, attempt.generated_s - watch.mark_s
        if events < _EVENTS_MIN or time_s < LOOK_S / 2:
            return False
        watch.mark_events, watch.mark_s = attempt.events, attempt.generated_s
        watch.gap_s = gap_s = time_s / events
        if watch.beaten_gap_s:
            self._judge(watch, gap_s)
        was_slow, watch.is_slow = watch.is_slow, usual.looks >= _LOOKS_MIN and gap_s > _SLOW * usual.gap_s
        usual.add_gap(gap_s)
        return was_slow and watch.is_slow

    def _judge(self, watch: StreamWatch, gap_s: float) -> None:
        """Count a guard of a slow stream as won or lost, by its own first gap."""
        if _QUICKER * gap_s < watch.beaten_gap_s:
            self.credits[GuardCause.SLOW] += _WON
        watch.beaten_gap_s = 0.0

    def _limit_s(self, usual: _Usual, phase: Phase) -> float:
        """Return the silence after which a guard may be sent, by the replica's streams, else by the pool's."""
        for silences in (usual.silences.get(phase), self.all.get(phase)):
            if silences is not None and silences.streams >= _STREAMS_MIN:
                return silences.limit_s
        return _UNKNOWN_S if phase is _TEXT else math.inf

    def end(self, attempt: AttemptView, watch: StreamWatch, now_s: float) -> None:
        """Learn from a stream that was looked at, after its end.

        A stream that was cut off in a silence had a gap of that length at least.
        """
        usual = self.of.get(attempt.replica.name)
        if usual is None:
            return
        usual.live.discard(attempt)
        if attempt.is_paced:
            return
        if watch.beaten_gap_s:
            self._judge(watch, (attempt.generated_s - watch.mark_s) / max(1, attempt.events - watch.mark_events))
        last = attempt.phase or _TEXT
        gaps_s = {phase: watch.gaps_s.get(phase, 0.0) for phase in watch.phases}
        if last in gaps_s:
            gaps_s[last] = max(gaps_s[last], now_s - attempt.output_s)
        for phase, gap_s in gaps_s.items():
            for silences in (usual.silences, self.all):
                silences.setdefault(phase, _Silences()).add(gap_s)

    # a decision

    def allows(self, cause: GuardCause, answers: int) -> bool:
        """Return True unless too many guards have lost; `answers` is the number of first contents of the pool."""
        earned = _CREDIT_SHARE * max(0, answers - self.answers[cause])
        self.credits[cause] = min(_CREDIT_MAX, self.credits[cause] + earned)
        self.answers[cause] = answers
        return self.credits[cause] >= 1.0

    def is_well(self, replica: Replica, late: AttemptView, watch: StreamWatch, cause: GuardCause) -> bool:
        """Return True unless the streams of a replica have the same fault as a late stream."""
        usual = self.of.get(replica.name)
        if usual is None:
            return False
        if cause is GuardCause.SLOW:
            return 0.0 < _QUICKER * usual.gap_s < watch.gap_s
        return not usual.live or any(each.output_s > late.output_s for each in usual.live)

    def gap_s(self, name: str) -> float:
        """Return the usual gap at a replica; 0 before it is known."""
        usual = self.of.get(name)
        return 0.0 if usual is None else usual.gap_s

    def on_sent(self, cause: GuardCause) -> None:
        """Count a guard that is sent."""
        self.credits[cause] -= 1.0

    def on_lost_early(self, cause: GuardCause) -> None:
        """Count a guard that was beaten before its expected first token: no sign that replicas share the cause."""
        self.credits[cause] += _EARLY

    def on_won(self, guard: StreamWatch, late: StreamWatch, cause: GuardCause) -> None:
        """Count a guard that has won; the guard of a slow stream is judged by its own speed."""
        if cause is GuardCause.SLOW:
            guard.beaten_gap_s = late.gap_s
        else:
            self.credits[cause] += _WON
