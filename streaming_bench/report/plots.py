"""Style, axes and files of the bench's plots, readable from a distance.

The same data give the same SVG. It must not depend on the origin of numbers. Colours are from Okabe and Ito, which
people with any colour vision can distinguish; dashes distinguish lines, too. Only commands that draw import this file:
matplotlib comes with the extra `bench`. Units: as on the axes.
"""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from streaming_bench.report.results import Results
from streaming_bench.report.stats import Estimate

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE, GREY = (
    *("#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"),
    "#7F7F7F",
)
_OTHER_COLOURS: Final = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK, GREY)
STYLE: Final = Path(__file__).with_suffix(".mplstyle")
_SIZE: Final = (13.33, 7.5)  # inches, a 16:9 slide
_DPI: Final = 120
_NARROW: Final = 0.5  # share of the figure's width, below which three labels in a decade do not fit
_SECOND_MIN: Final = 5  # requests; quantiles of fewer are not drawn
_MARKER: Final = 9  # points
_SPOT: Final = 0.003  # of the load, or of a latency: closer points cannot be distinguished
_BELOW_WIDTH: Final = 125  # characters of small print per line


Dashes = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class LineStyle:
    """Style of a series."""

    colour: str
    dashes: Dashes
    width: float


_POLICY_STYLES: Final = {
    "adaptive": LineStyle(BLUE, "-", 4.0),
    "quantile": LineStyle(GREEN, (0, (6, 2)), 3.0),
    "static": LineStyle(ORANGE, (0, (4, 2, 1, 2)), 3.0),
    "ttfb": LineStyle(VERMILION, (0, (2, 1.5)), 3.0),
    "headers": LineStyle(PURPLE, (0, (1, 1.2)), 3.0),
    "library": LineStyle(PURPLE, (0, (1, 1.2)), 3.0),
    "fan_out": LineStyle(SKY, (0, (8, 2)), 3.0),
    "off": LineStyle(BLACK, "-", 2.6),
    "direct": LineStyle(GREY, (0, (5, 3)), 2.6),
}


_TITLES: Final = {
    "direct": "no gateway",
    "off": "off",
    "headers": "raced at headers",
    "ttfb": "TTFB-calibrated",
    "static": "static",
    "quantile": "TTFT quantile",
    "adaptive": "adaptive",
}


def display_name(policy: str) -> str:
    """Return the name of a policy in a plot."""
    return _TITLES.get(policy, policy)


def line_style(name: str, number: int) -> LineStyle:
    """Return the style of a policy, the same in all plots; other series are styled by their number."""
    known = _POLICY_STYLES.get(name.split(" ", maxsplit=1)[0].rstrip(","))
    return known or LineStyle(_OTHER_COLOURS[number % len(_OTHER_COLOURS)], "-", 3.0)


@contextmanager
def picture(
    results: Results,
    name: str,
    title: str,
    *,
    panels: int = 1,
    below: str = "",
    heights: Sequence[float] = (),
    share_x: bool = False,
    share_y: bool = True,
) -> Iterator[list[Axes]]:
    """Open a plot; write it as NAME.png and NAME.svg at the end of the context.

    Args:
        title: title in one line.
        panels: number of panels side by side.
        below: small print: the workload, the machine.
        heights: relative heights of stacked panels with one horizontal axis; empty for panels side by side.
        share_x, share_y: True for a common axis of panels side by side.
    """
    with mpl.rc_context(fname=STYLE):
        figure = Figure(figsize=_SIZE)
        if heights:
            ratios = {"height_ratios": list(heights)}
            axes = list(figure.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw=ratios)[:, 0])
        else:
            axes = list(figure.subplots(1, panels, sharex=share_x, sharey=share_y, squeeze=False)[0])
        figure.suptitle(title, x=0.012, ha="left", fontsize=24, fontweight="bold")
        yield axes
        if below:
            figure.supxlabel(
                "\n".join(textwrap.wrap(below, _BELOW_WIDTH)), x=0.012, ha="left", fontsize=13, color="#555555"
            )
        figure.savefig(results.path(f"{name}.png"), dpi=_DPI, metadata={"Software": None})
        figure.savefig(results.path(f"{name}.svg"), metadata={"Date": None})


