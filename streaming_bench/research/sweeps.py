"""Sweeps: budgets against policies and bounds, window lengths, the sketch's accuracy, and a workload that changes.

Each sweep yields rows of plain values; nothing is printed or drawn here. One process; every run is deterministic.
Units: milliseconds and fractions of 1 in rows, seconds inside.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from streaming_bench.progress import Progress
from streaming_bench.research import bounds
from streaming_bench.research.bounds import Values
from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples, policy_settings
from streaming_bench.simulation.policies import UNLIMITED_BUDGET, PolicySettings
from streaming_bench.simulation.runner import SimulatedRun
from streaming_bench.simulation.sampled_replicas import TtftDraws
from streaming_bench.simulation.scenario import Scenario, load, with_load
from streaming_bench.simulation.summary import Subset, figures
from ttft_gateway.estimation.window import Bins
from ttft_gateway.hedging.plan import Survival, plan_adaptive

TWO_HEDGES: Final = "two hedges, adaptive"
POLICIES: Final = ("adaptive", TWO_HEDGES, "quantile", "library", "off")
BUDGETS: Final = (0.01, 0.02, 0.05, 0.10, 0.20, 0.30)
WORKLOADS: Final = ("W1", "W2", "W4", "W6")
WINDOWS_S: Final = (15.0, 30.0, 60.0, 120.0, 300.0)
ACCURACIES: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.10, 0.20)
DRIFT_POLICIES: Final = {
    "adaptive": None,
    "static 6 ms": 0.006,
    "static 15 ms": 0.015,
    "static 80 ms": 0.080,
    "off": None,
}
BUCKET_S: Final = 20.0  # resolution of the drift in time

_W7_S: Final = 600.0  # length of W7
_WINDOWS_TRAFFIC: Final = 1 / 3  # of the drift's: window lengths matter where samples are few
_PAIRS: Final = 20_000  # draws for bounds
_ACCURACY_BUDGETS: Final = {"W1": 0.10, "W2": 0.20, "W4": 0.10}
_PHASES_S: Final = {
    "fast": (20.0, 200.0),
    "after the step up": (200.0, 220.0),
    "slow": (220.0, 400.0),
    "after the step down": (400.0, 420.0),
    "fast again": (420.0, 600.0),
}
_DEFAULTS: Final = ComparisonPlan((), ())


@dataclass(frozen=True, slots=True)
class SweepSize:
    """Size of a sweep.

    Attributes:
        requests: requests of each run.
        seeds: one run for each seed.
        drift: share of W7's traffic; window lengths are tried with a third of it.
    """

    requests: int
    seeds: tuple[int, ...]
    drift: float


class FrontierRow(NamedTuple):
    """One run of one policy with one budget, or a bound; only answered requests have latencies."""

    workload: str
    policy: str
    budget: float
    seed: int
    extra: float
    p50: float
    p95: float
    p99: float
    p999: float
    mean: float
    failed: float


class WindowRow(NamedTuple):
    """One window length in one phase of W7."""

    window_s: float
    phase: str
    p50: float
    p99: float
    hedges: float


class AccuracyRow(NamedTuple):
    """One accuracy of the sketch."""

    workload: str
    accuracy: float
    delay_x: float
    share: float
    extra: float
    p99: float
    mean: float


class DriftRow(NamedTuple):
    """One policy in one bucket of W7's time."""

    policy: str
    from_s: float
    p50: float
    p99: float
    hedges: float


def frontier(
    workloads: Sequence[str], policies: Sequence[str], budgets: Sequence[float], size: SweepSize, progress: Progress
) -> Iterator[FrontierRow]:
    """Run every policy with every budget, and compute the bounds of workloads with drawn TTFTs."""
    steps = len(workloads) * len(size.seeds) * sum(len(budgets) if policy != "off" else 1 for policy in policies)
    done = 0
    for workload in workloads:
        scenario = load(workload, size.requests)
        for seed in size.seeds:
            samples = SeedSamples(scenario, _DEFAULTS, seed)
            if scenario.drawn is not None:
                yield from _bounds(scenario, seed, budgets)
            for policy in policies:
                for budget in budgets if policy != "off" else (0.0,):
                    progress(f"{workload}, {policy}, {budget:.0%}", done / steps)
                    name = "adaptive" if policy == TWO_HEDGES else policy
                    run = samples.run(name, settings=_settings(scenario, policy, budget))
                    yield _frontier_row(workload, policy, budget, seed, run)
                    done += 1
    progress("done", 1.0)


def windows(size: SweepSize, progress: Progress) -> Iterator[WindowRow]:
    """Run each window length on W7."""
    scenario = _scaled_w7(_WINDOWS_TRAFFIC * size.drift)
    samples = SeedSamples(scenario, _DEFAULTS, size.seeds[0])
    for number, window_s in enumerate(WINDOWS_S):
        progress(f"window of {window_s:g} s", number / len(WINDOWS_S))
        run = samples.run("adaptive", settings=replace(policy_settings(scenario, _DEFAULTS), window_s=window_s))
        for phase, (start_s, end_s) in _PHASES_S.items():
            yield WindowRow(window_s, phase, *_between(run, start_s, end_s))
    progress("done", 1.0)


