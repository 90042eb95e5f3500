"""Policies side by side on the same samples: every policy over every seed of a workload, as rows and a manifest.

Owns the plan of a comparison. It must not know how anything is printed. Deterministic: the same arguments give the same
rows to the last bit. Units: as in summary.py.
"""

import asyncio
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version

from msgspec import structs

from gateway.config.settings import HedgeSettings
from gateway.routing.strategies import Crossing, Routing
from gateway.topology import hedge_parameters
from streaming_bench.simulation import summary
from streaming_bench.simulation.engine_replicas import ServerDraws
from streaming_bench.simulation.policies import PolicySettings
from streaming_bench.simulation.provider_quota import LimitHeaders
from streaming_bench.simulation.runner import ArrivalPlan, SimulatedRun, run
from streaming_bench.simulation.sampled_replicas import TtftDraws
from streaming_bench.simulation.scenario import Scenario
from streaming_bench.simulation.summary import Figures, Subset
from streaming_bench.simulation.world import World, arrivals_s


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """What is compared.

    Attributes:
        policies: their names.
        seeds: one run of each policy for each.
        budget: a share; None: the gateway's default.
        max_hedges: for the gateway's policies.
        routing: of primaries.
        held: headers come with the first token, also where the workload flushes them.
        correlation: of rare events between replicas; None: the workload's.
        headroom: of quotas, as a multiple of what the mean traffic needs; None: the workload's.
        limit_headers: what providers of W5 and W6 state of their limits; without any the gateway is told them.
        others: the share of each quota that somebody else uses; headroom is in what is left.
        quantile: of the policies that use one; None: the gateway's default.
        static_delay_s: of static and fan_out; None: the workload's.
        library_rps: None: the workload's.
    """

    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    budget: float | None = None
    max_hedges: int = 1
    routing: Routing = Routing.PREDICTED
    held: bool = False
    correlation: float | None = None
    headroom: float | None = None
    limit_headers: LimitHeaders = LimitHeaders.NONE
    others: float = 0.0
    quantile: float | None = None
    static_delay_s: float | None = None
    library_rps: float | None = None


def compare(
    scenario: Scenario, plan: ComparisonPlan, progress: Callable[[str, float], None] = lambda _what, _done: None
) -> dict[str, object]:
    """Run everything.

    Args:
        scenario: the workload.
        plan: what is compared on it.
        progress: hears what is running and the share of all that is done.

    Returns:
        `rows`, one per policy, and a `manifest`.
    """
    parts = _parts(scenario)
    found: dict[str, dict[str, list[Figures]]] = {p: {part.name: [] for part in parts} for p in plan.policies}
    runs, done = len(plan.seeds) * len(plan.policies), 0
    for seed in plan.seeds:
        samples = SeedSamples(scenario, plan, seed)
        for policy in plan.policies:

            def tell(requests: int, policy: str = policy, seed: int = seed, done: int = done) -> None:
                progress(f"{policy}, seed {seed}", (done + requests / scenario.requests) / runs)

            result = samples.run(policy, tell)
            for part in parts:
                found[policy][part.name].append(summary.figures(result, part))
            done += 1
    off = found.get("off")
    rows = [summary.row(policy, seeds, off) for policy, seeds in found.items()]
    return {"rows": rows, "manifest": _manifest(scenario, plan)}


class SeedSamples:
    """Everything that is drawn for one seed of a workload; every policy meets the same.

    Args:
        scenario: the workload.
        plan: on what terms policies run.
        seed: of the draws.
    """

    def __init__(self, scenario: Scenario, plan: ComparisonPlan, seed: int) -> None:
        self._scenario = scenario
        self._plan = plan
        self._seed = seed
        self._traffic = _traffic(scenario, seed)
        self.draws = _draw(scenario, plan, seed)

    def run(
        self, policy: str, tell: Callable[[int], None] = lambda _done: None, on_terms: PolicySettings | None = None
    ) -> SimulatedRun:
        """One policy.

        Args:
            policy: its name.
            tell: hears how many requests are over, now and then.
            on_terms: instead of the plan's.
        """
        return run(
            policy,
            on_terms or policy_settings(self._scenario, self._plan),
            self._traffic,
            self._world,
            self._seed,
            tell,
        )

    def _world(self, loop: asyncio.AbstractEventLoop) -> World:
        return self.draws.world(self._scenario, loop, held=self._plan.held)


def policy_settings(scenario: Scenario, plan: ComparisonPlan) -> PolicySettings:
    """The terms of a comparison: the gateway's defaults where neither plan nor scenario says otherwise."""
    defaults, delay_s_min = hedge_parameters(HedgeSettings(), Crossing.NEVER), scenario.hedge_delay_min_s
    settings = replace(
        defaults,
        budget=defaults.budget if plan.budget is None else plan.budget,
        max_hedges=plan.max_hedges,
        static_delay_s=plan.static_delay_s or scenario.reference.static_delay_s,
        quantile=plan.quantile or defaults.quantile,
        hedge_delay_min_s=defaults.hedge_delay_min_s if delay_s_min is None else delay_s_min,
        routing=plan.routing,
    )
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


def _traffic(scenario: Scenario, seed: int) -> ArrivalPlan:
    arrivals = scenario.arrivals
    times_s = None if arrivals.concurrency else arrivals_s(arrivals, scenario.requests, seed)
    return ArrivalPlan(times_s, arrivals.concurrency or 0)


def _parts(scenario: Scenario) -> Sequence[Subset]:
    late_s = math.inf if scenario.late_s is None else scenario.late_s
    serving = scenario.serving
    if serving is None:
        spans = [Subset(span.name, span.start_s, span.end_s, late_s=late_s) for span in scenario.spans]
        return [Subset("all", late_s=late_s), *spans]
    out = serving.brown_out
    bad = ((out.start_s, out.end_s + serving.settle_s),)
    return [
        Subset("all", without=bad),
        Subset("short prompts", without=bad, tokens_max=serving.short_tokens),
        Subset("brown-out", out.start_s, out.end_s + serving.settle_s),
    ]


def _manifest(scenario: Scenario, plan: ComparisonPlan) -> dict[str, object]:
    """What it takes to repeat the run."""
    return {
        "workload": scenario.name,
        "workload_sha256": scenario.sha256,
        "requests": scenario.requests,
        **asdict(plan),
        "routing": plan.routing.value,
        "limit_headers": plan.limit_headers.value,
        "python": platform.python_version(),
        "numpy": version("numpy"),
    }
