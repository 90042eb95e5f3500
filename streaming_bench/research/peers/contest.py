"""The gateway's default policy next to other published rules, on the same random numbers of a workload.

`routewise` needs a TTFT target: the p95 and twice the median of hedging off on the same workload. Its share of hedges
is no setting, so `adaptive` also runs with that share as its budget. All rules but `routewise, own routing` send
primaries to the same replicas by the gateway's prediction. Units: seconds; milliseconds in rows; shares are fractions
of 1.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import structs

from streaming_bench.progress import Progress
from streaming_bench.report.grid import Grid, percent, short
from streaming_bench.research.peers.routewise import RoutewisePool, RoutewiseProcess
from streaming_bench.simulation import summary
from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples, policy_settings, subsets
from streaming_bench.simulation.policies import NewPool
from streaming_bench.simulation.runner import SimulatedRun
from streaming_bench.simulation.scenario import Scenario
from streaming_bench.simulation.summary import Subset
from ttft_gateway.hedging.contract import AttemptView, Denied, Hedge, HedgeTickets, Primary, RequestFacts
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.limits.budget import Ticket
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

BASETEN_DELAY_S_MIN: Final = 0.045
BASETEN_SHARE: Final = 0.10


def baseten_hedges(requests: int) -> int:
    """Return the number of hedges that Baseten's client allows in a batch of requests."""
    return max(2, 1 + math.ceil(requests * BASETEN_SHARE))


class DelayPool(Pool):
    """Sends one backup after a fixed delay.

    Args:
        name: name of the rule.
        replicas: replicas of the pool.
        settings: routing, and the delay.
        ledgers: ledgers of the quotas, which the rules ignore.
        hedges_left: number of hedges that may be sent; infinite without a budget.
    """

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        settings: HedgeParameters,
        ledgers: Mapping[str, Ledger],
        *,
        hedges_left: float = math.inf,
    ) -> None:
        super().__init__(name, replicas, settings, ledgers)
        self._hedges_left = hedges_left

    def begin(self, facts: RequestFacts, now_s: float, rand: float) -> Primary | None:
        """Choose the primary as the gateway does."""
        primary = super().begin(facts, now_s, rand)
        return None if primary is None else Primary(primary.replica, primary.forecast, self.settings.static_delay_s)

    def delay_s(self, attempt: AttemptView, facts: RequestFacts) -> float:
        """Return the fixed delay."""
        return self.settings.static_delay_s

    def decide(
        self,
        facts: RequestFacts,
        asking: AttemptView,
        live: Iterable[AttemptView],
        tried: Collection[Replica],
        now_s: float,
        rand: float,
    ) -> Hedge | Denied:
        """Hedge to a random replica that was not tried, if hedges are left."""
        untried = [replica for replica in self.replicas if replica not in tried]
        if not untried:
            return Denied(Denial.NO_REPLICA, math.inf, "")
        if self._hedges_left < 1:
            return Denied(Denial.BUDGET, math.inf, "")
        self._hedges_left -= 1
        return Hedge(untried[int(rand * len(untried))], HedgeTickets(Ticket(1.0), Ticket(0.0)), "")


_SHORT_S: Final = 0.1  # the router's times are multiplied where hedging off has a shorter median,
_SCALED_S: Final = 1.0  # to this median
_BUDGET_MIN: Final = 0.001
_RULES: Final = 10  # at most, for the progress
_NO_PLAN: Final = ComparisonPlan((), ())

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class TtftTarget:
    """A TTFT target.

    Attributes:
        name: name in the tables.
        ttft_s: the target.
    """

    name: str
    ttft_s: float


@dataclass(frozen=True, slots=True)
class Contest:
    """All rules on one workload.

    Attributes:
        targets: the targets, from the runs with hedging off.
        rows: figures of each seed by the name of the rule.
    """

    scenario: Scenario
    targets: Sequence[TtftTarget]
    rows: Mapping[str, Sequence[Figures]]


def hold(
    scenario: Scenario, seeds: Sequence[int], python: Path | None, progress: Progress, *, routes: bool = False
) -> Contest:
    """Run all rules on all seeds.

    Args:
        python: interpreter of an environment with llm-routewise; None to leave it out.
        progress: called with the current rule and the share done.
        routes: True to run also a router that chooses the primaries.

    Raises:
        PeerError: The environment has no llm-routewise.
    """
    samples = [SeedSamples(scenario, _NO_PLAN, seed) for seed in seeds]
    off_runs = [each.run("off") for each in samples]
    subset = subsets(scenario)[0]
    targets, median_s = _targets(off_runs, subset)
    scale = 1.0 if median_s >= _SHORT_S else _SCALED_S / median_s
    rows: dict[str, Sequence[Figures]] = {"off": [_figures(run, subset, targets) for run in off_runs]}
    done = 0

    def add(name: str, run: Callable[[SeedSamples], SimulatedRun]) -> float:
        """Add the row of a rule; return its share of hedges."""
        nonlocal done
        found = []
        for each in samples:
            progress(f"{scenario.name}: {name}", min(0.999, done / (len(samples) * _RULES)))
            found.append(_figures(run(each), subset, targets))
            done += 1
        rows[name] = found
        return float(np.mean([each["hedges"] for each in found]))

    delay_s = policy_settings(scenario, _NO_PLAN).hedging.static_delay_s
    baseten_s = max(delay_s, BASETEN_DELAY_S_MIN)
    add("adaptive", partial(_with_budget, scenario, None))
    add(f"fixed {1000 * delay_s:g} ms", partial(_with_pool, scenario, _fixed))
    add(f"baseten {1000 * baseten_s:g} ms", partial(_with_pool, scenario, _baseten(baseten_hedges(scenario.requests))))
    add("library", lambda each: each.run("library"))
    if python is not None:
        for target in targets:
            peer = Routewise(python, target.ttft_s, scale)
            budget = add(f"routewise, {target.name}", partial(peer.run, scenario))
            if budget >= _BUDGET_MIN:
                add(f"adaptive, budget {percent(budget)}", partial(_with_budget, scenario, budget))
            if routes:
                peer = replace(peer, routes=True)
                add(f"routewise, own routing, {target.name}", partial(peer.run, scenario))
    progress("done", 1.0)
    return Contest(scenario, targets, rows)


