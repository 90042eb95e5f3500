"""Measured runs as tables, for the terminal and for Markdown. Pure: returns grids and sentences.

Units: as in figures.py; times are in milliseconds, with the 95 % confidence interval in brackets after the value.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from streaming_bench.report.figures import LAG_MS_MAX, WAITS, Figures, compare_runs
from streaming_bench.report.grid import Grid, percent, short
from streaming_bench.report.records import Run
from streaming_bench.report.stats import QUANTILES, Estimate

_RATIOS: Final = {"mean": None, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def overview(rows: Sequence[Figures]) -> Grid:
    """Return the first table: TTFB next to TTFT, hedges and their cost."""
    heads = ("run", "TTFB p50", "TTFB p99", "TTFT p50", "p90", "p95", "p99", "extra load", "hedged", "won", "delay")
    cells = []
    for row in rows:
        waits = [short(row.waits["ttfb"][share].value) for share in ("p50", "p99")]
        waits += [short(row.waits["ttft"][share].value) for share in ("p50", "p90", "p95", "p99")]
        hedged = percent(row.hedged / row.requests) if row.requests else "n/a"
        won = percent(row.won / row.hedged, 0) if row.hedged else "-"
        delay = "-" if math.isnan(row.learned_ms) else short(row.learned_ms)
        cells.append((row.name, *waits, percent(row.extra_load), hedged, won, delay))
    return Grid(heads, cells)


def waits(rows: Sequence[Figures], key: str) -> Grid:
    """Return all quantiles of one wait, with their intervals."""
    cells = [(row.name, *(with_interval(row.waits[key][share]) for share in QUANTILES)) for row in rows]
    return Grid((f"{WAITS[key][0]}, ms", *QUANTILES), cells)


def throughput(rows: Sequence[Figures]) -> Grid:
    """Return the table of token rates, wasted tokens, failures and the client's own delay."""
    heads = ("run", "requests", "failed", "tokens/s", "gap p99", "tokens", "wasted tokens", "client lag p99")
    cells = []
    for row in rows:
        late = " late!" if row.lag_ms > LAG_MS_MAX else ""
        failed = sum(row.errors.values())
        rate, gap = short(row.tokens_per_s), short(row.gap_ms)
        wasted = "n/a" if math.isnan(row.wasted_tokens) else f"{row.wasted_tokens:,.0f}"
        lag = f"{short(row.lag_ms)}{late}"
        cells.append((row.name, f"{row.requests:,}", f"{failed:,}", rate, gap, f"{row.tokens:,}", wasted, lag))
    return Grid(heads, cells)


def errors(rows: Sequence[Figures]) -> Grid | None:
    """Return the failures by class; None without failures."""
    classes = sorted({name for row in rows for name in row.errors})
    if not classes:
        return None
    return Grid(
        ("failed", *classes), [(row.name, *(f"{row.errors.get(name, 0):,}" for name in classes)) for row in rows]
    )


def ratio_tables(runs: Sequence[Run], others: Mapping[str, Run]) -> list[Grid]:
    """Return a table of ratios for each wait, with bootstrap intervals.

    Args:
        runs: the numerators.
        others: the denominators, by the names of the runs.
    """
    grids = []
    for key, (title, _) in WAITS.items():
        cells = []
        for run in runs:
            other = others[run.name]
            found = [with_interval(compare_runs(run, other, key, share), "x") for share in _RATIOS.values()]
            cells.append((run.name if other.name == run.name else f"{run.name} / {other.name}", *found))
        grids.append(Grid((f"{title}, ratio", *_RATIOS), cells))
    return grids


def warnings(rows: Sequence[Figures]) -> list[str]:
    """Return reasons to distrust the tables."""
    late = [row.name for row in rows if row.lag_ms > LAG_MS_MAX]
    if not late:
        return []
    where = "; ".join(late)
    why = (
        f"this machine cannot keep the rate; the p99 of its event loop's delay is over {LAG_MS_MAX:g} ms, which is "
        "part of all times there, so they are not compared"
    )
    do = "Send fewer requests, or measure on an idle machine."
    return [f"The measuring client was late in {where}: {why}. {do}"]


def with_interval(estimate: Estimate, unit: str = "") -> str:
    """Format a value with its interval; ? marks an end for which the sample is too small."""
    if math.isnan(estimate.value):
        return "n/a"
    shown = "{:.2f}".format if unit == "x" else short
    value = "never" if math.isinf(estimate.value) else shown(estimate.value)
    low = shown(estimate.low) if math.isfinite(estimate.low) else "?"
    high = shown(estimate.high) if math.isfinite(estimate.high) else "?"
    return f"{value}{unit} [{low}, {high}]"
