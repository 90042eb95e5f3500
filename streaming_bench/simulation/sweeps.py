"""What is swept: budgets against policies and bounds, window lengths, the sketch's accuracy, a day that changes.

Each sweep returns rows of plain values under its heads; nothing is printed or drawn here. One process; every run is
deterministic. Units: milliseconds and fractions of 1 in rows, seconds inside.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from gateway.estimation.survival import Survival
from gateway.estimation.window import Bins
from gateway.hedging.plan import plan_adaptive
from streaming_bench.progress import Progress
from streaming_bench.simulation import bounds
from streaming_bench.simulation.bounds import Values
from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples, policy_settings
from streaming_bench.simulation.policies import UNLIMITED_BUDGET, PolicySettings
from streaming_bench.simulation.runner import SimulatedRun
from streaming_bench.simulation.sampled_replicas import TtftDraws
from streaming_bench.simulation.scenario import Scenario, load, with_load, with_requests

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
BUCKET_S: Final = 20.0  # of the drift's time

_WINDOWS_TRAFFIC: Final = 1 / 3  # of the drift's: window lengths matter where samples are few
_PAIRS: Final = 20_000  # draws for bounds
_ACCURACY_BUDGETS: Final = {"W1": 0.10, "W2": 0.20, "W4": 0.10}


@dataclass(frozen=True, slots=True)
class SweepSize:
    """How much is run.

    Attributes:
        requests: of each run.
        seeds: one run for each.
        drift: share of W7's traffic; window lengths are tried with a third of that.
    """

    requests: int
    seeds: tuple[int, ...]
    drift: float


class FrontierRow(NamedTuple):
    """One run of one policy with one budget, or a bound; the mean is over those that were answered."""

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
    """One window length on the day that changes."""

    reach_s: float
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
    """A stretch of the day that changes, under one policy."""

    policy: str
    from_s: float
    p50: float
    p99: float
    hedges: float


def frontier(
    workloads: Sequence[str], policies: Sequence[str], budgets: Sequence[float], size: SweepSize, tell: Progress
) -> Iterator[FrontierRow]:
    """Every policy with every budget, and the bounds where draws come in pairs."""
    steps = len(workloads) * len(size.seeds) * len(policies) * len(budgets)
    done = 0
    for workload in workloads:
        scenario = with_requests(load(workload), size.requests)
        for seed in size.seeds:
            samples = SeedSamples(scenario, ComparisonPlan((), ()), seed)
            if scenario.drawn is not None:
                yield from _bounds(scenario, seed, budgets)
            for policy in policies:
                for budget in budgets if policy != "off" else (0.0,):
                    tell(f"{workload}, {policy}, {budget:.0%}", done / steps)
                    name = "adaptive" if policy == TWO_HEDGES else policy
                    yield _frontier_row(
                        workload, policy, budget, seed, samples.run(name, on_terms=_settings(scenario, policy, budget))
                    )
                    done += 1
                done += 0 if policy != "off" else len(budgets) - 1
    tell("done", 1.0)


def windows(size: SweepSize, tell: Progress) -> Iterator[WindowRow]:
    """Window lengths on W7: just behind each step, and when it has settled."""
    scenario = _scaled_w7(replace(size, drift=_WINDOWS_TRAFFIC * size.drift))
    plan = ComparisonPlan((), ())
    samples = SeedSamples(scenario, plan, size.seeds[0])
    edges = {"behind the step up": (200.0, 220.0), "slow": (220.0, 400.0), "behind the step down": (400.0, 420.0)}
    for number, reach_s in enumerate(WINDOWS_S):
        tell(f"window of {reach_s:g} s", number / len(WINDOWS_S))
        run = samples.run("adaptive", on_terms=replace(policy_settings(scenario, plan), reach_s=reach_s))
        for phase, (start_s, end_s) in {"fast": (20.0, 200.0), **edges, "fast again": (420.0, 600.0)}.items():
            yield WindowRow(reach_s, phase, *_stretch(run, start_s, end_s))
    tell("done", 1.0)


def accuracy(size: SweepSize, tell: Progress) -> Iterator[AccuracyRow]:
    """The plan that follows from the same draws in coarser and finer bins, and what it comes to."""
    for number, (workload, budget) in enumerate(_ACCURACY_BUDGETS.items()):
        tell(f"accuracy, {workload}", number / len(_ACCURACY_BUDGETS))
        primaries_s, backups_s = pairs(load(workload), size.seeds[0])
        scale_s = float(np.median(primaries_s))
        coins = np.random.default_rng(size.seeds[0]).random(len(primaries_s))
        for width in ACCURACIES:
            plan = plan_adaptive(Survival(_binned(primaries_s / scale_s, width)), budget=budget, first_share=budget)
            asks = (primaries_s > plan.delay * scale_s) & (coins < plan.share)
            took_s = np.where(asks, np.minimum(primaries_s, plan.delay * scale_s + backups_s), primaries_s)
            p99, mean = 1000 * float(np.quantile(took_s, 0.99)), 1000 * float(took_s.mean())
            yield AccuracyRow(workload, width, plan.delay, plan.share, float(asks.mean()), p99, mean)
    tell("done", 1.0)


def drift(size: SweepSize, tell: Progress) -> Iterator[DriftRow]:
    """W7 under thresholds that are right for one hour of the day, nothing binding them, and under adaptive."""
    scenario = _scaled_w7(size)
    for number, (label, delay_s) in enumerate(DRIFT_POLICIES.items()):
        tell(f"drift, {label}", number / len(DRIFT_POLICIES))
        plan = ComparisonPlan((), (), budget=UNLIMITED_BUDGET if delay_s else None, static_delay_s=delay_s)
        run = SeedSamples(scenario, plan, size.seeds[0]).run(label.split(" ", maxsplit=1)[0])
        for start_s in np.arange(0.0, 600.0, BUCKET_S):
            yield DriftRow(label, float(start_s), *_stretch(run, float(start_s), float(start_s) + BUCKET_S))
    tell("done", 1.0)


def pairs(scenario: Scenario, seed: int) -> tuple[Values, Values]:
    """What primaries and backups take, as many draws as bounds need; replicas are alike."""
    assert scenario.drawn is not None
    draws = TtftDraws(with_requests(scenario, _PAIRS), seed, None)
    table = np.array(draws.ttft_s)[:, :2] + scenario.drawn.overhead_s
    return table[:, 0], table[:, 1]


def _bounds(scenario: Scenario, seed: int, budgets: Sequence[float]) -> Iterator[FrontierRow]:
    primaries_s, backups_s = pairs(scenario, seed)
    named: dict[str, Callable[[Values, Values, float], bounds.Bound]] = {
        "best single hedge": bounds.best_single_hedge,
        "clairvoyant": bounds.clairvoyant,
    }
    for name, bound_of in named.items():
        for budget in (0.0, *budgets):
            bound = bound_of(primaries_s, backups_s, budget)
            nan = float("nan")
            p99, mean = 1000 * bound.p99_s, 1000 * bound.mean_s
            yield FrontierRow(scenario.name, name, budget, seed, budget, nan, nan, p99, nan, mean, nan)


def _settings(scenario: Scenario, policy: str, budget: float) -> PolicySettings:
    """A quantile policy hedges at the quantile that its budget would pay for."""
    hedges = 2 if policy == TWO_HEDGES else 1
    return policy_settings(scenario, ComparisonPlan((), (), budget=budget, max_hedges=hedges, quantile=1.0 - budget))


def _frontier_row(workload: str, policy: str, budget: float, seed: int, run: SimulatedRun) -> FrontierRow:
    every_ms = 1000 * np.array([record.ttft_s for record in run.records])
    answered_ms = every_ms[np.isfinite(every_ms)]
    p50, p95, p99, p999 = (float(value) for value in np.quantile(answered_ms, (0.5, 0.95, 0.99, 0.999)))
    extra = sum(record.hedges for record in run.records) / len(every_ms)
    failed = 1 - len(answered_ms) / len(every_ms)
    return FrontierRow(workload, policy, budget, seed, extra, p50, p95, p99, p999, float(answered_ms.mean()), failed)


def _scaled_w7(size: SweepSize) -> Scenario:
    """W7 with a share of its traffic over the same ten minutes."""
    scenario = load("W7")
    return with_requests(with_load(scenario, size.drift), round(size.drift * scenario.requests))


def _stretch(run: SimulatedRun, start_s: float, end_s: float) -> tuple[float, float, float]:
    """p50, p99 and hedges of those that arrived in between."""
    chosen = [record for record in run.records if start_s <= record.arrived_s < end_s]
    if not chosen:
        return float("nan"), float("nan"), float("nan")
    ttfts_ms = [1000 * record.ttft_s for record in chosen]
    hedges = sum(record.hedges for record in chosen) / len(chosen)
    return float(np.quantile(ttfts_ms, 0.5)), float(np.quantile(ttfts_ms, 0.99)), hedges


def _binned(ratios: Values, width: float) -> Bins:
    """Logarithmic bins whose values are within a relative width of every sample in them, as a DDSketch has them."""
    gamma = (1 + width) / (1 - width)
    keys, counts = np.unique(np.ceil(np.log(ratios) / np.log(gamma)), return_counts=True)
    values = 2 * gamma**keys / (gamma + 1)
    return Bins(values, counts.astype(float), np.zeros(len(keys)))
