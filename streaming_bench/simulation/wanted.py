"""The bounds of a workload: their form in a scenario file, and their check against the rows of a comparison. Pure.

A bound is a text such as "p99 <= 0.30x", "mean <= 650ms", "hedges <= 3%" or "short prompts: p99 <= 0.30x". `x` is the
ratio to hedging off on the same samples: of latencies the geometric mean of the seeds, of counts the ratio of the sums.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from gateway.simulated.quantities import UnitError
from streaming_bench.simulation.toml_section import Quantity

_FORM: Final = re.compile(r"(?:(?P<part>[\w -]+): )?(?P<figure>\w+) <= (?P<value>\d+(?:\.\d+)?)(?P<unit>x|%|ms)")


class Check(NamedTuple):
    """Outcome of one bound.

    Attributes:
        bound: text of the bound.
        measured: the figure with its unit.
        holds: True if the figure is within the bound.
    """

    bound: str
    measured: str
    holds: bool


class Wanted:
    """One bound.

    Args:
        text: the bound, in the form at the top of this file.
        worst: True to compare the ratio of the worst seed.
    """

    def __init__(self, text: str, *, worst: bool = False) -> None:
        match = _FORM.fullmatch(text)
        if match is None:
            raise UnitError(f"{text!r} is not a bound; write a figure and a value, such as 'hedges <= 3%'")
        self._part, self._figure, value, self._unit = match.group("part", "figure", "value", "unit")
        self._max = float(value)
        self._ratios = "to_off_max" if worst else "to_off"
        self._text = f"{text} on each seed" if worst else text

    def check(self, row: Mapping[str, Any], off: Mapping[str, Any]) -> Check:
        """Compare a policy's row with the bound."""
        if self._part is not None:
            row, off = row["parts"][self._part], off["parts"][self._part]
        figure, ratios = self._figure, row[self._ratios]
        if self._unit == "x":
            measured = ratios[figure] if figure in ratios else _ratio(row[figure], off[figure])
        else:
            measured = row[figure] * (100.0 if self._unit == "%" else 1.0)
        digits = {"x": 3, "%": 2, "ms": 0}[self._unit]
        return Check(self._text, f"{measured:,.{digits}f}{self._unit}", bool(measured <= self._max))


class Bounds(Quantity, tuple[Wanted, ...]):
    """Bounds, written as ["p99 <= 0.30x", "hedges <= 3%"]."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Self:
        if not isinstance(value, list):
            raise UnitError(f"{value!r} is not a list of bounds; write one such as ['hedges <= 3%']")
        return cls(Wanted(str(text)) for text in value)


NO_HARM: Final = (
    Wanted("p99 <= 1.02x"),
    Wanted("mean <= 1.01x"),
    Wanted("p99 <= 1.10x", worst=True),
    Wanted("mean <= 1.10x", worst=True),
)
"""Bounds of every workload: hedging makes no workload slower."""


def judge(rows: Sequence[Mapping[str, Any]], wanted: Sequence[Wanted]) -> list[Check]:
    """Check the row of `adaptive` against the row of `off`."""
    by_policy = {row["policy"]: row for row in rows}
    return [bound.check(by_policy["adaptive"], by_policy["off"]) for bound in (*NO_HARM, *wanted)]


def _ratio(count: float, base: float) -> float:
    return count / base if base else 1.0 + count
