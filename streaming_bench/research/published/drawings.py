"""The plots of the publications, drawn from reproduced figures: before and after, percentiles, and costs.

Published figures are hollow circles. Units: milliseconds and seconds, as on the axes.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, PercentFormatter

from streaming_bench.report import plots
from streaming_bench.report.results import Results
from streaming_bench.research.parallel_calls import SHARES
from streaming_bench.research.published import sources
from streaming_bench.research.published.side_by_side import ReproducedRow
from streaming_bench.research.published.threshold_lab import ThresholdCost
from streaming_bench.simulation.runner import SimulatedRun

_PERCENTILES = ("p50", "p90", "p95", "p99", "p999")
_RATE_S = 2.0  # width of a step of a rate
_HOLLOW = "Hollow circles: published."


def response_times(results: Results, before: SimulatedRun, after: SimulatedRun) -> None:
    """Draw the response time of each request of the three servers, before and after hedging."""
    title = "Response time of each request, before and after hedging"
    below = "3 servers of 10 ms (sd 5 ms), 3% hiccups of 100 to 300 ms on one of them, 200 requests/s"
    with plots.picture(results, "response-times", title, panels=2, below=below) as panels:
        for axes, run, name, colour in zip(
            panels, (before, after), ("round robin", "hedged"), (plots.VERMILION, plots.BLUE), strict=True
        ):
            times_ms = 1000 * run.columns["ttft_s"]
            axes.plot(run.columns["arrived_s"], times_ms, ".", color=colour, markersize=4, alpha=0.5)
            for quantile, label in ((0.99, "p99"), (1.0, "p100")):
                value = float(np.quantile(times_ms, quantile))
                axes.axhline(value, color=plots.BLACK, linewidth=2, linestyle=(0, (4, 2)))
                axes.annotate(
                    f"{label} {value:.0f} ms", (1, value), (-4, 6), xycoords=("axes fraction", "data"),
                    textcoords="offset points", ha="right", fontweight="bold",
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
                )  # fmt: skip
            plots.log_ms(axes, vertical=True)
            axes.set_ylim(1, 600)
            axes.set_title(f"{name}: mean {times_ms.mean():.1f} ms")
            axes.set_xlabel("seconds")
        panels[0].set_ylabel("response time")


def request_rates(results: Results, before: SimulatedRun, after: SimulatedRun) -> None:
    """Draw the requests per second that the servers get, before and after hedging."""
    extra = float(after.columns["hedges"].mean())
    title = f"Requests per second at the servers: {100 * extra:.1f}% more (published: 6.8%)"
    below = "Backups are counted in the second in which their request arrived"
    with plots.picture(results, "requests-per-second", title, below=below) as (axes,):
        arrived_s = before.columns["arrived_s"]
        sent_s = np.repeat(after.columns["arrived_s"], 1 + after.columns["hedges"].astype(int))
        end_s = math.floor(float(arrived_s.max()) / _RATE_S) * _RATE_S or _RATE_S  # without an incomplete step
        plots.rate_over_time(axes, list(sent_s[sent_s < end_s]), "hedged", 0, width_s=_RATE_S)
        plots.rate_over_time(axes, list(arrived_s[arrived_s < end_s]), "round robin", 1, width_s=_RATE_S)
        axes.set_xlim(0, end_s)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds")
        axes.set_ylabel("requests per second")
        axes.legend(loc="lower right")


def latency_comparison(
    results: Results, runs: Mapping[str, Sequence[Sequence[str | int]]], heads: Sequence[str], threshold: str
) -> None:
    """Draw the lab's p99 and p99.9 of each interval, without and with a hedge at the threshold.

    Args:
        runs: rows of the tables over time by name: "baseline" and the hedged one.
    """
    base, hedged = runs["baseline"], runs[f"hedged-{threshold}"]
    at = heads.index("p999_ms")
    low, high = (function(int(row[at]) for row in hedged) for function in (min, max))
    title = f"Hedged at {threshold}, p99.9 is {low} to {high} ms in every interval"
    with plots.picture(results, "latency-comparison", title, below="Deterministic lab") as (axes,):
        for number, (name, rows) in enumerate((("not hedged", base), (f"hedged at {threshold}", hedged))):
            colour = (plots.VERMILION, plots.BLUE)[number]
            for head, dashes in (("p999_ms", "-"), ("p99_ms", (0, (4, 2))), ("p50_ms", (0, (1, 1.2)))):
                values = [int(row[heads.index(head)]) for row in rows]
                label = f"{name}, {head.removesuffix('_ms').replace('999', '99.9')}"
                axes.plot(
                    [int(row[0]) for row in rows], values, color=colour, linestyle=dashes, linewidth=3.4, marker="o",
                    markersize=8, label=label,
                )  # fmt: skip
        plots.log_ms(axes, vertical=True)
        axes.set_ylim(10, 12_000)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:g} s"))
        if len(base) <= 20:
            axes.set_xticks([int(row[0]) for row in base])
        axes.set_xlabel("elapsed")
        axes.set_ylabel("latency")
        axes.legend(loc="upper left", ncols=2)


def cost_table(results: Results, rows: Sequence[ThresholdCost]) -> None:
    """Draw gain and cost of each threshold, published figures as hollow circles."""
    loads = [100 * row.hedged_requests / row.total_requests for row in rows]
    figures: Sequence[tuple[str, Sequence[float], int, str]] = (  # title, values, column of the published table, format
        ("hedged p99", [row.hedged_p99_ms for row in rows], 2, "{:,.0f} ms"),
        ("extra load", loads, 4, "{:.1f}%"),
        ("wasted work", [row.wasted_work_ms for row in rows], 7, "{:,.0f} ms"),
    )
    names = [row.threshold for row in rows]
    title = "A hedge at p99 gains nothing and wastes the most"
    gained = rows[-1].hedged_p99_ms < rows[-1].baseline_p99_ms or rows[-1].wasted_work_ms < rows[0].wasted_work_ms
    if gained:
        title = "Gain and cost of each threshold"
    below = f"{rows[0].total_requests:,} requests, p99 {rows[0].baseline_p99_ms} ms without hedging. {_HOLLOW}"
    with plots.picture(results, "cost-table", title, panels=3, below=below, share_y=False) as panels:
        for axes, (name, values, column, form) in zip(panels, figures, strict=True):
            places = list(range(len(rows)))
            expected = [sources.COST[threshold][column] for threshold in names]
            drawn = axes.bar(places, values, color=(plots.GREEN, plots.BLUE, plots.VERMILION)[: len(rows)], width=0.62)
            axes.bar_label(drawn, [form.format(value) for value in values], padding=10, fontsize=17)
            _hollow(axes, places, expected)
            axes.set_xticks(places, [f"hedge\nat {threshold}" for threshold in names])
            axes.set_ylim(0, 1.22 * max(*values, *expected))
            axes.set_title(name)
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)


def percentiles(
    results: Results, name: str, title: str, groups: Mapping[str, Sequence[ReproducedRow]], below: str
) -> None:
    """Draw the percentiles of each row as a line, in a panel for each group."""
    is_shared = len(groups) > 1 and len({tuple(row.name for row in rows) for rows in groups.values()}) == 1
    with plots.picture(results, name, title, panels=len(groups), below=f"{below} {_HOLLOW}") as panels:
        for axes, (group, rows) in zip(panels, groups.items(), strict=True):
            keys = [key for key in _PERCENTILES if all(key in row.here for row in rows)]
            places = list(range(len(keys)))
            for number, row in enumerate(rows):
                style = _series_style(row.name, number)
                axes.plot(
                    places, [row.here[key] for key in keys], color=style.colour, linestyle=style.dashes,
                    linewidth=style.width, label=row.name,
                )  # fmt: skip
                for published in row.published.values():
                    seen = [(place, published[key]) for place, key in enumerate(keys) if key in published]
                    _hollow(axes, [place for place, _ in seen], [value for _, value in seen], style.colour)
            size = 17 if len(groups) < 3 else 13
            axes.set_xticks(places, [key.replace("999", "99.9") for key in keys], fontsize=size)
            plots.log_ms(axes, vertical=True)
            axes.set_title(group if len(groups) > 1 else "")
            if not is_shared:
                inside = {"loc": "upper left"}
                below_panel = {"loc": "upper left", "bbox_to_anchor": (-0.05, -0.1), "fontsize": 14}
                axes.legend(**(inside if len(groups) == 1 else below_panel))
        if is_shared:
            panels[0].figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
        panels[0].set_ylabel("latency")


def fan_out(results: Results) -> None:
    """Draw the share of requests with a slow call, by the number of calls."""
    title = "One slow call in a hundred is most requests"
    below = "P = 1 - (1 - p)^n; calls independent of each other"
    with plots.picture(results, "fan-out", title, below=below) as (axes,):
        calls = np.geomspace(1, 1000, 200)
        for number, share in enumerate(SHARES):
            given = plots.line_style("", number)
            label = f"{100 * share:g}% of calls are slow"
            axes.plot(calls, 1 - (1 - share) ** calls, color=given.colour, linewidth=3.5, label=label)
        for n, published in sources.FAN_OUT.items():
            axes.plot([n], [published], "o", color=plots.BLACK, markersize=11, zorder=5)
            axes.annotate(
                f"{published:.1%} at {n}".replace(".0%", "%"), (n, published), (12, -20), textcoords="offset points"
            )
        axes.set_xscale("log")
        axes.set_xlim(1, 1000)
        axes.set_ylim(0, 1.02)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlabel("calls per request")
        axes.set_ylabel("requests with at least one slow call")
        axes.legend(loc="center left")


def _hollow(axes: Axes, places: Sequence[float], values: Sequence[float], colour: str = plots.BLACK) -> None:
    axes.plot(places, values, "o", color=colour, markerfacecolor="white", markersize=11, markeredgewidth=2.4, zorder=5)


def _series_style(name: str, number: int) -> plots.LineStyle:
    """Return the style of one of many lines: a colour by number, and dashes for fixed delays."""
    dashes: plots.Dashes = (0, (5, 2)) if name.startswith(("static", "retry")) else "-"
    first = plots.BLACK, plots.BLUE, plots.VERMILION, plots.GREEN
    colours = (*first, plots.ORANGE, plots.PURPLE, plots.SKY, plots.GREY)
    return plots.LineStyle(colours[number % len(colours)], dashes, 2.6 if number == 0 else 3.2)
