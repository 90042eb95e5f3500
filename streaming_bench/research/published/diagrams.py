"""Diagrams of the article's figures 1, 3 and 4, and a picture of a hedge. Drawn from constants, not from runs.

Units: milliseconds and seconds, as on the axes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import matplotlib as mpl
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from streaming_bench.report import plots
from streaming_bench.report.results import Results

_HEIGHT: Final = 0.56  # of a bar
_HEDGE_MS: Final = 20.0
_HICCUP_MS: Final = 187.0
_SHOWN_MS: Final = 60.0
FRAMES: Final = 25
_FRAMES_PER_S: Final = 6
_GIF_DPI: Final = 72


@dataclass(frozen=True, slots=True)
class AttemptBar:
    """One attempt on a time axis.

    Attributes:
        begin, end: its times.
        kind: "answer", "cancelled" or "error".
        label: text inside; empty for none.
    """

    begin: float
    end: float
    kind: str
    label: str = ""


_COLOURS: Final = {"answer": plots.BLUE, "cancelled": "#B4B4B4", "error": plots.VERMILION}
_CASES: Final[Sequence[tuple[str, Sequence[AttemptBar]]]] = (
    ("usual request", [AttemptBar(0, 20, "answer")]),
    ("failure", [AttemptBar(0, 8, "error")]),
    ("failure, retried", [AttemptBar(0, 8, "error"), AttemptBar(18, 38, "answer", "retry")]),
    ("straggler", [AttemptBar(0, 187, "answer")]),
    ("straggler, retried at 60 ms", [AttemptBar(0, 60, "cancelled"), AttemptBar(80, 100, "answer", "retry")]),
    ("straggler, hedged at 29 ms", [AttemptBar(0, 49, "cancelled"), AttemptBar(29, 49, "answer", "hedge")]),
)
_HEDGE: Final[Sequence[tuple[str, AttemptBar]]] = (
    ("server 1", AttemptBar(0.0, _HICCUP_MS, "answer")),
    ("server 2", AttemptBar(_HEDGE_MS, 31.0, "answer")),
    ("server 3", AttemptBar(_HEDGE_MS, 33.0, "answer")),
)


def draw_all(results: Results) -> None:
    """Draw all diagrams."""
    stragglers(results)
    window_rotation(results)
    decision_flow(results)
    hedge(results)


def stragglers(results: Results) -> None:
    """Draw a failure and a straggler, each unchanged, retried, and hedged."""
    title = "A straggler is no failure: a retry waits, a hedge does not"
    below = "Drawn to scale. The retry has a timeout of 60 ms and a backoff of 20 ms."
    with plots.picture(results, "straggler-failure", title, below=below) as (axes,):
        for row, (_name, spans) in enumerate(_CASES):
            for number, span in enumerate(spans):
                _bar(axes, row + (0.24 * number if len(spans) > 1 else 0.0), span, thin=len(spans) > 1)
        axes.set_yticks(range(len(_CASES)), [name for name, _ in _CASES])
        axes.set_ylim(len(_CASES) - 0.3, -0.7)
        axes.set_xlim(0, 235)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("milliseconds since the request")


def _bar(axes: Axes, row: float, span: AttemptBar, *, thin: bool = False) -> None:
    """Draw an attempt with the kind of its end."""
    height = _HEIGHT / 2 if thin else _HEIGHT
    axes.barh(row, span.end - span.begin, left=span.begin, height=height, color=_COLOURS[span.kind], zorder=3)
    text = f"{span.label}: {span.kind}" if span.label else span.kind
    axes.annotate(
        f"{text} at {span.end:g} ms", (span.end, row), (8, 0), textcoords="offset points", va="center", fontsize=15,
        color=_COLOURS[span.kind] if span.kind != "cancelled" else "#555555",
    )  # fmt: skip


def window_rotation(results: Results) -> None:
    """Draw the rotation of the article's two sketches, and the slices of this gateway's window."""
    title = "Recent samples: two sketches of 30 s, or slices of 10 s"
    below = (
        "Full colour: collects samples. Pale: only queried. Dashed: a query. Fewer than 100 samples are kept longer."
    )
    with plots.picture(results, "window-rotation", title, below=below, heights=(5, 8)) as (upper, lower):
        upper.set_title("the article: both sketches are merged, 30 to 60 s of samples")
        _rotation(upper, 30.0, 30.0, 5)
        lower.set_title("this gateway: 60 to 70 s of samples")
        _rotation(lower, 10.0, 60.0, 15)
        lower.set_xlabel("seconds")
        lower.set_xlim(0, 150)


def _rotation(axes: Axes, collects_s: float, kept_s: float, count: int) -> None:
    now_s = 100.0
    for number in range(count):
        begin_s = number * collects_s
        colour = (plots.BLUE, plots.GREEN)[number % 2]
        row = number % 2 if count <= 5 else number % 8
        axes.barh(row, collects_s, left=begin_s, height=0.7, color=colour, zorder=3)
        axes.barh(row, kept_s, left=begin_s + collects_s, height=0.7, color=colour, alpha=0.28, zorder=2)
    axes.axvline(now_s, color=plots.BLACK, linewidth=2.4, linestyle=(0, (4, 2)), zorder=4)
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.spines["left"].set_visible(False)


_BOXES: Final = {  # name: (x, y, text, colour)
    "request": (0.09, 0.84, "request\nto the replica\npredicted quickest", plots.BLUE),
    "timer": (0.32, 0.84, "timer: delay of the\ncurrent plan, from\nrecent times", plots.BLUE),
    "first": (0.57, 0.84, "first content\nbefore the timer?", plots.ORANGE),
    "usual": (0.87, 0.84, "answer is sent;\nits time is learned", plots.GREEN),
    "gain": (0.57, 0.52, "worth it, and\na replica with room\nin its quota?", plots.ORANGE),
    "budget": (0.32, 0.52, "credit in the budget,\nearned by measured\ntraffic?", plots.ORANGE),
    "wait": (0.87, 0.52, "no backup: wait,\nand decide again later", "#777777"),
    "backup": (0.32, 0.18, "backup to another\nreplica; its credit\nis spent", plots.BLUE),
    "race": (0.57, 0.18, "first content of\neither attempt wins", plots.BLUE),
    "done": (
        0.87,
        0.18,
        "answer is sent; the loser is\ncancelled, and learned as\n“not answered until then”",
        plots.GREEN,
    ),
}
_HALF: Final = {"wait": 0.113, "done": 0.132, "first": 0.09, "race": 0.1}  # of the width of a box
_ARROWS: Final = (
    ("request", "timer", ""),
    ("timer", "first", ""),
    ("first", "usual", "yes"),
    ("first", "gain", "no"),
    ("gain", "wait", "no"),
    ("gain", "budget", "yes"),
    ("budget", "wait", "no"),
    ("budget", "backup", "yes"),
    ("backup", "race", ""),
    ("race", "done", ""),
)


def decision_flow(results: Results) -> None:
    """Draw the decisions on one request."""
    title = "The decisions on one request"
    below = "An error never wins while another attempt may answer. The article has no decision on gain and quota."
    with plots.picture(results, "decision-flow", title, below=below) as (axes,):
        axes.set_axis_off()
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        for x, y, text, colour in _BOXES.values():
            axes.text(
                x, y, text, ha="center", va="center", fontsize=16, color="white", zorder=3,
                bbox={"boxstyle": "round,pad=0.55", "facecolor": colour, "edgecolor": "none"},
            )  # fmt: skip
        for origin, target, label in _ARROWS:
            _arrow(axes, origin, target, label)


def _arrow(axes: Axes, origin: str, target: str, label: str) -> None:
    """Draw an arrow between two boxes, the one from `budget` to `wait` around the box in between."""
    (x1, y1, *_), (x2, y2, *_) = _BOXES[origin], _BOXES[target]
    is_around = (origin, target) == ("budget", "wait")
    half_y = 0.105
    if is_around:
        start, end, bend = (x1 + 0.06, y1 - half_y), (x2, y2 - 0.075), "arc3,rad=0.28"
    elif y1 == y2:
        sign = 1 if x2 > x1 else -1
        start, end = (x1 + sign * _HALF.get(origin, 0.1), y1), (x2 - sign * _HALF.get(target, 0.1), y2)
        bend = "arc3"
    else:
        start, end, bend = (x1, y1 - half_y + 0.02), (x2, y2 + half_y), "arc3"
    style = {"arrowstyle": "-|>", "linewidth": 2.6, "color": "#333333", "connectionstyle": bend, "mutation_scale": 26}
    axes.annotate("", end, start, arrowprops=style, zorder=1)
    if label:
        middle_x, middle_y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
        offset = (0, -40) if is_around else (0, 10) if y1 == y2 else (20, 0)
        axes.annotate(label, (middle_x, middle_y), offset, textcoords="offset points", ha="center", fontsize=16)


def hedge(results: Results) -> None:
    """Draw a hedge to all other servers after 20 ms: its end as a picture, and its course as hedge.gif."""
    title = "A hedge after 20 ms, to both other servers"
    below = "The first answer wins, at 31 ms; the others are cancelled. Without the hedge it would take 187 ms."
    with plots.picture(results, "hedge", title, below=below) as (axes,):
        _frame(axes, _SHOWN_MS)
    with mpl.rc_context(fname=plots.STYLE):
        mpl.rcParams["figure.constrained_layout.use"] = False  # a layout for each frame would take seconds
        figure = Figure(figsize=(10, 4.2))
        figure.subplots_adjust(left=0.12, right=0.97, bottom=0.2, top=0.88)
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        writer = PillowWriter(fps=_FRAMES_PER_S)
        with writer.saving(figure, str(results.path("hedge.gif")), _GIF_DPI):
            for number in range(FRAMES):
                axes.clear()
                now_ms = _SHOWN_MS * min(1.0, number / (0.75 * FRAMES))  # the last frames show the end
                _frame(axes, now_ms)
                axes.set_title(f"{now_ms:.0f} ms")
                writer.grab_frame()


def _frame(axes: Axes, now_ms: float) -> None:
    """Draw the attempts up to a time."""
    won_ms = min(span.end for _, span in _HEDGE)
    for row, (_name, span) in enumerate(_HEDGE):
        if now_ms < span.begin:
            continue
        has_won = span.end == won_ms
        end_ms = min(now_ms, won_ms)
        over = now_ms >= won_ms
        colour = plots.GREEN if over and has_won else "#B4B4B4" if over else plots.BLUE
        axes.barh(row, end_ms - span.begin, left=span.begin, height=_HEIGHT, color=colour, zorder=3)
        if over:
            text = f"answers at {won_ms:g} ms" if has_won else "cancelled"
            axes.annotate(
                text, (won_ms, row), (10, 0), textcoords="offset points", va="center", fontsize=17,
                color=plots.GREEN if has_won else "#555555", fontweight="bold" if has_won else "normal",
            )  # fmt: skip
    axes.axvline(_HEDGE_MS, color=plots.BLACK, linewidth=2, linestyle=(0, (4, 2)))
    axes.set_yticks(range(len(_HEDGE)), [name for name, _ in _HEDGE])
    axes.set_ylim(len(_HEDGE) - 0.4, -0.6)
    axes.set_xlim(0, _SHOWN_MS)
    axes.set_xlabel("milliseconds since the request; dashed: the hedge")
