"""`docs-figures`: the two plots of docs/hedging.md, from two workloads in virtual time.

Owns their content. The same code and the same version of matplotlib give the same plots. Units: milliseconds on
axes; ratios are multiples of the predicted TTFT.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from streaming_bench import progress
from streaming_bench.report import plots
from streaming_bench.report.results import Results
from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples
from streaming_bench.simulation.runner import SimulatedRun
from streaming_bench.simulation.scenario import load
from ttft_gateway.hedging.plan import Plan as HedgePlan

SEED: Final = 101
REQUESTS: Final = 12_000
BUDGETS: Final = {"W2": 0.20, "W6": 0.10}
TITLES: Final = {"W2": "Streaming, 1 in 5 misses its cache", "W6": "Four providers with bad times"}
SPANS_MS: Final = {"W2": (7, 400), "W6": (70, 40_000)}
POLICIES: Final = ("off", "adaptive")
_RATIO_MAX: Final = 40.0  # end of the axis
_SHARE_MIN: Final = 2e-3  # of requests; a window of a minute has too few samples below

_Runs = Mapping[str, Mapping[str, SimulatedRun]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("folder", type=Path, help="folder for the plots: docs/images")


def run(args: argparse.Namespace) -> None:
    """Simulate and draw."""
    results = Results(args.folder, args.argv, SEED)
    runs = _runs(progress.bar())
    _survival(results, runs)
    _cdfs(results, runs)
    print(f"wrote hedging-survival and hedging-ttft to {args.folder}, as PNG and SVG")


def _runs(show: progress.Progress) -> _Runs:
    found: dict[str, dict[str, SimulatedRun]] = {workload: {} for workload in BUDGETS}
    plans = [(workload, policy) for workload in BUDGETS for policy in POLICIES]
    for index, (workload, policy) in enumerate(plans):
        plan = ComparisonPlan(POLICIES, (SEED,), budget=BUDGETS[workload])
        samples = SeedSamples(load(workload, REQUESTS), plan, SEED)
        one = progress.of_run(show, f"{workload}, {policy}", index, len(plans), REQUESTS)
        found[workload][policy] = samples.run(policy, one)
    show("done", 1.0)
    return found


def _survival(results: Results, runs: _Runs) -> None:
    """Draw the survival curve that adaptive has learned at the end of each workload, and its delay."""
    title = "Survival of waits, and the delay of the backup"
    below = f"Learned by `adaptive` over its last minute; Kaplan-Meier over both kinds of waits; seed {SEED}"
    with plots.picture(results, "hedging-survival", title, panels=len(runs), below=below) as panels:
        for axes, (workload, policies) in zip(panels, runs.items(), strict=True):
            plan = policies["adaptive"].plan
            assert plan is not None
            _curve(axes, plan, BUDGETS[workload])
            axes.set_title(TITLES[workload], fontsize=19)
        panels[0].set_ylabel("share of waits that last longer")


def _curve(axes: Axes, plan: HedgePlan, budget: float) -> None:
    curve = plan.curve
    assert curve is not None
    points = np.concatenate(([curve.points[0] / 2], curve.points))
    left = np.concatenate(([1.0], curve.survival))
    axes.step(points, left, where="post", color=plots.BLACK, linewidth=3.0)
    axes.axvline(plan.delay, color=plots.BLUE, linewidth=3.5)
    axes.text(1.07 * plan.delay, 0.42, _delay_label(plan), color=plots.BLUE, fontsize=18)
    axes.axhline(budget, color=plots.VERMILION, linestyle=(0, (1, 1.5)), linewidth=2.6)
    axes.text(_RATIO_MAX, 1.07 * budget, f"budget {budget:.0%}", color=plots.VERMILION, fontsize=18, ha="right")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(0.5, _RATIO_MAX)
    axes.set_ylim(_SHARE_MIN, 1.3)
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:g}x"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{100 * value:g}%"))
    axes.set_xlabel("wait, in multiples of its predicted TTFT")


def _delay_label(plan: HedgePlan) -> str:
    if plan.share < 1:
        return (
            f"d* = {plan.delay:.2f}x: {plan.share:.0%} of\nlate requests get a backup,\nthe others at {plan.late:.1f}x"
        )
    return f"d* = {plan.delay:.2f}x: every\nlate request gets a backup"


def _cdfs(results: Results, runs: _Runs) -> None:
    """Draw the TTFT with and without hedging, on the same draws."""
    title = "Time to first token: hedging off against adaptive"
    below = f"Virtual time, {REQUESTS:,} requests each, the same draws for both policies; seed {SEED}"
    with plots.picture(results, "hedging-ttft", title, panels=len(runs), below=below) as panels:
        for axes, (workload, policies) in zip(panels, runs.items(), strict=True):
            plots.cdf(axes, {_name(policy, run): 1000 * run.columns["ttft_s"] for policy, run in policies.items()})
            axes.set_title(TITLES[workload], fontsize=19)
            axes.set_xlim(*SPANS_MS[workload])
            if workload == "W6":
                axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 3)))
            axes.set_xlabel("TTFT")
            axes.legend(loc="lower right")
        panels[0].set_ylabel("requests answered")


def _name(policy: str, run: SimulatedRun) -> str:
    hedges = run.columns["hedges"].mean()
    return f"{policy}, {hedges:.0%} hedges" if hedges else policy
