"""Readable quantities for simulated replicas: durations, shares and distributions of durations.

Outside they are strings with a unit ("20ms", "4%", "lognormal:20ms,5ms | 4% 1s"), inside seconds and fractions. Knows
nothing of requests. A distribution draws from the generator it is handed and keeps no state: a seed decides all.
"""

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)")

Draw = Callable[[random.Random, int], float]
"""(generator, number of the request) -> seconds."""


class UnitError(ValueError):
    """A quantity cannot be read; the message says what was found and what to write instead."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution of durations.

    Attributes:
        text: how it was written; two distributions are equal if they were written alike.
        draw: one value in seconds.
    """

    text: str
    draw: Draw = field(compare=False, repr=False)


def duration(value: object) -> float:
    """Read "250ms", "1.5s" or "0" as seconds."""
    if value in (0, "0"):
        return 0.0
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise UnitError(f"found {value!r}; write a duration with its unit, such as '20ms' or '1.5s'")
    return float(match[1]) * _SECONDS[match[2]]


def share(value: object) -> float:
    """Read "4%", "0.04" or 0.04 as a fraction from 0 to 1."""
    try:
        text = str(value).strip()
        fraction = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        fraction = math.nan
    if not 0 <= fraction <= 1:
        raise UnitError(f"found {value!r}; write a share such as '4%' or '0.04'")
    return fraction


def fixed(seconds: float) -> Distribution:
    """Always the same."""
    return Distribution(f"{seconds * 1e3:g}ms", _fixed(seconds))


def distribution(value: object) -> Distribution:
    """Read a distribution.

    Args:
        value: SHAPE, or "SHAPE | 4% SHAPE | 1% SHAPE": each later shape has its share, the first has the rest. A SHAPE
            is a duration or `lognormal:MEAN,SD`, `lognormal_median:MEDIAN,SIGMA`, `normal:MEAN,SD[,MIN,MAX]`,
            `uniform:MIN,MAX`, `exponential:MEAN[,MIN,MAX]`, `pareto:MIN,ALPHA`, `trace:D,D,...` (in turn, again and
            again).

    Raises:
        UnitError: It is none of these.
    """
    if not isinstance(value, str):
        return fixed(duration(value))
    first, *others = (part.strip() for part in value.split("|"))
    rest = _shape(first)
    rare = []
    for other in others:
        fraction, _, shape = other.partition(" ")
        rare.append((share(fraction), _shape(shape.strip())))
    if sum(fraction for fraction, _ in rare) > 1:
        raise UnitError(f"found {value!r}; the shares of all but the first shape may add up to 100% at most")
    return Distribution(value, _mixture(rest, rare) if rare else rest)


def _shape(text: str) -> Draw:
    """One shape of a distribution."""
    name, colon, rest = text.partition(":")
    if not colon:
        return _fixed(duration(text))
    if name not in _SHAPES:
        raise UnitError(f"found the shape {name!r}; write a duration or one of {', '.join(_SHAPES)}")
    make, counts, plain = _SHAPES[name]
    words = rest.split(",")
    if counts and len(words) not in counts:
        raise UnitError(f"found {text!r}; {name} takes {' or '.join(map(str, counts))} values")
    numbers = [_positive(word) if index == plain else duration(word) for index, word in enumerate(words)]
    return make(*numbers)


def _positive(text: str) -> float:
    """A number without a unit, above 0."""
    if not re.fullmatch(r"\d*\.?\d+", text) or float(text) == 0:
        raise UnitError(f"found {text!r}; write a number above 0 such as 0.3")
    return float(text)


def _fixed(seconds: float) -> Draw:
    return lambda _rng, _number: seconds


def _lognormal(mean_s: float, sd_s: float) -> Draw:
    if mean_s == 0:
        return _fixed(0.0)
    variance = math.log1p((sd_s / mean_s) ** 2)
    mu, sigma = math.log(mean_s) - variance / 2, math.sqrt(variance)
    return lambda rng, _number: rng.lognormvariate(mu, sigma)


def _lognormal_median(median_s: float, sigma: float) -> Draw:
    return lambda rng, _number: median_s * rng.lognormvariate(0.0, sigma)


def _normal(mean_s: float, sd_s: float, min_s: float = 0.0, max_s: float = math.inf) -> Draw:
    return lambda rng, _number: min(max_s, max(min_s, rng.normalvariate(mean_s, sd_s)))


def _uniform(min_s: float, max_s: float) -> Draw:
    return lambda rng, _number: rng.uniform(min_s, max_s)


def _exponential(mean_s: float, min_s: float = 0.0, max_s: float = math.inf) -> Draw:
    return lambda rng, _number: min(max_s, max(min_s, -mean_s * math.log(1.0 - rng.random())))


def _pareto(min_s: float, alpha: float) -> Draw:
    return lambda rng, _number: min_s * rng.paretovariate(alpha)


def _trace(*values_s: float) -> Draw:
    return lambda _rng, number: values_s[number % len(values_s)]


def _mixture(rest: Draw, rare: list[tuple[float, Draw]]) -> Draw:
    def draw(rng: random.Random, number: int) -> float:
        coin = rng.random()
        for fraction, shape in rare:
            if coin < fraction:
                return shape(rng, number)
            coin -= fraction
        return rest(rng, number)

    return draw


# name -> what makes it, how many values it takes (empty: any), which of them is a plain number
_SHAPES: dict[str, tuple[Callable[..., Draw], tuple[int, ...], int | None]] = {
    "lognormal": (_lognormal, (2,), None),
    "lognormal_median": (_lognormal_median, (2,), 1),
    "normal": (_normal, (2, 4), None),
    "uniform": (_uniform, (2,), None),
    "exponential": (_exponential, (1, 3), None),
    "pareto": (_pareto, (2,), 1),
    "trace": (_trace, (), None),
}
