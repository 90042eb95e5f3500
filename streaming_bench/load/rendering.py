"""Tables, warnings and plots of measured endpoints, for `load` and `report`. Units: as in tables.py."""

from collections.abc import Sequence

from streaming_bench.report import tables
from streaming_bench.report.figures import WAITS, figures
from streaming_bench.report.grid import Grid
from streaming_bench.report.optional_plots import draw
from streaming_bench.report.records import Run
from streaming_bench.report.results import Results


def render(results: Results | None, runs: Sequence[Run], small_print: str) -> list[str]:
    """Write tables and plots; return the lines to print.

    Args:
        results: folder to write to; None to write nothing.
        runs: one run for each target; the first is also shown as a ratio to the second, unless the client was late.
        small_print: description of the traffic.
    """
    rows = [figures(run) for run in runs]
    grids: list[Grid] = [*(tables.waits(rows, key) for key in WAITS), tables.throughput(rows)]
    failed = tables.errors(rows)
    grids += [] if failed is None else [failed]
    warnings = tables.warnings(rows)
    if len(runs) > 1 and not warnings:
        grids += tables.ratio_tables([runs[0]], {runs[0].name: runs[1]})
    if results is not None:
        results.json("figures.json", {"runs": [row.json() for row in rows]})
        results.markdown("tables.md", "Load", small_print, *grids, *warnings)
        warnings += draw("of_load", results, runs, small_print)
    return [*(line for grid in grids for line in (*grid.lines(), "")), *warnings]
