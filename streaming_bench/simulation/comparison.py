"""Runs policies side by side on the same samples: every policy on every seed of a workload, as rows and a manifest.

Owns the plan of a comparison. It must not depend on how anything is printed. Deterministic: the same arguments give the
same rows to the last bit. Units: as in summary.py.
"""

import asyncio
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Final

from msgspec import structs

from gateway.events import Listener
from streaming_bench.errors import BenchError
from streaming_bench.progress import Progress, of_run, quiet
from streaming_bench.simulation import summary
from streaming_bench.simulation.engine_replicas import ServerDraws
from streaming_bench.simulation.fleet import FleetPlan
from streaming_bench.simulation.law_replicas import LawDraws
from streaming_bench.simulation.policies import PLACEBO, PolicySettings
from streaming_bench.simulation.provider_quota import LimitHeaders
from streaming_bench.simulation.runner import ArrivalPlan, Begun, Conditions, SimulatedRun, ignore, no_start, run
from streaming_bench.simulation.sampled_replicas import TtftDraws
from streaming_bench.simulation.scenario import Scenario
from streaming_bench.simulation.summary import SimulatedFigures, Subset
from streaming_bench.simulation.tier_replicas import TierDraws
from streaming_bench.simulation.world import World, arrivals_s
from ttft_gateway.hedging.parameters import DEFAULTS, Prefer
from ttft_gateway.routing.strategies import Routing

_PLACEBO_SEEDS: Final = 1_000_000  # no seed of a comparison is as high


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """Policies to compare, and their settings.

    Attributes:
        policies: names of the policies.
        seeds: each policy runs once for each seed.
        budget: share of hedges; None for the gateway's default.
        max_hedges: maximum of backups per request, of the gateway's policies.
        routing: strategy that chooses primaries.
        prefer: time that the choice of a replica keeps short.
        held: send headers with the first token, also where the workload flushes them.
        correlation: correlation of rare events between replicas; None for the workload's.
        headroom: quota as a multiple of the mean traffic; None for the workload's.
        limit_headers: rate limit headers of the providers of W5 and W6; with NONE the limits are configured.
        others: share of each quota that other clients use; headroom refers to the remaining share.
        quantile: quantile of the policies that use one; None for the gateway's default.
        static_delay_s: delay of static and fan_out; None for the workload's.
        library_rps: request rate configured for the reference library; None for the workload's.
        ttft_target_s: TTFT target of policy adaptive; None for none.
        slo_s: TTFT above which a request is over the SLO; None for none.
        gateways: number of gateways; each request goes to a random one.
        share_s: time between two exchanges of what they share; None if they share nothing.
    """

    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    budget: float | None = None
    max_hedges: int = DEFAULTS.max_hedges
    routing: Routing = DEFAULTS.routing
    prefer: Prefer = DEFAULTS.prefer
    held: bool = False
    correlation: float | None = None
    headroom: float | None = None
    limit_headers: LimitHeaders = LimitHeaders.NONE
    others: float = 0.0
    quantile: float | None = None
    static_delay_s: float | None = None
    library_rps: float | None = None
    ttft_target_s: float | None = None
    slo_s: float | None = None
    gateways: int = 1
    share_s: float | None = None


def compare(
    scenario: Scenario, plan: ComparisonPlan, progress: Progress = quiet, listener: Listener = ignore
) -> dict[str, object]:
    """Run all policies on all seeds.

    Args:
        listener: called with each event of the gateway, of all runs.

    Returns:
        `rows`, one per policy, and a `manifest`.

    Raises:
        BenchError: No request of a run is counted.
    """
    found = figures_of(scenario, plan, progress, listener)
    rows = [summary.row(policy, seeds, found.get("off")) for policy, seeds in found.items()]
    return {"rows": rows, "manifest": _manifest(scenario, plan)}


def figures_of(
    scenario: Scenario, plan: ComparisonPlan, progress: Progress = quiet, listener: Listener = ignore
) -> dict[str, dict[str, list[SimulatedFigures]]]:
    """Return the figures of each seed, by policy and subset, from the arguments of `compare`.

    Raises:
        BenchError: No request of a run is counted.
    """
    parts = [replace(part, slo_s=plan.slo_s or math.inf) for part in subsets(scenario)]
    found: dict[str, dict[str, list[SimulatedFigures]]] = {p: {s.name: [] for s in parts} for p in plan.policies}
    runs = [(seed, policy) for seed in plan.seeds for policy in plan.policies]
    samples = None
    for index, (seed, policy) in enumerate(runs):
        if samples is None or samples.seed != seed:
            samples = SeedSamples(scenario, plan, seed)
        reported = of_run(progress, f"{policy}, seed {seed}", index, len(runs), scenario.requests)
        run = samples.run(policy, reported, listener=listener)
        for subset in parts:
            found[policy][subset.name].append(summary.figures(run, subset))
        if not found[policy][parts[0].name][-1]["requests"]:
            raise BenchError(
                f"{scenario.name}: none of {scenario.requests:,} requests is counted, the first {parts[0].start_s:g} s"
                " are not; write a larger number after --requests"
            )
    progress("done", 1.0)
    return found