def log_ms(axes: Axes, *, vertical: bool = False) -> None:
    """Use a logarithmic axis of milliseconds with labels such as 10 ms and 2 s instead of powers of ten."""
    axis = axes.yaxis if vertical else axes.xaxis
    if vertical:
        axes.set_yscale("log")
    else:
        axes.set_xscale("log")
    narrow = not vertical and axes.get_position().width < _NARROW
    axis.set_major_locator(LogLocator(10, subs=(1, 3) if narrow else (1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _position: _readable(value)))
    axis.set_minor_formatter(NullFormatter())


def cdf(axes: Axes, series: Mapping[str, Sequence[float] | NDArray[np.float64]]) -> None:
    """Draw the share of requests answered within a time, one line for each series.

    Args:
        series: milliseconds by name; infinite for requests without an answer.
    """
    for number, (name, values) in enumerate(series.items()):
        style = line_style(name, number)
        times = np.sort(np.asarray(values, dtype=float))
        shares = np.arange(1, len(times) + 1) / len(times)
        seen = np.isfinite(times)
        axes.step(
            times[seen], shares[seen], where="post", label=display_name(name), color=style.colour,
            linestyle=style.dashes, linewidth=style.width,
        )  # fmt: skip
    log_ms(axes)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


@dataclass(frozen=True, slots=True)
class Point:
    """Cost and latency of one measured policy."""

    extra_load: float
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Frontier:
    """Latency against extra load.

    Attributes:
        policies: points by policy; several points are joined by a line.
        bounds: lines that no policy can cross, by name.
        statistic: name of the latency: "p99".
    """

    policies: Mapping[str, Sequence[Point]]
    bounds: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    statistic: str = "p99"


def frontier(axes: Axes, drawn: Frontier) -> None:
    """Draw latency against extra load; below and to the left is better."""
    for number, (name, points) in enumerate(drawn.bounds.items()):
        dashes = ((0, (1, 1)), (0, (4, 3)))[number % 2]
        loads = [point.extra_load for point in points]
        axes.plot(loads, [p.latency_ms for p in points], color=GREY, linestyle=dashes, linewidth=2.4, label=name)
    covered = sum(_is_spot(points) for points in drawn.policies.values())
    for number, (name, points) in enumerate(drawn.policies.items()):
        style, size = line_style(name, number), _MARKER
        if _is_spot(points):  # several may coincide: the first is drawn largest
            covered -= 1
            size += covered * _MARKER
        axes.plot(
            [point.extra_load for point in points], [point.latency_ms for point in points], label=name,
            color=style.colour, linewidth=style.width, marker="o", markersize=size,
        )  # fmt: skip
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    log_ms(axes, vertical=True)
    axes.set_xlabel("extra upstream requests")
    axes.set_ylabel(f"{drawn.statistic} TTFT")


def _is_spot(points: Sequence[Point]) -> bool:
    """Return True if all points coincide, so that no line is visible."""
    loads, latencies = [point.extra_load for point in points], [point.latency_ms for point in points]
    return max(loads) - min(loads) < _SPOT and max(latencies) < (1 + _SPOT) * min(latencies)


def _readable(value_ms: float) -> str:
    if not math.isfinite(value_ms) or value_ms <= 0:
        return ""
    return f"{value_ms / 1000:g} s" if value_ms >= 1000 else f"{value_ms:g} ms"


def scatter(axes: Axes, series: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    """Draw TTFB against TTFT of the same requests.

    Args:
        series: milliseconds of both, by name.
    """
    everything = [value for both in series.values() for values in both for value in values if 0 < value < math.inf]
    low, high = min(everything, default=1.0) / 1.4, max(everything, default=1000.0) * 1.4
    axes.plot([low, high], [low, high], color=GREY, linewidth=2, linestyle=(0, (5, 4)), label="TTFT = TTFB")
    for number, (name, (firsts, contents)) in enumerate(series.items()):
        colour, marker = _OTHER_COLOURS[number % len(_OTHER_COLOURS)], "o^sD"[number % 4]
        axes.scatter(firsts, contents, s=26, alpha=0.55, color=colour, marker=marker, linewidths=0, label=name)
    log_ms(axes)
    log_ms(axes, vertical=True)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel("time to response headers (TTFB)")
    axes.set_ylabel("time to first token (TTFT)")


def over_time(
    axes: Axes, times_s: Sequence[float], values_ms: Sequence[float], name: str, number: int, *, share: float = 0.5
) -> None:
    """Draw each request's TTFT at its planned time, with a quantile of each second as a line.

    Args:
        times_s: planned times.
        values_ms: TTFTs; infinite values are not drawn.
        number: number of the series, for its colour.
    """
    style = line_style(name, number)
    at = np.asarray(times_s, dtype=float)
    values = np.asarray(values_ms, dtype=float)
    seen = np.isfinite(values)
    axes.scatter(at[seen], values[seen], s=14, alpha=0.3, color=style.colour, linewidths=0)
    seconds = np.floor(at[seen])
    steps = [second for second in np.unique(seconds) if np.count_nonzero(seconds == second) >= _SECOND_MIN]
    lines = [float(np.quantile(values[seen][seconds == second], share)) for second in steps]
    for at_step in range(len(steps) - 1, 0, -1):
        if steps[at_step] > steps[at_step - 1] + 1:  # another series was measured: no line across it
            steps.insert(at_step, math.nan)
            lines.insert(at_step, math.nan)
    label = f"{display_name(name)}, p{100 * share:.0f} of each second"
    places = [step + 0.5 for step in steps]
    axes.plot(places, lines, color=style.colour, linewidth=style.width + 0.5, marker="o", markersize=8, label=label)
    log_ms(axes, vertical=True)


def shaded(axes: Axes, begin_s: float, end_s: float, label: str) -> None:
    """Shade a span of time."""
    axes.axvspan(begin_s, end_s, color=YELLOW, alpha=0.35, linewidth=0, label=label, zorder=0)


def rate_over_time(axes: Axes, times_s: Sequence[float], name: str, number: int, *, width_s: float = 1.0) -> None:
    """Draw a rate per second as steps of `width_s`."""
    style = line_style(name, number)
    edges = width_s * np.arange(math.floor(max(times_s, default=0.0) / width_s) + 2)
    counts, _ = np.histogram(np.asarray(times_s, dtype=float), edges)
    axes.stairs(counts / width_s, edges, color=style.colour, linewidth=style.width, label=name)


def bars(axes: Axes, values: Mapping[str, Estimate], form: str, *, named: bool = True) -> None:
    """Draw a horizontal bar for each policy, the first on top, with its value and its interval.

    Args:
        values: estimates; an end of an interval that is infinite is not drawn.
        form: format of a value.
        named: True for names of policies; False if the panel to the left has them.
    """
    names = list(values)
    places = np.arange(len(names))
    colours = [line_style(name, number).colour for number, name in enumerate(names)]
    ends = [max(0.0, estimate.value) for estimate in values.values()]
    spans = [_span(estimate, end) for estimate, end in zip(values.values(), ends, strict=True)]
    errors = {"ecolor": "#B4B4B4", "elinewidth": 4, "capsize": 7, "capthick": 4}  # visible on every bar
    drawn = axes.barh(places, ends, xerr=np.transpose(spans), error_kw=errors, color=colours, height=0.66)
    axes.bar_label(drawn, [form.format(estimate.value) for estimate in values.values()], padding=8, fontsize=18)
    axes.set_yticks(places, [display_name(name) if named else "" for name in names], fontsize=19)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(1e-9, *(end + above for end, (_, above) in zip(ends, spans, strict=True))))
    axes.tick_params(axis="y", length=0)
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)


def _span(estimate: Estimate, end: float) -> tuple[float, float]:
    """Return the lengths of the interval below and above the end of a bar; 0 where it is open."""
    below, above = end - max(0.0, estimate.low), estimate.high - end
    return max(0.0, below) if math.isfinite(estimate.low) else 0.0, max(0.0, above) if math.isfinite(above) else 0.0
