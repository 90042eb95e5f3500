"""`prove`: prints or draws what hedging saved, as measured by a running gateway.

Reads `GET /admin/proof`; the estimate is the gateway's. matplotlib is imported only to draw. Units: milliseconds in the
document, seconds here.
"""

import argparse
import http.client
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from gateway.cli.admin_client import ask_admin
from gateway.cli.parser import ADMIN_KEY_VARIABLE, ExitCode
from gateway.cli.terminal import fail
from gateway.proof.report import Figure, ProofReport, Range
from gateway.proof.shadow import ShadowReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

_PLOTS = (".png", ".svg")
_COLOURS = {"without": "#b0b0b0", "with": "#1f77b4"}
_NOT_MEASURED = "no model is measured; set hedge.measure or policy: shadow (docs/proof.md), and wait for requests"


class Proof(msgspec.Struct):
    """The document of the admin address."""

    models: list[ProofReport]
    shadow: list[ShadowReport] = []


def prove(arguments: argparse.Namespace) -> ExitCode:
    """Fetch the reports and print them."""
    if arguments.plot and Path(arguments.plot).suffix not in _PLOTS:
        fail(f"{arguments.plot} is no picture; write a name that ends in .png or .svg")
        return ExitCode.USAGE
    try:
        proof = msgspec.json.decode(_fetch(arguments), type=Proof)
    except (OSError, http.client.HTTPException, ValueError) as error:
        fail(f"{arguments.admin} has no report ({error}); check --admin and ${ADMIN_KEY_VARIABLE}")
        return ExitCode.FAILED
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(proof), indent=2))
    else:
        print("\n\n".join([*map(as_text, proof.models), *map(shadow_text, proof.shadow)]) or _NOT_MEASURED)
    return _plot(proof.models, arguments.plot) if arguments.plot else ExitCode.OK


def _fetch(arguments: argparse.Namespace) -> bytes:
    asked = {"model": arguments.model, "hours": arguments.hours}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    return ask_admin(arguments.admin, "/admin/proof" + (f"?{query}" if query else ""))


def as_text(report: ProofReport) -> str:
    """Format one report as a table."""
    limit_s = report.limit_ms / 1000
    rows = [
        (f"SLO misses (> {report.slo_ms:g} ms)", report.misses),
        ("p95, ms", report.p95_ms),
        ("p99, ms", report.p99_ms),
        (f"mean up to {limit_s:g} s, ms", report.mean_ms),
    ]
    beaten = f"{report.losers_read:,} of {report.losers:,} beaten primaries read"
    held = f"{report.withheld:,} of {report.withheld + report.granted:,} hedges withheld"
    lines = [
        f"{report.model}: direct effect of hedging on {report.requests:,} requests in {_span(report.hours)}",
        f"{'':<26}{'without':>12}{'with':>12}  saved (95% interval)",
        *(f"{name:<26}{_value(row.without):>12}{_value(row.with_):>12}  {_saved(row, report)}" for name, row in rows),
        f"hedges: {report.hedges:,}; their cost: {_cost(report)}",
        f"measured: {beaten}, {held}; {report.unmeasured:,} beaten without a measurement",
    ]
    if report.bill is not None:
        bill = report.bill
        saved = f"{bill.saved.value:g} ({bill.saved.low:g} to {bill.saved.high:g}), {bill.saved_share:.1%}"
        lines.append(f"bill: {bill.cost:g} instead of {bill.usual:g} on the usual tier; saved {saved}")
    if report.missing is not None:
        lines.append(f"more data: {report.missing}")
    return "\n".join(lines)


def shadow_text(report: ShadowReport) -> str:
    """Format the report of a model in shadow as a table."""
    rows = [
        (f"SLO misses (> {report.slo_ms:g} ms)", report.misses),
        ("p95, ms", report.p95_ms),
        ("p99, ms", report.p99_ms),
        (f"mean up to {report.limit_ms / 1000:g} s, ms", report.mean_ms),
    ]
    share = report.hedges / max(1, report.requests)
    money = "" if report.cost is None else f", money {report.cost:g}"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.reasons.items()) or "none"
    wait = "" if report.late_ms is None else f"; first token {report.late_ms:,.4g} ms after the hedge on average"
    return "\n".join(
        (
            f"{report.model}: shadow, no hedge was sent; {report.requests:,} requests in {_span(report.hours)}",
            f"{'':<26}{'without':>12}  with hedging, if waits are",
            f"{'':<26}{'observed':>12}{'independent':>14}{'correlated':>14}",
            *(
                f"{name:<26}{_plain(row.observed):>12}{_plain(row.independent):>14}{_plain(row.correlated):>14}"
                for name, row in rows
            ),
            f"hedges: {report.hedges:,} ({share:.1%}): {reasons}{wait}",
            f"their cost: {report.tokens:,} tokens{money}; {report.unpredicted:,} counted as no saving",
        )
    )


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def _span(hours: float) -> str:
    return f"{hours:g} h" if hours >= 1 else f"{60 * hours:.0f} min"


def _value(found: Range | None) -> str:
    return _plain(None if found is None else found.value)


def _saved(figure: Figure, report: ProofReport) -> str:
    saved = figure.saved
    if saved is None:
        return "too small to measure" if report.enough and figure.without is not None else "too little data"
    return f"{saved.value:,.4g} ({saved.low:,.4g} to {saved.high:,.4g})"


def _cost(report: ProofReport) -> str:
    parts = [f"{report.tokens:,} tokens"]
    if report.cost is not None:
        parts.append(f"money {report.cost:g}")
    if report.cost_per_avoided_miss is not None:
        parts.append(f"{report.cost_per_avoided_miss:g} for each avoided miss")
    return ", ".join(parts)


def _plot(reports: Sequence[ProofReport], file: str) -> ExitCode:
    """Draw the reports, if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure as Picture
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        fail("--plot needs matplotlib, which is not installed; run `pip install matplotlib`")
        return ExitCode.FAILED
    try:
        _draw(Picture(figsize=(9, 1 + 2.6 * max(1, len(reports))), layout="constrained"), reports, file)
    except OSError as error:
        fail(f"{file} cannot be written ({error.strerror}); choose another name")
        return ExitCode.FAILED
    return ExitCode.OK


def _draw(picture: "Picture", reports: Sequence[ProofReport], file: str) -> None:
    """Write a picture with one row for each model: misses, and latencies with their intervals."""
    picture.suptitle("Direct effect of hedging, 95% intervals")
    axes = picture.subplots(max(1, len(reports)), 2, squeeze=False)
    for row, report in zip(axes, reports, strict=False):
        _bars(row[0], [(f"SLO misses\n> {report.slo_ms:g} ms", report.misses)])
        row[0].set_title(f"{report.model}: {report.requests:,} requests", fontsize=10)
        _bars(row[1], [("p95", report.p95_ms), ("p99", report.p99_ms), ("restricted mean", report.mean_ms)])
        row[1].set_ylabel("time to first token, ms")
    picture.legend(*axes[0][1].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    picture.savefig(file, dpi=150)


def _bars(axes: "Axes", figures: Sequence[tuple[str, Figure]]) -> None:
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
