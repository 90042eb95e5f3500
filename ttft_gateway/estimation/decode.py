"""Estimates the time from the first to the last token of an answer at each replica of a pool, from gaps within streams.

The logarithm of a stream's mean gap is `level of the replica + slopes * (load, prompt, answer)`, with loads and tokens
as logarithms. The slopes are learned from differences between streams of one replica, so that neither its load nor the
length of its prompts is taken for its speed. The difference between a replica and the median one counts only as far as
it is above 5% and two standard errors, which include the error of the slopes. Above the loads at which it was seen,
a replica that is quicker than others loses that advantage step by step.

Owns the gaps of streams. Does not choose replicas, and learns nothing from the time before a first token.

Units: seconds of the loop's clock, tokens; loads are streams in flight.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from ttft_gateway.estimation.slowness import SLOW_STATE_S_MAX

_GAP_MIN_S: Final = 1e-4  # of an answer that arrives in one read
_HALF_TOKENS: Final = 16.0  # of a stream with half the weight of an endless one
_SAME_S: Final = 0.2  # streams of a replica that are measured within this time have seen the same moment, ...
_SAME_SHARE: Final = 0.25  # ... and the second of them has this share of its weight
_MEMORY_S: Final = 30.0  # of the mean of a replica; longer, ...
_MEMORY_SHARE: Final = 0.9  # ... since a stream leaves earlier ones this share of their weight: ten count
_SLOPE_DECAY: Final = 0.998  # of a stream in the slopes with each later one: the last 500 count
_USUAL_DECAY: Final = 0.98
_SPREAD_STEP: Final = 0.02
_SPREAD_FIRST: Final = 0.5  # standard deviation of a logarithm while it is not known
_SPREAD_MIN: Final = 0.02
_SPREAD_PRIOR: Final = 4.0  # streams
_OUTLIER: Final = 3.0  # standard deviations; two in a row on one side are a change, one is not
_STALE_S: Final = 2.0  # a replica that is avoided gets a request every 5 s
_SLOPE_SIGMA: Final = 0.5  # of the prior of a slope, around 0
_SLOPE_BOUNDS: Final = ((0.0, 1.0), (0.0, 1.0), (-1.0, 1.0))  # of load, prompt, answer
_ERRORS: Final = 2.0  # standard errors that do not count
_SAME: Final = 0.05  # difference of two logarithms that does not count either: such differences come and go
_MEDIAN_ERROR: Final = math.pi / 2.0  # variance of a median as a multiple of the variance of a mean
_COMPARED_MIN: Final = 2  # replicas
_WEIGHT_MIN: Final = 0.2  # of a replica that is compared
_SEEN: Final = 1.5  # times the load at which a replica was seen, and ...
_SEEN_MORE: Final = 2.0  # ... further streams, are no other load
_BY_MEAN_DEVIATION: Final = math.sqrt(math.pi / 2.0)  # standard deviation of a normal law by its mean deviation

_Triple = tuple[float, float, float]


class StreamSample(msgspec.Struct, frozen=True):
    """A part of a stream, or all of it.

    Attributes:
        time_s: time of its gaps.
        tokens: number of its gaps.
        load: streams in flight at the replica meanwhile, with this one.
        prompt_tokens: length of the prompt.
        weight: 1 for all that is learned from a stream.
    """

    time_s: float
    tokens: float
    load: float
    prompt_tokens: float
    weight: float = 1.0


_Number = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
_Log = Annotated[float, msgspec.Meta(ge=-20.0, le=20.0)]
_Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]


class LevelState(msgspec.Struct, frozen=True):
    """The mean of a replica's streams as plain values; see `_Level`.

    Attributes:
        age_s: time since its last stream.
    """

    age_s: Annotated[float, msgspec.Meta(ge=0.0)]
    weight: _Amount
    y: _Log
    x: tuple[_Log, _Log, _Log]
    load: _Amount


class SpeedsState(msgspec.Struct, frozen=True):
    """The gaps within the streams of a pool as plain values; see `DecodeSpeeds.restart`."""

    levels: dict[str, LevelState]
    matrix: tuple[_Number, _Number, _Number, _Number, _Number, _Number]
    right: tuple[_Number, _Number, _Number]
    spread: Annotated[float, msgspec.Meta(ge=_SPREAD_MIN, le=20.0)]
    compared: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    usual: tuple[_Amount, _Amount, _Amount]


class DecodeLaw(msgspec.Struct, frozen=True):
    """Expected times of answers, as far as they are known to differ.

    Attributes:
        usual_s: mean time of an answer after its first token, at the usual load and a replica of usual speed.
        usual_tokens: mean length of an answer.
        usual_load: the usual load.
        exponent: growth of the time with the load: time ~ load ** exponent.
        slowness: factor of each replica; 1 for a replica that is missing.
        seen_load: load up to which each replica was seen, and an advantage holds.
    """

    usual_s: float
    usual_tokens: float
    usual_load: float
    exponent: float
    slowness: Mapping[str, float]
    seen_load: Mapping[str, float]

    def answer_s(self, name: str, load: int, tokens_max: int | None) -> float:
        """Return the expected time of an answer after its first token.

        Args:
            name: name of the replica.
            load: its streams in flight, with this one.
            tokens_max: limit on the answer's tokens; None if there is none.
        """
        slowness, seen = self.slowness.get(name, 1.0), self.seen_load.get(name, load)
        if slowness < 1.0 and load > seen:
            slowness = min(1.0, slowness * load / seen)
        time_s = self.usual_s * slowness
        if self.exponent:
            time_s *= (load / self.usual_load) ** self.exponent
        if tokens_max is not None and tokens_max < self.usual_tokens:
            time_s *= tokens_max / self.usual_tokens
        return time_s


class _Level:
    """The decayed mean of a replica's streams.

    Attributes:
        y, x: means of the logarithms of gaps, and of loads and lengths.
        load: mean load.
        outlier: residual of the last stream if it was an outlier, else 0.
        effect: last difference to the median replica.
    """

    __slots__ = ("at_s", "effect", "load", "outlier", "weight", "x", "y")

    def __init__(self) -> None:
        self.weight = self.y = self.load = self.outlier = self.effect = 0.0
        self.x: _Triple = (0.0, 0.0, 0.0)
        self.at_s = -math.inf


class DecodeSpeeds:
    """Learns the gaps within the streams of one pool."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget everything: a token is counted in another way from now on."""
        self._levels: dict[str, _Level] = {}
        self._matrix = [0.0] * 6  # decayed sums of products of x, within replicas: 00, 01, 02, 11, 12, 22
        self._right = [0.0] * 3  # of x and y
        self._slopes: _Triple = (0.0, 0.0, 0.0)
        self._spread = _SPREAD_FIRST
        self._compared = 0  # streams compared with the mean of their replica
        self._usual_s = self._usual_tokens = self._usual_weight = 0.0
        self._law: DecodeLaw | None = None
        self._is_new = False

    @staticmethod
    def restored(state: SpeedsState, elapsed_s: float, now_s: float) -> "DecodeSpeeds":
        """Return the speeds of a recorded state, without the speeds of replicas that are too old.

        Args:
            elapsed_s: time since it was recorded.

        Raises:
            ValueError: the state contradicts itself.
        """
        a, b, c, d, e, f = state.matrix
        prior = state.spread**2 / _SLOPE_SIGMA**2
        a, d, f = a + prior, d + prior, f + prior
        determinant = a * (d * f - e * e) - b * (b * f - c * e) + c * (b * e - c * d)
        if min(a, a * d - b * b, determinant) <= 0.0:
            raise ValueError("the sums are not sums of products")
        speeds = DecodeSpeeds()
        for name, recorded in state.levels.items():
            if recorded.age_s + elapsed_s > SLOW_STATE_S_MAX:
                continue
            level = speeds._levels[name] = _Level()
            level.weight, level.y, level.x, level.load = recorded.weight, recorded.y, recorded.x, recorded.load
            level.at_s = now_s - recorded.age_s - elapsed_s
        speeds._matrix, speeds._right = list(state.matrix), list(state.right)
        speeds._spread, speeds._compared = state.spread, state.compared
        speeds._usual_s, speeds._usual_tokens, speeds._usual_weight = state.usual
        speeds._is_new = True
        return speeds

    def state(self, now_s: float) -> SpeedsState | None:
        """Return the state as plain values; None before the first stream."""
        if not self._levels and not self._compared:
            return None
        levels = {
            name: LevelState(max(0.0, now_s - each.at_s), each.weight, each.y, each.x, each.load)
            for name, each in self._levels.items()
        }
        a, b, c, d, e, f = self._matrix
        r0, r1, r2 = self._right
        usual = (self._usual_s, self._usual_tokens, self._usual_weight)
        return SpeedsState(levels, (a, b, c, d, e, f), (r0, r1, r2), self._spread, self._compared, usual)

    def forget_others(self, stay: Collection[str]) -> None:
        """Drop the gaps of replicas that are gone."""
        for name in self._levels.keys() - set(stay):
            del self._levels[name]
            self._is_new = True

    @property
    def gaps_s(self) -> dict[str, float]:
        """Usual time between two tokens at each replica with a stream, at its own load and lengths."""
        return {name: math.exp(level.y) for name, level in self._levels.items()}

    def add(self, name: str, sample: StreamSample, now_s: float) -> None:
        """Add a stream of a replica, or a part of a stream."""
        tokens = max(1.0, sample.tokens)
        y = math.log(max(_GAP_MIN_S, sample.time_s / tokens))
        x = math.log(max(1.0, sample.load)), math.log(max(1.0, sample.prompt_tokens)), math.log(tokens)
        weight = whole = sample.weight * tokens / (tokens + _HALF_TOKENS)
        level = self._levels.get(name)
        if level is None:
            level = self._levels[name] = _Level()
        else:
            elapsed_s = max(0.0, now_s - level.at_s)
            weight *= min(1.0, _SAME_SHARE + elapsed_s / _SAME_S)
            level.weight *= max(math.exp(-elapsed_s / _MEMORY_S), _MEMORY_SHARE)
            y = self._compare(level, x, y, weight, whole, is_stale=elapsed_s > _STALE_S)
        level.at_s = now_s
        level.weight += weight
        share = weight / level.weight
        level.y += share * (y - level.y)
        level.load += share * (sample.load - level.load)
        old = level.x
        level.x = (
            old[0] + share * (x[0] - old[0]),
            old[1] + share * (x[1] - old[1]),
            old[2] + share * (x[2] - old[2]),
        )
        self._is_new = True

    def add_answer(self, name: str, answer: StreamSample) -> None:
        """Count a whole answer in the usual time, without the known effects of its replica and its load."""
        time_s, law = answer.time_s, self._law
        if law is not None:
            time_s /= law.slowness.get(name, 1.0) * (max(1.0, answer.load) / law.usual_load) ** law.exponent
        self._usual_weight = _USUAL_DECAY * self._usual_weight + 1.0
        self._usual_s += (time_s - self._usual_s) / self._usual_weight
        self._usual_tokens += (answer.tokens - self._usual_tokens) / self._usual_weight

    def law(self) -> DecodeLaw | None:
        """Return the expected times of answers; None while they are not known to differ."""
        if self._is_new:
            self._is_new = False
            self._law = self._renewed()
        return self._law

    def _compare(self, level: _Level, x: _Triple, y: float, weight: float, whole: float, *, is_stale: bool) -> float:
        """Learn slopes and spread from the difference to a replica's mean; return y, of an outlier within bounds.

        Args:
            weight: weight of the stream among the streams of its moment.
            whole: its weight by itself.
            is_stale: True if the last stream of the replica is old. Then one stream shows that it is as usual again.
        """
        old = level.x
        apart = (x[0] - old[0], x[1] - old[1], x[2] - old[2])
        slopes = self._slopes
        usual = level.y + slopes[0] * apart[0] + slopes[1] * apart[1] + slopes[2] * apart[2]
        residual = y - usual
        share = math.sqrt(level.weight / (level.weight + weight))  # the mean has an error, too
        bound = _OUTLIER * self._spread / share
        is_outlier = abs(residual) > bound
        is_second = residual * level.outlier > 0.0
        is_return = is_stale and residual * level.effect < 0.0
        if is_outlier and (is_second or is_return):  # the replica has changed: only the outliers count
            level.weight, level.y, level.x, level.load = whole, usual + (level.outlier or residual), x, math.exp(x[0])
            level.outlier = 0.0
            return y
        level.outlier = residual if is_outlier else 0.0
        residual = max(-bound, min(bound, residual))
        self._compared += 1
        step = max(_SPREAD_STEP, 1.0 / (self._compared + _SPREAD_PRIOR))
        deviation = _BY_MEAN_DEVIATION * abs(residual) * share
        self._spread = max(_SPREAD_MIN, self._spread + step * (deviation - self._spread))
        self._add_products(apart, usual + residual - level.y, weight * share**2)
        return usual + residual

    def _add_products(self, x: _Triple, y: float, weight: float) -> None:
        """Add to the sums from which the slopes are solved."""
        (x0, x1, x2), m, r = x, self._matrix, self._right
        w0, w1, w2 = weight * x0, weight * x1, weight * x2
        self._matrix = [
            _SLOPE_DECAY * m[0] + w0 * x0,
            _SLOPE_DECAY * m[1] + w0 * x1,
            _SLOPE_DECAY * m[2] + w0 * x2,
            _SLOPE_DECAY * m[3] + w1 * x1,
            _SLOPE_DECAY * m[4] + w1 * x2,
            _SLOPE_DECAY * m[5] + w2 * x2,
        ]
        self._right = [_SLOPE_DECAY * r[0] + w0 * y, _SLOPE_DECAY * r[1] + w1 * y, _SLOPE_DECAY * r[2] + w2 * y]

    def _renewed(self) -> DecodeLaw | None:
        """Compute the law; a pool may have hundreds of replicas, so nothing is called for each of them."""
        levels = [each for each in self._levels.items() if each[1].weight >= _WEIGHT_MIN]
        count = len(levels)
        if count < _COMPARED_MIN or not self._usual_weight:
            return None
        (c00, c01, c02), (_, c11, c12), (_, _, c22) = self._solve()
        s0, s1, s2 = self._slopes
        x0, x1, x2 = _middle([level for _, level in levels])
        speeds = [each.y - s0 * (each.x[0] - x0) - s1 * (each.x[1] - x1) - s2 * (each.x[2] - x2) for _, each in levels]
        usual = sorted(speeds)[(count - 1) // 2]  # the lower median, so that one slow replica makes no other one quick
        variance = self._spread**2
        usual_error = _MEDIAN_ERROR * variance * sum([1.0 / level.weight for _, level in levels]) / count**2
        slowness: dict[str, float] = {}
        seen: dict[str, float] = {}
        for (name, level), speed in zip(levels, speeds, strict=True):
            a, b, c = level.x[0] - x0, level.x[1] - x1, level.x[2] - x2
            error = variance / level.weight + usual_error
            error += c00 * a * a + c11 * b * b + c22 * c * c + 2.0 * (c01 * a * b + c02 * a * c + c12 * b * c)
            level.effect = effect = speed - usual
            if effect * effect > _ERRORS**2 * error:  # seldom
                certain = max(0.0, abs(effect) - _SAME - _ERRORS * math.sqrt(error))
                slowness[name] = math.exp(math.copysign(certain, effect))
            seen[name] = _SEEN * level.load + _SEEN_MORE
        exponent = s0 if s0 > _SAME + _ERRORS * math.sqrt(c00) else 0.0
        if not slowness and not exponent:
            return None
        return DecodeLaw(self._usual_s, self._usual_tokens, math.exp(x0), exponent, slowness, seen)

    def _solve(self) -> tuple[_Triple, _Triple, _Triple]:
        """Set the slopes; return the covariance of their errors."""
        m, r, variance = self._matrix, self._right, self._spread**2
        prior = variance / _SLOPE_SIGMA**2
        rows = _inverse((m[0] + prior, m[1], m[2]), (m[3] + prior, m[4]), m[5] + prior)
        right = (r[0], r[1], r[2])
        found = [
            max(low, min(high, _product(row, right))) for row, (low, high) in zip(rows, _SLOPE_BOUNDS, strict=True)
        ]
        self._slopes = (found[0], found[1], found[2])
        a, b, c = ((variance * row[0], variance * row[1], variance * row[2]) for row in rows)
        return a, b, c


def _middle(levels: Sequence[_Level]) -> _Triple:
    """Return the means of x."""
    count = len(levels)
    return (
        sum([level.x[0] for level in levels]) / count,
        sum([level.x[1] for level in levels]) / count,
        sum([level.x[2] for level in levels]) / count,
    )


def _product(x: _Triple, y: _Triple) -> float:
    return x[0] * y[0] + x[1] * y[1] + x[2] * y[2]


def _inverse(first: _Triple, second: tuple[float, float], third: float) -> tuple[_Triple, _Triple, _Triple]:
    """Return the inverse of a symmetric, positive definite matrix, of which the upper half is given in rows."""
    (a, b, c), (d, e), f = first, second, third
    aa, ab, ac = d * f - e * e, c * e - b * f, b * e - c * d
    bb, bc, cc = a * f - c * c, b * c - a * e, a * d - b * b
    k = 1.0 / (a * aa + b * ab + c * ac)
    return (k * aa, k * ab, k * ac), (k * ab, k * bb, k * bc), (k * ac, k * bc, k * cc)
