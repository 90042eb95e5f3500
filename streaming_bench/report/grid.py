"""A table of texts, for a terminal or a Markdown page. Pure.

The first column is left-aligned, all others are right-aligned, as numbers are read. No units but those in the heads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grid:
    """Heads and rows of cells.

    Attributes:
        heads: titles of the columns.
        rows: rows with one cell for each head.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def lines(self) -> list[str]:
        """Return the lines for a terminal."""
        return ["  ".join(row).rstrip() for row in self._aligned()]

    def markdown(self) -> list[str]:
        """Return the lines for a Markdown page."""
        heads, *rows = self._aligned()
        first, *others = ("-" * (len(head) - 1) for head in heads)
        rule = [f":{first}", *(f"{dashes}:" for dashes in others)]
        return ["| " + " | ".join(row) + " |" for row in (heads, rule, *rows)]

    def _aligned(self) -> list[list[str]]:
        rows = [self.heads, *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            [
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            for row in rows
        ]


def short(value: float) -> str:
    """Format with three significant digits; whole numbers from 100 on, with commas from 1,000 on; n/a for NaN."""
    if math.isnan(value):
        return "n/a"
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def percent(value: float, digits: int = 1) -> str:
    """Format a fraction of 1 as per cent."""
    return "n/a" if math.isnan(value) else f"{100 * value:.{digits}f}%"
