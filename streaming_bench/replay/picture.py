"""The picture of a replay: latency and slow requests over the budget, with intervals and the band of correlation.

Units: milliseconds and per cent, as on the axes.
"""

from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, PercentFormatter

from streaming_bench.replay.frontier import ReplayFrontier
from streaming_bench.report.grid import percent, short
from streaming_bench.report.plots import BLUE, GREY, ORANGE, VERMILION, picture
from streaming_bench.report.results import Results

_LEGEND: Final = 0.35  # of the highest value, above all lines


def draw_replay(path: Path, frontier: ReplayFrontier, below: str) -> list[Path]:
    """Write the picture as PNG and as SVG; return both paths.

    Args:
        path: path of one of them.
        below: small print: the log.
    """
    results = Results(path.parent, (), None)
    quantile = "p99" if "p99" in frontier.shown else "p95"
    with picture(results, path.stem, _title(frontier, quantile), panels=2, below=below, share_y=False) as (left, right):
        _panel(left, frontier, quantile, 1e3)
        left.set_ylabel(f"{quantile} time to first token, ms")
        _panel(right, frontier, "misses", 1.0)
        right.set_ylabel(f"requests over {short(1e3 * frontier.bounds.slo_s)} ms")
        right.yaxis.set_major_formatter(PercentFormatter(1.0))
        left.legend(loc="upper right", fontsize=15)
    return [path.with_suffix(".png"), path.with_suffix(".svg")]


def _title(frontier: ReplayFrontier, quantile: str) -> str:
    best, goal = frontier.recommended, frontier.goal
    if best is None or goal is None:
        return "No hedge budget saves more than noise"
    shown = goal if goal in ("p95", "p99") else quantile
    if goal == "misses":
        before, after = frontier.off["misses"].value, best.independent["misses"].value.value
        slow = f"slow requests from {percent(before)} to {percent(after)}"
        return f"A {percent(best.budget, 0)} hedge budget takes {slow}"
    name = "mean" if goal == "mean" else shown
    before_ms, after_ms = (1e3 * each.value for each in (frontier.off[name], best.independent[name].value))
    return f"A {percent(best.budget, 0)} hedge budget takes the {name} from {short(before_ms)} to {short(after_ms)} ms"


def _panel(axes: Axes, frontier: ReplayFrontier, figure: str, scale: float) -> None:
    budgets = [0.0, *(row.budget for row in frontier.rows)]
    free = [frontier.off[figure], *(row.independent[figure].value for row in frontier.rows)]
    bound = [frontier.off[figure], *(row.correlated[figure].value for row in frontier.rows)]
    values, limits = ([scale * each.value for each in side] for side in (free, bound))
    axes.fill_between(budgets, values, limits, color=ORANGE, alpha=0.25, lw=0, label="between: not known from the log")
    axes.plot(budgets, limits, color=GREY, lw=2.4, ls=(0, (4, 3)), label="if waits are fully correlated")
    axes.plot(budgets, values, color=BLUE, lw=4.0, marker="o", ms=9, label="if waits are independent")
    if all(each.known for each in free):
        spans = [[scale * (each.value - each.low), scale * (each.high - each.value)] for each in free]
        ends = [[max(0.0, below) for below, _ in spans], [max(0.0, above) for _, above in spans]]
        axes.errorbar(budgets, values, yerr=ends, color=BLUE, lw=2.4, capsize=6, ls="none", label="95 % interval")
    best = frontier.recommended
    if best is not None:
        place = [row.budget for row in frontier.rows].index(best.budget) + 1
        axes.plot([best.budget], [values[place]], color=VERMILION, marker="o", ms=16, ls="none", label="recommended")
    axes.set_ylim(0.0, (1.0 + _LEGEND) * max(axes.get_ylim()[1], 1e-9))
    axes.margins(x=0.03)
    axes.set_xlabel("hedge budget")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:.0%}"))
