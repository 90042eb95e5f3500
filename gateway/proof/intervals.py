"""95 % intervals: of shares and means of random samples from a finite number of requests, and of sums of them. Pure.

A sample of all requests leaves nothing unknown, so its interval has no width.
"""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

_Z: Final = 1.959964  # 95 %
_T: Final = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706)  # for 1 to 5 degrees of freedom


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> "Interval":
        """Multiply by a factor of at least 0."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)


def exactly(value: float) -> Interval:
    """Return a known value."""
    return Interval(value, value, value)


def total(parts: Iterable[Interval]) -> Interval:
    """Return the sum of independent estimates (method of variance estimates recovery, Zou and Donner 2008)."""
    value = below = above = 0.0
    for part in parts:
        value += part.value
        below += (part.value - part.low) ** 2
        above += (part.high - part.value) ** 2
    return Interval(value, value - math.sqrt(below), value + math.sqrt(above))


def split_difference(one: Interval, other: Interval, correlation: float) -> Interval:
    """Return the difference of two estimates of one population, from a random split of it into two samples.

    One sample has what the other lacks, so that the errors of the estimates are correlated by -1 times the correlation
    of both values of a unit (Zou and Donner 2008, with the covariance of a split).

    Args:
        correlation: correlation of both values of a unit, 0 to 1. No unit shows both, so it is a bound.
    """
    value = one.value - other.value
    ends = [
        math.sqrt(a * a + b * b + 2.0 * correlation * a * b)
        for a, b in ((one.value - one.low, other.high - other.value), (one.high - one.value, other.value - other.low))
    ]
    return Interval(value, value - ends[0], value + ends[1])


def correlation_max(p: float, q: float) -> float:
    """Return the largest correlation of two events with these probabilities (Frechet): one implies the other."""
    scale = math.sqrt(p * (1 - p) * q * (1 - q))
    return (min(p, q) - p * q) / scale if scale else 0.0


def share(hits: float, sample: int, population: int) -> Interval:
    """Return the share of a population by Wilson's interval, with `hits` in a random sample of it."""
    if sample <= 0:
        return Interval(0.5, 0.0, 1.0) if population else exactly(0.0)
    p = hits / sample
    if sample >= population:
        return exactly(p)
    size = sample * (population - 1) / (population - sample)
    scale = 1 + _Z * _Z / size
    middle = (p + _Z * _Z / (2 * size)) / scale
    half = _Z * math.sqrt(p * (1 - p) / size + _Z * _Z / (4 * size * size)) / scale
    return Interval(p, max(0.0, middle - half), min(1.0, middle + half))


def mean(sum_: float, squares: float, sample: int, population: int) -> Interval:
    """Return the mean of positive values in a population, from a random sample of it.

    The interval is symmetric on a logarithmic scale: latencies are skewed.
    """
    if sample >= population:
        return exactly(sum_ / sample if sample else 0.0)
    if sample < 2:
        return Interval(sum_, 0.0, math.inf)
    value = sum_ / sample
    variance = max(0.0, squares - sample * value * value) / (sample - 1)
    error = math.sqrt(variance / sample * (1 - sample / population))
    if value <= 0 or not error:
        return exactly(value)
    factor = math.exp(student_t(sample - 1) * error / value)
    return Interval(value, value / factor, value * factor)


def student_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t: exact for few degrees of freedom, else expanded at the normal one."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = _Z
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