class SeedSamples:
    """All random numbers of one seed of a workload, the same for every policy.

    Attributes:
        draws: random numbers of the replicas.
    """

    draws: TtftDraws | ServerDraws | LawDraws | TierDraws

    def __init__(self, scenario: Scenario, plan: ComparisonPlan, seed: int) -> None:
        self._scenario = scenario
        self._plan = plan
        self.seed = seed
        arrivals = scenario.arrivals
        times_s = None if arrivals.concurrency else arrivals_s(arrivals, scenario.requests, seed)
        self._arrivals = ArrivalPlan(times_s, arrivals.concurrency or 0)
        if scenario.tiers is not None:
            self.draws = TierDraws(scenario, scenario.requests, seed)
        elif scenario.law is None:
            self.draws = _draw(scenario, plan, seed)
        else:
            assert times_s is not None
            self.draws = LawDraws(scenario, times_s, seed)

    def run(
        self,
        policy: str,
        progress: Callable[[int], None] = lambda _requests: None,
        settings: PolicySettings | None = None,
        listener: Listener = ignore,
        begun: Begun = no_start,
        pinned: Sequence[int] | None = None,
    ) -> SimulatedRun:
        """Run one policy.

        Args:
            progress: called now and then with the number of finished requests.
            settings: settings of the policies; None for the settings of the plan.
            listener: called with each event of the gateway.
            begun: called with the loop and the pools of the gateways before the first arrival.
            pinned: number of the replica that gets each request first; None if the pool chooses.
        """
        settings = settings or policy_settings(self._scenario, self._plan)
        scenario = self._scenario
        conditions = Conditions(
            clients=scenario.clients,
            restart_every_s=scenario.restart_every_s or math.inf,
            restart_keeps=scenario.restart_keeps,
            timeouts=scenario.timeouts,
            fleet=FleetPlan(self._plan.gateways, self._plan.share_s),
            listener=listener,
            begun=begun,
        )

        def make_world(loop: asyncio.AbstractEventLoop) -> World:
            world = self.draws.world(scenario, loop, held=self._plan.held)
            return world if pinned is None else replace(world, pinned=pinned)

        policy, seed = ("off", self.seed + _PLACEBO_SEEDS) if policy == PLACEBO else (policy, self.seed)
        return run(policy, settings, self._arrivals, make_world, seed, progress, conditions)


def policy_settings(scenario: Scenario, plan: ComparisonPlan) -> PolicySettings:
    """Return the settings of the plan, else of the scenario, else the gateway's defaults."""
    delay_s_min = scenario.hedge_delay_min_s
    settings = structs.replace(
        DEFAULTS,
        budget=DEFAULTS.budget if plan.budget is None else plan.budget,
        max_hedges=plan.max_hedges,
        static_delay_s=plan.static_delay_s or scenario.reference.static_delay_s,
        quantile=plan.quantile or DEFAULTS.quantile,
        hedge_delay_min_s=DEFAULTS.hedge_delay_min_s if delay_s_min is None else delay_s_min,
        routing=plan.routing,
        prefer=plan.prefer,
        ttft_target_s=plan.ttft_target_s,
    )
    if scenario.tiers is not None and plan.prefer is DEFAULTS.prefer:
        target_s = plan.ttft_target_s or scenario.tiers.target_s
        settings = structs.replace(settings, prefer=Prefer.COST, ttft_target_s=target_s)
    return PolicySettings(settings, plan.library_rps or scenario.reference.library_rps)


def _draw(scenario: Scenario, plan: ComparisonPlan, seed: int) -> TtftDraws | ServerDraws:
    serving = scenario.serving
    if serving is not None:
        if plan.headroom is not None:
            scenario = structs.replace(
                scenario,
                serving=structs.replace(serving, quotas=structs.replace(serving.quotas, headroom=plan.headroom)),
            )
        return ServerDraws(scenario, seed, plan.limit_headers, plan.others)
    return TtftDraws(scenario, seed, plan.correlation)


def subsets(scenario: Scenario) -> Sequence[Subset]:
    """Return the subsets of requests that are reported; the first one is the workload itself."""
    late_s = math.inf if scenario.late_s is None else scenario.late_s
    serving = scenario.serving
    if serving is None:
        spans = [Subset(span.name, span.start_s, span.end_s, late_s=late_s) for span in scenario.spans]
        if scenario.short_tokens is not None:
            spans.append(Subset("short prompts", tokens_max=scenario.short_tokens))
        return [Subset(start_s=scenario.judged_after_s, late_s=late_s), *spans]
    start_s, end_s = serving.brown_out.start_s, serving.brown_out.end_s + serving.settle_s
    without = ((start_s, end_s),)
    return [
        Subset(without=without),
        Subset("short prompts", without=without, tokens_max=serving.short_tokens),
        Subset("brown-out", start_s, end_s),
    ]


def _manifest(scenario: Scenario, plan: ComparisonPlan) -> dict[str, object]:
    """Return everything needed to repeat the run."""
    return {
        "workload": scenario.name,
        "workload_sha256": scenario.sha256,
        "requests": scenario.requests,
        **asdict(plan),
        "routing": plan.routing.value,
        "prefer": plan.prefer.value,
        "limit_headers": plan.limit_headers.value,
        "python": platform.python_version(),
        "numpy": version("numpy"),
    }