def accuracy(size: SweepSize, progress: Progress) -> Iterator[AccuracyRow]:
    """Plan from the same draws in finer and coarser bins, and apply each plan to the draws."""
    for number, (workload, budget) in enumerate(_ACCURACY_BUDGETS.items()):
        progress(f"accuracy, {workload}", number / len(_ACCURACY_BUDGETS))
        primaries_s, backups_s = pairs(load(workload), size.seeds[0])
        scale_s = float(np.median(primaries_s))
        coins = np.random.default_rng(size.seeds[0]).random(len(primaries_s))
        for width in ACCURACIES:
            plan = plan_adaptive(Survival(_binned(primaries_s / scale_s, width)), budget=budget, first_share=budget)
            hedged = (primaries_s > plan.delay * scale_s) & (coins < plan.share)
            took_s = np.where(hedged, np.minimum(primaries_s, plan.delay * scale_s + backups_s), primaries_s)
            p99, mean = 1000 * float(np.quantile(took_s, 0.99)), 1000 * float(took_s.mean())
            yield AccuracyRow(workload, width, plan.delay, plan.share, float(hedged.mean()), p99, mean)
    progress("done", 1.0)


def drift(size: SweepSize, progress: Progress) -> Iterator[DriftRow]:
    """Run W7 with static thresholds, each right for one phase and without a budget, and with adaptive."""
    scenario = _scaled_w7(size.drift)
    for number, (label, delay_s) in enumerate(DRIFT_POLICIES.items()):
        progress(f"drift, {label}", number / len(DRIFT_POLICIES))
        plan = ComparisonPlan((), (), budget=UNLIMITED_BUDGET if delay_s else None, static_delay_s=delay_s)
        run = SeedSamples(scenario, plan, size.seeds[0]).run(label.split(" ", maxsplit=1)[0])
        for start_s in map(float, np.arange(0.0, _W7_S, BUCKET_S)):
            yield DriftRow(label, start_s, *_between(run, start_s, start_s + BUCKET_S))
    progress("done", 1.0)


def pairs(scenario: Scenario, seed: int) -> tuple[Values, Values]:
    """Draw the TTFTs of primaries and of their backups, for bounds; replicas are alike."""
    assert scenario.drawn is not None
    draws = TtftDraws(replace(scenario, requests=_PAIRS), seed, None)
    table = np.array(draws.ttft_s)[:, :2] + scenario.drawn.overhead_s
    return table[:, 0], table[:, 1]


def _bounds(scenario: Scenario, seed: int, budgets: Sequence[float]) -> Iterator[FrontierRow]:
    primaries_s, backups_s = pairs(scenario, seed)
    named: dict[str, Callable[[Values, Values, float], bounds.Bound]] = {
        "best single hedge": bounds.best_single_hedge,
        "clairvoyant": bounds.clairvoyant,
    }
    nan = float("nan")
    for name, bound_of in named.items():
        for budget in (0.0, *budgets):
            bound = bound_of(primaries_s, backups_s, budget)
            p99, mean = 1000 * bound.p99_s, 1000 * bound.mean_s
            yield FrontierRow(scenario.name, name, budget, seed, budget, nan, nan, p99, nan, mean, nan)


def _settings(scenario: Scenario, policy: str, budget: float) -> PolicySettings:
    """Return the settings for a budget; a quantile policy gets the quantile that the budget pays for."""
    hedges = 2 if policy == TWO_HEDGES else 1
    plan = ComparisonPlan((), (), budget=budget, max_hedges=hedges, quantile=1.0 - budget)
    return policy_settings(scenario, plan)


def _frontier_row(workload: str, policy: str, budget: float, seed: int, run: SimulatedRun) -> FrontierRow:
    found = figures(run, Subset())
    return FrontierRow(
        *(workload, policy, budget, seed, found["hedges"]),
        *(found["p50"], found["p95"], found["p99"], found["p999"], found["mean"], found["failed"] / found["requests"]),
    )


def _scaled_w7(traffic: float) -> Scenario:
    """Return W7 with a share of its traffic over the same ten minutes."""
    scenario = load("W7")
    return replace(with_load(scenario, traffic), requests=round(traffic * scenario.requests))


def _between(run: SimulatedRun, start_s: float, end_s: float) -> tuple[float, float, float]:
    """Return p50, p99 and hedges of the requests that arrived in a span."""
    found = figures(run, Subset(start_s=start_s, end_s=end_s))
    return found["p50"], found["p99"], found["hedges"]


def _binned(ratios: Values, width: float) -> Bins:
    """Put ratios into logarithmic bins with values within a relative width of every sample, as a DDSketch does."""
    gamma = (1 + width) / (1 - width)
    keys, counts = np.unique(np.ceil(np.log(ratios) / np.log(gamma)), return_counts=True)
    values = 2 * gamma**keys / (gamma + 1)
    return Bins(values.tolist(), counts.tolist(), [0] * len(keys))
