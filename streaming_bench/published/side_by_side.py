"""Published figures beside those found here, row under row, with how far off each is. Pure.

Units: milliseconds; `extra` a fraction of the requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from streaming_bench.published.sources import PublishedFigures
from streaming_bench.report.grid import Grid, percent, short

HEADS: Final = {"mean": "mean", "p50": "p50", "p80": "p80", "p90": "p90", "p95": "p95", "p99": "p99"}
_DEEP: Final = {"p999": "p99.9", "p100": "p100", "extra": "requests +"}
_ALL: Final = {**HEADS, **_DEEP}


@dataclass(frozen=True, slots=True)
class ReproducedRow:
    """What was found for one row of a published table.

    Attributes:
        name: of the row.
        here: the figures.
        published: by source; empty for a row that is only here.
        by: the seeds' lowest and highest value of a figure, where it says something.
    """

    name: str
    here: PublishedFigures
    published: Mapping[str, PublishedFigures]
    by: Mapping[str, tuple[float, float]]


def grid(rows: Sequence[ReproducedRow]) -> Grid:
    """The table; `off by` is the difference to the published figures, in per cent of them."""
    keys = [key for key in _ALL if any(key in row.here for row in rows)]
    cells: list[list[str]] = []
    for row in rows:
        for source, figures in row.published.items():
            cells.append([f"{row.name}: {source}", *(_cell(key, figures) for key in keys)])
        cells.append([f"{row.name}: here", *(_cell(key, row.here) for key in keys)])
        for source, figures in row.published.items():
            cells.append([f"    off by, {source}", *(_deviation_cell(key, row.here, figures) for key in keys)])
        if row.by:
            cells.append(["    seeds from, to", *(_range_cell(key, row.by) for key in keys)])
    return Grid(["ms", *(_ALL[key] for key in keys)], cells)


def deviation(key: str, here: PublishedFigures, published: PublishedFigures) -> float | None:
    """How far off a figure is, as a fraction of the published one; shares by their difference; None: not published."""
    if key not in here or key not in published:
        return None
    return here[key] - published[key] if key == "extra" else here[key] / published[key] - 1


def _cell(key: str, figures: PublishedFigures) -> str:
    if key not in figures:
        return ""
    return percent(figures[key]) if key == "extra" else short(figures[key])


def _deviation_cell(key: str, here: PublishedFigures, published: PublishedFigures) -> str:
    by = deviation(key, here, published)
    return "" if by is None else f"{100 * by:+.1f}{' points' if key == 'extra' else '%'}"


def _range_cell(key: str, by: Mapping[str, tuple[float, float]]) -> str:
    return f"{short(by[key][0])}-{short(by[key][1])}" if key in by else ""
