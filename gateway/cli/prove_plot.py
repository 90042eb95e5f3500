"""Draws the reports of `prove`; the only importer of matplotlib in the gateway. Units: milliseconds, requests."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from gateway.proof.report import Figure, ProofReport

_COLOURS = {"without": "#b0b0b0", "with": "#1f77b4"}


def draw(reports: Sequence[ProofReport], file: str) -> None:
    """Write a picture with one row for each model: misses, and latencies with their intervals."""
    picture = Picture(figsize=(9, 1 + 2.6 * max(1, len(reports))), layout="constrained")
    picture.suptitle("Direct effect of hedging, 95% intervals")
    axes = picture.subplots(max(1, len(reports)), 2, squeeze=False)
    for row, report in zip(axes, reports, strict=False):
        _bars(row[0], [(f"SLO misses\n> {report.slo_ms:g} ms", report.misses)])
        row[0].set_title(f"{report.model}: {report.requests:,} requests", fontsize=10)
        _bars(row[1], [("p95", report.p95_ms), ("p99", report.p99_ms), ("restricted mean", report.mean_ms)])
        row[1].set_ylabel("time to first token, ms")
    picture.legend(*axes[0][1].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    picture.savefig(file, dpi=150)


def _bars(axes: Axes, figures: Sequence[tuple[str, Figure]]) -> None:
    """Draw each figure without and with hedging; one that is not known has no bar."""
    for shift, name in ((-0.2, "without"), (0.2, "with")):
        for place, (_, figure) in enumerate(figures):
            found = figure.without if name == "without" else figure.with_
            if found is None:
                continue
            error = [[max(0.0, found.value - found.low)], [max(0.0, found.high - found.value)]]
            label = f"{name} hedging" if place == 0 else None
            axes.bar(place + shift, found.value, 0.38, yerr=error, capsize=3, color=_COLOURS[name], label=label)
    axes.set_xticks(range(len(figures)), [label for label, _ in figures])
    axes.spines[["top", "right"]].set_visible(False)