@dataclass(frozen=True, slots=True)
class Routewise:
    """The router with a target.

    Attributes:
        python: interpreter of its environment.
        target_s: the target.
        scale: factor of all times that it gets.
        routes: True if it chooses the primaries.
    """

    python: Path
    target_s: float
    scale: float
    routes: bool = False

    def run(self, scenario: Scenario, samples: SeedSamples) -> SimulatedRun:
        """Run it on one seed."""
        names = [f"replica-{number}" for number in range(scenario.replicas)]
        slo_ms = 1000.0 * self.scale * self.target_s
        with RoutewiseProcess(self.python, names, slo_ms, samples.seed) as process:

            def new_pool(
                replicas: Sequence[Replica], hedging: HedgeParameters, ledgers: Mapping[str, Ledger]
            ) -> RoutewisePool:
                hedging = structs.replace(hedging, policy=Policy.STATIC)
                return RoutewisePool(replicas, hedging, ledgers, process, scale=self.scale, routes=self.routes)

            return _with_pool(scenario, new_pool, samples)


def table(contest: Contest) -> Grid:
    """Return the table of a contest: means over the seeds, with the lowest and the highest seed in brackets."""
    misses = [f"over {target.name} ({short(1000 * target.ttft_s)} ms)" for target in contest.targets]
    heads = [contest.scenario.name, "p50 ms", "p99 ms", "p99.9 ms", *misses, "hedges", "tokens +", "429s"]
    return Grid(heads, [_cells(name, seeds) for name, seeds in contest.rows.items()])


def _cells(name: str, seeds: Sequence[Figures]) -> list[str]:
    means = {key: float(np.mean([each[key] for each in seeds])) for key in seeds[0]}

    def spread(key: str, form: Callable[[float], str]) -> str:
        values = [each[key] for each in seeds]
        return f"{form(means[key])} ({form(min(values))}-{form(max(values))})"

    def share(value: float) -> str:
        return percent(value, 2).removesuffix("%")

    return [
        name,
        short(means["p50"]),
        *(spread(key, short) for key in ("p99", "p999")),
        *(f"{spread(key, share)} %" for key in means if key.startswith("over")),
        *(percent(means[key], 2) for key in ("hedges", "extra_tokens")),
        short(means["rate_limited"]),
    ]


def _targets(runs: Sequence[SimulatedRun], subset: Subset) -> tuple[Sequence[TtftTarget], float]:
    """Return the targets and the median of hedging off."""
    figures = [summary.figures(run, subset) for run in runs]
    p50_ms, p95_ms = (float(np.mean([each[key] for each in figures])) for key in ("p50", "p95"))
    return (TtftTarget("p95", p95_ms / 1000.0), TtftTarget("2 x p50", 2.0 * p50_ms / 1000.0)), p50_ms / 1000.0


def _figures(run: SimulatedRun, subset: Subset, targets: Sequence[TtftTarget]) -> Figures:
    """Return the figures of a run; a request without an answer is over every target."""
    figures = summary.figures(run, subset)
    ttft_s = run.columns["ttft_s"][summary.chosen(run, subset)]
    return figures | {f"over {target.name}": float((ttft_s > target.ttft_s).mean()) for target in targets}


def _with_pool(scenario: Scenario, new_pool: NewPool, samples: SeedSamples) -> SimulatedRun:
    return samples.run("peer", settings=structs.replace(policy_settings(scenario, _NO_PLAN), new_pool=new_pool))


def _with_budget(scenario: Scenario, budget: float | None, samples: SeedSamples) -> SimulatedRun:
    settings = policy_settings(scenario, replace(_NO_PLAN, budget=budget))
    return samples.run("adaptive", settings=settings)


def _fixed(replicas: Sequence[Replica], hedging: HedgeParameters, ledgers: Mapping[str, Ledger]) -> DelayPool:
    return DelayPool("fixed", replicas, structs.replace(hedging, policy=Policy.STATIC), ledgers)


def _baseten(count: int) -> NewPool:
    def new_pool(replicas: Sequence[Replica], hedging: HedgeParameters, ledgers: Mapping[str, Ledger]) -> DelayPool:
        delay_s = max(hedging.static_delay_s, BASETEN_DELAY_S_MIN)
        hedging = structs.replace(hedging, policy=Policy.STATIC, static_delay_s=delay_s)
        return DelayPool("baseten", replicas, hedging, ledgers, hedges_left=count)

    return new_pool
