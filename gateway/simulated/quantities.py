"""Parses durations, shares and distributions of durations.

Their text has a unit ("20ms", "4%", "lognormal:20ms,5ms | 4% 1s"); their values are seconds and fractions. A
distribution has no state and draws from the generator of its caller, so that one seed decides all draws.
"""

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)")

Draw = Callable[[random.Random, int], float]
"""Maps a generator and the number of a request to seconds."""


class UnitError(ValueError):
    """An invalid quantity; the message names the value and its correction."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution of durations.

    Attributes:
        text: the text it was parsed from; distributions are equal if their texts are.
        draw: returns one value in seconds.
    """

    text: str
    draw: Draw = field(compare=False, repr=False)


def duration(value: object) -> float:
    """Parse "250ms", "1.5s" or "0" to seconds."""
    if value in (0, "0"):
        return 0.0
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise UnitError(f"{value!r} is not a duration; write a duration with its unit, such as '20ms' or '1.5s'")
    return float(match[1]) * _SECONDS[match[2]]


def share(value: object) -> float:
    """Parse "4%", "0.04" or 0.04 to a fraction from 0 to 1."""
    try:
        text = str(value).strip()
        fraction = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        fraction = math.nan
    if not 0 <= fraction <= 1:
        raise UnitError(f"{value!r} is not a share from 0% to 100%; write a share such as '4%' or '0.04'")
    return fraction


def fixed(seconds: float) -> Distribution:
    """Return a distribution with one value."""
    return Distribution(f"{seconds * 1e3:g}ms", _fixed(seconds))


def distribution(value: object) -> Distribution:
    """Parse a distribution.

    Args:
        value: SHAPE, or "SHAPE | 4% SHAPE | 1% SHAPE": each later shape has its share, the first what remains. A SHAPE
            is a duration or `lognormal:MEAN,SD`, `lognormal_median:MEDIAN,SIGMA`, `normal:MEAN,SD[,MIN,MAX]`,
            `uniform:MIN,MAX`, `exponential:MEAN[,MIN,MAX]`, `pareto:MIN,ALPHA`, `trace:D,D,...` (in turn, repeated).

    Raises:
        UnitError: The value is not a distribution.
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
        raise UnitError(f"the shares in {value!r} are above 100% in total; lower them")
    return Distribution(value, _mixture(rest, rare) if rare else rest)


def _shape(text: str) -> Draw:
    name, colon, rest = text.partition(":")
    if not colon:
        return _fixed(duration(text))
    if name not in _SHAPES:
        raise UnitError(f"the shape {name!r} is unknown; write a duration or one of {', '.join(_SHAPES)}")
    make, counts, plain = _SHAPES[name]
    words = rest.split(",")
    if counts and len(words) not in counts:
        raise UnitError(f"{text!r} has the wrong number of values; give {name} {' or '.join(map(str, counts))}")
    numbers = [_positive(word) if index == plain else duration(word) for index, word in enumerate(words)]
    return make(*numbers)


def _positive(text: str) -> float:
    if not re.fullmatch(r"\d*\.?\d+", text) or float(text) == 0:
        raise UnitError(f"{text!r} is not a number above 0; write a number without a unit, such as 0.3")
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


# name -> constructor, allowed numbers of values (empty: any), index of the value without a unit (None: none)
_SHAPES: dict[str, tuple[Callable[..., Draw], tuple[int, ...], int | None]] = {
    "lognormal": (_lognormal, (2,), None),
    "lognormal_median": (_lognormal_median, (2,), 1),
    "normal": (_normal, (2, 4), None),
    "uniform": (_uniform, (2,), None),
    "exponential": (_exponential, (1, 3), None),
    "pareto": (_pareto, (2,), 1),
    "trace": (_trace, (), None),
}
