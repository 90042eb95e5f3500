"""Predicts the TTFT of each replica of a pool: TTFT = level_r * (b + s * uncached + c * pending tokens).

Owns the coefficients, fitted to relative errors and never negative, and the levels of the replicas, which follow each
replica's slow phases (docs/design/0004). Does not choose replicas or time hedges; the ages of waiting attempts are
no input. Samples are appended on the hot path and processed in batches.

Units: seconds; tokens; a level is a factor, stored as its logarithm.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from math import exp, log
from typing import Annotated, Final

import msgspec

from ttft_gateway.estimation.fit import FitState, RelativeFit, Row, Triple
from ttft_gateway.estimation.slowness import SLOW_STATE_S_MAX, Slowness, SlownessState, Tally, Wait, waits_of

_FIRST_SAMPLES: Final = 20  # b is their median, with all levels 1: one tiny TTFT would dominate a squared error
_RESIDUAL_MAX: Final = 1.4  # logarithm: four times off is a straggler or a stall, and no sample of the fit
_LEVEL_STEP: Final = 0.1
_SLOW_FADE: Final = 6.0  # times as fast as usual, after a sixth of the memory without a sample: for the next visit
LEVEL_CLIP: Final = 0.3  # logarithm: a straggler moves a level by 3 %, like any late answer
_MOVING: Final = 0.15  # of a level by its last ten samples: it follows a change, and these samples show no law
_USUAL: Final = 0.3  # of the mean level, which the fit follows; what is beyond it is no effect of tokens, ...
_SLOW_KEPT: Final = 0.998  # ... and its part with each sample that the law does not take over: 500 samples,
_QUICK_KEPT: Final = 0.9  # and 10 if all replicas are quicker than the law: their slow time is over
_BATCH_MEDIAN_MIN: Final = 10  # samples of a replica in one batch: their median is less noisy and faster
_BATCH_MEDIAN_STEP: Final = 1.0 - (1.0 - _LEVEL_STEP) ** _BATCH_MEDIAN_MIN  # as far as that many single steps
_APPROACH: Final = 0.02  # of the distance to the mean, ten times a second; more would hold back what has just moved
_MEMORY_S: Final = 30.0
_FOLD_S: Final = 0.5  # maximum lag of predictions after samples
_BUFFER_MAX: Final = 256
_REFIT: Final = 8  # new samples before the next fit; 500 count in it
_REACH_TOKENS: Final = 4_000.0  # such a prompt is expected to double the base at most, until samples show more
TTFT_MIN_S: Final = 1e-4  # so that logarithms and quotients are finite
_PREDICTED_S_MAX: Final = 1e4  # a restored base above it is no TTFT
LEVEL_MAX: Final = 20.0  # logarithm; a level beyond it is no slow phase
_MEDIAN_STEP: Final = 1.05  # of the median of the prompts, with each sample: it follows a new traffic in 100 samples
_TOKENS_MIN: Final = 1.0  # less is rounding noise of a sum, and a time divided by it would look like a law

Law = tuple[Triple, Mapping[str, float]]
"""The coefficients, and exp(level) of each replica with a sample."""

_Positive = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]


class PredictorState(msgspec.Struct, frozen=True):
    """A predictor as plain values.

    Attributes:
        age_s: time since the levels were last decayed.
        samples: number of first contents that were processed.
        first: TTFT, uncached and pending tokens of the first contents, before there is a fit.
        fit: sums of the fit.
        levels: logarithms of the replicas' levels.
        slowness: tests for slow replicas; of replicas that were compared.
    """

    age_s: Annotated[float, msgspec.Meta(ge=0.0)]
    samples: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    first: Annotated[list[tuple[_Positive, _Positive, _Positive]], msgspec.Meta(max_length=_FIRST_SAMPLES)]
    fit: FitState
    levels: dict[str, Annotated[float, msgspec.Meta(ge=-LEVEL_MAX, le=LEVEL_MAX)]]
    slowness: dict[str, SlownessState] = {}


class Predictor:
    """Predicts the TTFT of one pool's replicas by their names; a replica exists from its first sample on.

    Attributes:
        level_median: median of the levels, 1 before the first sample: the slowness of all replicas against the fit.
        doubted: replicas of which a recent attempt was slow, without enough evidence that they are.
        usual_tokens: median of the recent prompts' uncached tokens, 0 before the first sample: what people are shown is
            predicted for it, because the base alone is far from any sample.
        memory_s: time constant with which a level without samples decays to 1.
        steps: sum and number of the steps of each replica's level since the start, for other gateways; None if there
            are none.
    """

    def __init__(self) -> None:
        self._raw: list[tuple[str, float, float, float, bool]] = []
        self._samples = 0
        self._unfitted = 0
        self._first: list[tuple[float, float, float]] = []
        self._fit = RelativeFit()
        self._coefficients = (0.0, 0.0, 0.0)
        self._levels: dict[str, float] = {}  # logarithms
        self._moves: dict[str, float] = {}  # of each level by its last samples, about ten
        self._seen_s: dict[str, float] = {}  # time of each replica's last sample
        self._slowness: dict[str, Slowness] = {}
        self._slow: set[str] = set()
        self.doubted: set[str] = set()
        self._scales: dict[str, float] = {}  # exp(level) of each replica
        self._folded_s = self._due_s = -math.inf  # times of the last fold, and of the next one
        self._law: Law | None = None  # valid until then; None before the fit
        self.level_median = 1.0
        self.usual_tokens = 0.0
        self.memory_s = _MEMORY_S
        self.steps: dict[str, tuple[float, int]] | None = None

    @staticmethod
    def restored(state: PredictorState, elapsed_s: float, now_s: float) -> "Predictor":
        """Return a predictor in a recorded state.

        Args:
            elapsed_s: time since it was recorded.

        Raises:
            ValueError: the state contradicts itself.
        """
        predictor = Predictor()
        predictor._samples, predictor._first = state.samples, list(state.first)
        predictor._fit, predictor._levels = RelativeFit.restored(state.fit), dict(state.levels)
        predictor._coefficients = _restored_coefficients(state)
        predictor.usual_tokens = _usual_tokens(state)
        predictor._folded_s = now_s - elapsed_s - state.age_s
        predictor.fold(now_s)
        if elapsed_s + state.age_s <= SLOW_STATE_S_MAX:
            predictor._restore_slowness(state.slowness, now_s)
        return predictor

    def state(self, now_s: float) -> PredictorState:
        """Return the state as plain values, without the samples that are not processed yet."""
        age_s = max(0.0, now_s - self._folded_s) if math.isfinite(self._folded_s) else 0.0
        fit, samples = self._fit.state, self._samples
        if samples >= _FIRST_SAMPLES and not fit.matrix[0]:
            samples = 0  # only the base is known, from other gateways
        levels = {name: self.level(name) for name in self._levels}
        slowness = {name: each.state for name, each in self._slowness.items()}
        return PredictorState(age_s, samples, list(self._first), fit, levels, slowness)

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """The last fitted b in seconds, s and c in seconds per token; all 0 before the first sample."""
        return self._coefficients

    @property
    def levels(self) -> dict[str, float]:
        """Each replica's level as a factor; replicas without samples are missing and count as 1.

        Of a slow replica it is the level of its recent attempts. The level that predicts fades between them, so that
        the replica is visited, and such a request is hedged as early as any other one.
        """
        return self._scales | {name: exp(self._slowness[name].level()) for name in self._slow}

    def is_slow(self, replica: str) -> bool:
        """Return True if a replica is much slower than the other replicas (`Slowness`)."""
        return replica in self._slow

    def predict(self, replica: str, uncached: float, pending: float, now_s: float) -> float | None:
        """Return the expected TTFT in seconds, or None before the pool's first sample.

        Args:
            uncached: prompt tokens that the replica has to compute.
            pending: prompt tokens sent to the replica and not yet answered, without this request's.
        """
        predicted_s = self.predict_each(((replica, uncached, pending),), now_s)
        return None if predicted_s is None else predicted_s[0]

    def predict_each(self, candidates: Iterable[tuple[str, float, float]], now_s: float) -> list[float] | None:
        """Predict for several replicas, each given as (name, uncached, pending)."""
        law = self.law(now_s)
        if law is None:
            return None
        (b, s, c), levels = law
        return [
            max(TTFT_MIN_S, levels.get(replica, 1.0) * (b + s * uncached + c * pending))
            for replica, uncached, pending in candidates
        ]

    def law(self, now_s: float) -> Law | None:
        """Return the law that is valid now, the same object until it changes; None before the pool's first sample."""
        if now_s >= self._due_s or (self._samples < _FIRST_SAMPLES and self._raw):
            self.fold(now_s)
        return self._law

    def add(self, replica: str, ttft_s: float, uncached: float, pending: float, now_s: float) -> None:
        """Add a first content, with the tokens as of the time when the attempt was sent."""
        self._raw.append((replica, ttft_s, uncached, pending, True))
        if len(self._raw) >= _BUFFER_MAX:
            self.fold(now_s)

    def add_late(self, replica: str, waited_s: float, uncached: float, pending: float, now_s: float) -> None:
        """Add an attempt that ended without a first content; if it was late, it raises the level."""
        self._raw.append((replica, waited_s, uncached, pending, False))
        if len(self._raw) >= _BUFFER_MAX:
            self.fold(now_s)

    def start_at_median(self, replica: str) -> None:
        """Give a new replica the median level of the other replicas: all of them may be slow."""
        if self._levels:
            self._levels[replica] = _median(self._levels.values())
            self._set_law()

    # state shared with other gateways

    @property
    def first_s(self) -> Sequence[float]:
        """The first TTFTs, from which only a base is known; empty after the fit has begun."""
        return [ttft_s for ttft_s, _, _ in self._first]

    @property
    def has_fit(self) -> bool:
        """True if there were enough samples for a fit."""
        return self._samples >= _FIRST_SAMPLES

    def begin(self, base_s: float) -> None:
        """Begin the fit with the median of all gateways' first TTFTs."""
        if not self.has_fit:
            self._samples, self._coefficients = _FIRST_SAMPLES, (max(TTFT_MIN_S, base_s), 0.0, 0.0)
            self._begin_fit(self._coefficients[0])
            self._set_law()

    def fold_new(self, now_s: float) -> None:
        """Process the appended samples now, if there are any."""
        if self._raw:
            self.fold(now_s)

    def take_new(self) -> Sequence[float]:
        """Return number and sums of the samples of the fit since the last call, see `RelativeFit.take_new`."""
        return self._fit.take_new()

    def put(self, count: int, sums: Sequence[float]) -> None:
        """Add samples of other gateways to the fit, see `RelativeFit.put`.

        Raises:
            ValueError: the sums are not sums of times; nothing was added.
        """
        if sums[0] > count / TTFT_MIN_S**2:
            raise ValueError("the sums are not sums of times")
        fit = copy(self._fit)
        fit.put(count, sums)
        self._coefficients, self._unfitted = _plausible_coefficients(fit), 0
        self._fit = fit
        self._first.clear()
        self._samples = max(self._samples, _FIRST_SAMPLES) + count
        self._set_law()

    def add_steps(self, steps: Mapping[str, tuple[float, int]], means: Mapping[str, float]) -> None:
        """Move levels by the steps of other gateways, as far as the same number of own samples would.

        Args:
            steps: sum and number of their residuals by replica, each clipped to a step.
            means: means of their levels, as logarithms. A level moves a little towards its mean; a new level is the
                mean.
        """
        levels = self._levels
        for replica, (total, count) in steps.items():
            moved = _clipped(total / count) * (1.0 - (1.0 - _LEVEL_STEP) ** count)
            levels[replica] = _bounded(levels.get(replica, means.get(replica, 0.0)) + moved)
        for replica, mean in means.items():
            if replica in self._slow:  # its own attempts are the better evidence
                continue
            level = levels.get(replica, mean)
            levels[replica] = _bounded(level + _APPROACH * (mean - level))
        self._set_law()

    def tally(self, replica: str) -> Tally:
        """Return the attempts that show whether a replica is slow, for other gateways."""
        slowness = self._slowness.get(replica)
        return Tally() if slowness is None else slowness.tally

    def put_tallies(self, others: Mapping[str, Tally], now_s: float) -> None:
        """Test replicas with the attempts of other gateways since the last call."""
        levels = self._levels
        if len(levels) > 1:
            usual = self._usual_level()
            waits = {replica: waits_of(tally, usual) for replica, tally in others.items() if replica in levels}
            self._compare({replica: each for replica, each in waits.items() if each}, usual, now_s)
            self._set_law()

    def level(self, replica: str) -> float:
        """Return the logarithm of a replica's level, within the range of a recorded one."""
        return _bounded(self._levels.get(replica, 0.0))

    def forget(self, replica: str) -> None:
        """Drop the level of a removed replica."""
        self._levels.pop(replica, None)
        self._moves.pop(replica, None)
        self._seen_s.pop(replica, None)
        self._slowness.pop(replica, None)
        self._slow.discard(replica)
        self.doubted.discard(replica)
        self._set_law()

    def fold(self, now_s: float) -> None:
        """Decay the levels to now_s and process the appended samples; `predict` calls this when it is due."""
        if now_s > self._folded_s:
            fade = exp((self._folded_s - now_s) / self.memory_s)
            for replica in self._levels:
                self._levels[replica] *= fade
            for replica in self._slow:
                if now_s > self._slowness[replica].judged_s + self.memory_s / _SLOW_FADE:
                    self._levels[replica] *= fade ** (_SLOW_FADE - 1.0)
            self._folded_s = now_s
        if self._raw and self._samples < _FIRST_SAMPLES:
            self._add_first()
        elif self._raw:
            self._add_batch()
        self._raw.clear()
        if self._unfitted >= _REFIT:
            self._coefficients = self._fit.solve_nonnegative(_REACH_TOKENS)
            self._unfitted = 0
        self._due_s = self._folded_s + _FOLD_S
        self._set_law()

    def _restore_slowness(self, recorded: Mapping[str, SlownessState], now_s: float) -> None:
        """Go on with the tests, and avoid slow replicas as at their last attempts."""
        for replica in recorded.keys() & self._levels.keys():
            slowness = self._slowness[replica] = Slowness.restored(recorded[replica], now_s)
            if slowness.is_slow:
                self._levels[replica] = max(self._levels[replica], _bounded(slowness.level()))
                self._slow.add(replica)
            elif slowness.is_doubted:
                self.doubted.add(replica)
        self._set_law()

    def _set_law(self) -> None:
        self._scales = dict(zip(self._levels, map(exp, self._levels.values()), strict=True))
        self._law = (self._coefficients, self._scales) if self._samples else None
        self.level_median = _median(self._scales.values()) if self._scales else 1.0

    def _add_first(self) -> None:
        """Process the first samples: b is their median; the 20th starts the fit, without outliers."""
        self._first += [(ttft_s, u, p) for _, ttft_s, u, p, is_event in self._raw if is_event]
        self._samples = len(self._first)
        if not self._first:
            return
        b = _first_base(self._first)
        self._coefficients = (b, 0.0, 0.0)
        self.usual_tokens = _median(u for _, u, _ in self._first)
        if self._samples >= _FIRST_SAMPLES:
            self._begin_fit(b)

    def _begin_fit(self, b: float) -> None:
        for ttft_s, u, p in self._first:
            y = max(TTFT_MIN_S, ttft_s)
            if abs(log(y / b)) <= _RESIDUAL_MAX:
                self._fit.add(y, 1.0, u if u >= _TOKENS_MIN else 0.0, p if p >= _TOKENS_MIN else 0.0)
        self._first.clear()

    def _add_batch(self) -> None:
        """Update levels and fit, with residuals against the coefficients and levels from before the batch.

        The fit gets samples without their replica's level: a time in which all replicas are slow, and thus have many
        pending tokens, is no law of tokens. For the same reason it gets none while a level moves.
        """
        b, s, c = self._coefficients
        levels, usual_tokens = self._levels, self.usual_tokens or 1.0
        is_compared, common = len(levels) > 1, self._common()
        kept = _USUAL if common > _USUAL else -_USUAL if common < -_USUAL else common
        # Level, factor to the usual level (0 while the level moves), residuals and waits of each replica with a sample.
        seen: dict[str, tuple[float, float, list[float], list[Wait]]] = {}
        rows: list[Row] = []
        usual = 0  # samples that are near the law, although perhaps of a level that moves
        for replica, ttft_s, uncached, pending, is_event in self._raw:
            if replica not in seen:
                if replica not in self._moves:
                    self._moves[replica] = 0.0
                    levels.setdefault(replica, 0.0)
                level, moves = levels[replica], self._moves[replica]
                seen[replica] = (level, exp(kept - level) if -_MOVING < moves < _MOVING else 0.0, [], [])
            level, to_usual, residuals, waits = seen[replica]
            base = b + s * uncached + c * pending
            if base < TTFT_MIN_S:
                base = TTFT_MIN_S
            y = ttft_s if ttft_s > TTFT_MIN_S else TTFT_MIN_S
            wait = log(y / base)
            residual = wait - level
            if is_compared:
                waits.append((wait, is_event))
            if is_event:
                usual_tokens *= _MEDIAN_STEP if uncached > usual_tokens else 1.0 / _MEDIAN_STEP
                residuals.append(residual)
                if -_RESIDUAL_MAX <= residual <= _RESIDUAL_MAX:
                    usual += 1
                    if to_usual:
                        u = uncached if uncached >= _TOKENS_MIN else 0.0
                        rows.append((y * to_usual, 1.0, u, pending if pending >= _TOKENS_MIN else 0.0))
            elif residual > 0.0:
                residuals.append(residual)
        self.usual_tokens = usual_tokens if usual_tokens > 1.0 else 1.0
        self._fit.add_all(rows)
        count = len(rows)
        self._samples += count
        self._unfitted += count
        self._move_levels({replica: residuals for replica, (_, _, residuals, _) in seen.items()})
        if usual:
            self._absorb(usual)
        if is_compared:
            self._compare_own({replica: waits for replica, (_, _, _, waits) in seen.items()})

    def _move_levels(self, residuals: Mapping[str, list[float]]) -> None:
        """Move the levels of the replicas with a sample towards their residuals."""
        for replica, each in residuals.items():
            moves = self._moves[replica]
            moved = _level_move(each, self._levels[replica], moves)
            self._levels[replica] += moved
            self._moves[replica] = moves * (1.0 - _LEVEL_STEP) ** len(each) + moved
            self._seen_s[replica] = self._folded_s
            if self.steps is not None and each:
                total, steps = self.steps.get(replica, (0.0, 0))
                self.steps[replica] = (total + sum(map(_clipped, each)), steps + len(each))

    def _common(self) -> float:
        """Return the mean level of the replicas with a recent sample: the levels of others have faded."""
        levels, since_s, total, count = self._levels, self._folded_s - self.memory_s, 0.0, 0
        for replica, seen_s in self._seen_s.items():
            if seen_s >= since_s:
                total += levels[replica]
                count += 1
        return total / count if count else 0.0

    def _absorb(self, samples: int) -> None:
        """Move unusual levels that all replicas have to the law: in time, lasting slowness is usual."""
        common = self._common()
        if -_USUAL <= common <= _USUAL:  # the fit follows
            return
        kept = _SLOW_KEPT if common > 0.0 else _QUICK_KEPT
        moved = (common - math.copysign(_USUAL, common)) * (1.0 - kept**samples)
        factor = exp(moved)
        self._fit.scale(factor)
        b, s, c = self._coefficients
        self._coefficients = (factor * b, factor * s, factor * c)
        for replica in self._levels:
            self._levels[replica] -= moved

    def _usual_level(self) -> float:
        """Return the lower median of the levels: one of two replicas may be slow."""
        levels = self._levels
        return sorted(levels.values())[(len(levels) - 1) // 2]

    def _compare_own(self, waits: Mapping[str, Sequence[Wait]]) -> None:
        """Look for slow replicas by own attempts, and count them for other gateways."""
        usual = self._usual_level()
        self._compare(waits, usual, self._folded_s)
        if self.steps is not None:
            for replica, each in waits.items():
                self._slowness[replica].report(each, usual)

    def _compare(self, waits: Mapping[str, Sequence[Wait]], usual: float, now_s: float) -> None:
        """Look for slow replicas; a slow one gets the level that its waits show, without the steps of usual samples."""
        levels, slowness = self._levels, self._slowness
        for replica in levels:
            if replica not in slowness:
                slowness[replica] = Slowness()
        for replica, each in waits.items():
            slowness[replica].count(each, usual)
        usual_share = sorted([slowness[replica].share for replica in levels])[(len(levels) - 1) // 2]
        for replica, each in waits.items():
            own = slowness[replica]
            own.judged_s = now_s
            if own.judge(each, usual, usual_share):
                levels[replica] = max(levels[replica], own.level())
                self._slow.add(replica)
            elif replica in self._slow and not own.is_slow:
                levels[replica] = min(levels[replica], own.quick_level())
                self._slow.discard(replica)
            (self.doubted.add if own.is_doubted else self.doubted.discard)(replica)


def _median(values: Iterable[float]) -> float:
    """Return the median of one value or more, as `statistics.median`: to import that module takes longer."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _first_base(samples: list[Triple]) -> float:
    return max(TTFT_MIN_S, _median(ttft_s for ttft_s, _, _ in samples))


def _usual_tokens(state: PredictorState) -> float:
    """Return about the median of a recorded state's prompts: of a fit only a mean is known."""
    if state.first:
        return _median(u for _, u, _ in state.first)
    all_, by_tokens = state.fit.matrix[:2]
    return by_tokens / all_ if all_ else 0.0


def _restored_coefficients(state: PredictorState) -> Triple:
    """Return the coefficients of a recorded state.

    Raises:
        ValueError: the state contradicts itself.
    """
    if state.samples < _FIRST_SAMPLES:
        if len(state.first) != state.samples:
            raise ValueError("the number of first samples is wrong")
        base_s = _first_base(state.first) if state.first else 0.0
        if base_s > _PREDICTED_S_MAX:
            raise ValueError("the first samples are no times")
        return base_s, 0.0, 0.0
    if state.first:
        raise ValueError("the fit has no samples")
    return _plausible_coefficients(RelativeFit.restored(state.fit))


def _plausible_coefficients(fit: RelativeFit) -> Triple:
    """Return the coefficients of a fit with sums from elsewhere.

    Raises:
        ValueError: the sums are not sums of times.
    """
    if fit.state.matrix[0] <= 0.0:
        raise ValueError("the fit has no samples")
    b, s, c = fit.solve_nonnegative(_REACH_TOKENS)
    if not 0.0 <= max(b, s, c) <= _PREDICTED_S_MAX:
        raise ValueError("the fit is not one of times")
    return b, s, c


def _bounded(level: float) -> float:
    return min(LEVEL_MAX, max(-LEVEL_MAX, level))


def _clipped(residual: float) -> float:
    return min(LEVEL_CLIP, max(-LEVEL_CLIP, residual))


def _level_move(residuals: list[float], level: float, moves: float) -> float:
    """Return the move of a level.

    A late sample may be a straggler. A quick one may show that the cause of a raised level is over, and several of them
    that any level is too high.

    Args:
        moves: the moves of the level by its last samples.
    """
    if len(residuals) >= _BATCH_MEDIAN_MIN:
        return _BATCH_MEDIAN_STEP * _median(residuals)
    moved, quickest = 0.0, -LEVEL_CLIP if level < LEVEL_CLIP else -level
    if moves < -_MOVING and quickest > -_RESIDUAL_MAX:
        quickest = -_RESIDUAL_MAX
    for residual in residuals:
        rest = residual - moved
        moved += _LEVEL_STEP * (quickest if rest < quickest else LEVEL_CLIP if rest > LEVEL_CLIP else rest)
    return moved
