"""Published figures next to reproduced ones, row by row, with the deviation of each. Pure.

Units: milliseconds; `extra` is a fraction of the requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from streaming_bench.report.grid import Grid, percent, short
from streaming_bench.research.published.sources import PublishedFigures

_KEYS: Final = ("mean", "p50", "p80", "p90", "p95", "p99", "p999", "p100", "extra")
_HEADS: Final = {"p999": "p99.9", "extra": "requests +"}


@dataclass(frozen=True, slots=True)
class ReproducedRow:
    """Figures of one row of a published table.

    Attributes:
        name: name of the row.
        here: reproduced figures.
        published: published figures by source; empty for a row that exists only here.
        spans: lowest and highest value over the seeds, of the figures that vary.
    """

    name: str
    here: PublishedFigures
    published: Mapping[str, PublishedFigures]
    spans: Mapping[str, tuple[float, float]]


def grid(rows: Sequence[ReproducedRow]) -> Grid:
    """Return the table; `off by` is the difference to the published figure, in per cent of it."""
    keys = [key for key in _KEYS if any(key in row.here for row in rows)]
    cells: list[list[str]] = []
    for row in rows:
        for source, figures in row.published.items():
            cells.append([f"{row.name}: {source}", *(_cell(key, figures) for key in keys)])
        cells.append([f"{row.name}: here", *(_cell(key, row.here) for key in keys)])
        for source, figures in row.published.items():
            cells.append([f"    off by, {source}", *(_deviation_cell(key, row.here, figures) for key in keys)])
        if row.spans:
            cells.append(["    seeds from, to", *(_range_cell(key, row.spans) for key in keys)])
    return Grid(["ms", *(_HEADS.get(key, key) for key in keys)], cells)


def gains(before: PublishedFigures, after: PublishedFigures) -> Grid:
    """Return the study's own table of a gain: both figures, their difference, and the improvement in per cent."""
    keys = [key for key in _KEYS if key in before and key in after and key != "extra"]
    cells = []
    for key in keys:
        saved = before[key] - after[key]
        cells.append(
            [key, *(f"{value:.2f}" for value in (before[key], after[key], saved)), f"{saved / before[key]:.2%}"]
        )
    return Grid(["Metric", "Original", "Hedged", "Absolute Diff", "% Improvement"], cells)


def deviation(key: str, here: PublishedFigures, published: PublishedFigures) -> float | None:
    """Return the deviation of a figure; None if it is not published.

    Returns:
        A fraction of the published figure; for `extra`, the difference of the shares.
    """
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


def _range_cell(key: str, spans: Mapping[str, tuple[float, float]]) -> str:
    if key not in spans:
        return ""
    low, high = (percent(value) if key == "extra" else short(value) for value in spans[key])
    return f"{low}-{high}"
