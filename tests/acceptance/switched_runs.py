"""Switches hedging on and off at random in simulated runs, and compares the estimate with the total effect.

The truth is the difference between a run without hedging and one with it, on the same arrivals and draws; the direct
effect is the difference of the same requests without their own hedges (`known_runs`).

Units: seconds; milliseconds in effects.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from gateway.events import Event, RequestEnded
from gateway.observe.proof import BlockCounts, Goal, count_request
from gateway.proof.blocks import ModelCounts, counts_of
from gateway.proof.switchback import Pair, TotalEffect, random_order, total_effect
from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples
from streaming_bench.simulation.scenario import Scenario
from ttft_gateway.pool.pool import Pool

FIGURES: Final = ("misses", "p50_ms", "p95_ms", "p99_ms", "mean_ms")
LIMIT_S: Final = 10.0
WASHOUT_SHARE: Final = 0.05  # of a block, as the command's default
_BEFORE_SHARE: Final = 0.25  # of the washout, before the switch


@dataclass(frozen=True, slots=True)
class SwitchedRun:
    """A run with a switchback, and the truth.

    Attributes:
        estimate: estimate from the blocks.
        off, on: all requests of a run without hedging, and of one with it.
    """

    estimate: TotalEffect
    off: ModelCounts
    on: ModelCounts


def switched_run(
    scenario: Scenario, seed: int, slo_s: float, blocks: int, correlation: float | None = None
) -> SwitchedRun:
    """Run one seed three times: without hedging, with it, and with the switch.

    Args:
        blocks: number of blocks, even.
        correlation: correlation of rare events between replicas; None for the scenario's.
    """
    samples = SeedSamples(scenario, ComparisonPlan(("adaptive",), (seed,), correlation=correlation), seed)
    goal = Goal(slo_s, LIMIT_S)
    (off, off_s), (on, on_s) = (_whole(samples, policy, goal) for policy in ("off", "adaptive"))
    estimate = _switched(samples, goal, blocks, min(off_s, on_s) / blocks)
    return SwitchedRun(replace(estimate, model=scenario.name), off, on)


def _whole(samples: SeedSamples, policy: str, goal: Goal) -> tuple[ModelCounts, float]:
    """Return the counts of a run with one policy, and its end."""
    tally, ends_s = goal.tally(), [0.0]

    def observe(event: Event) -> None:
        if isinstance(event, RequestEnded):
            count_request(event, tally)
            ends_s[0] = event.at_s

    samples.run(policy, listener=observe)
    return counts_of(tally), ends_s[0]


def _switched(samples: SeedSamples, goal: Goal, blocks: int, length_s: float) -> TotalEffect:
    chance = random.Random(f"{samples.seed}/switchback")
    order = random_order(blocks // 2, chance.random)
    experiment = _Experiment(goal, order, length_s)
    samples.run("adaptive", listener=experiment.on_event, begun=experiment.begin)
    done = {block.name: counts_of(tally) for block in experiment.done.values() for tally in block.models.values()}
    empty = ModelCounts(*goal[:2])
    counts = [done.get(str(number), empty) for number in range(blocks)]
    pairs = [
        Pair(*(counts[2 * number + (order[2 * number] is not on)] for on in (False, True)))
        for number in range(blocks // 2)
    ]
    found = total_effect("", pairs, chance.random)
    assert found is not None
    return found


class _Experiment:
    """The switch of a simulated gateway, on its clock.

    Attributes:
        done: counts of each block by its name.
    """

    def __init__(self, goal: Goal, order: Sequence[bool], length_s: float) -> None:
        self._order = order
        self._length_s = length_s
        self._counts = BlockCounts()
        self._goal = goal
        self.done = {block.name: block for block in self._counts.blocks()}

    def begin(self, loop: asyncio.AbstractEventLoop, pools: Sequence[Pool]) -> None:
        """Set the timers."""
        washout_s, start_s = WASHOUT_SHARE * self._length_s, loop.time()
        for number, on in enumerate(self._order):
            at_s = start_s + number * self._length_s
            loop.call_at(at_s, self._mark, loop, f"before {number}")
            for pool in pools:
                loop.call_at(at_s + _BEFORE_SHARE * washout_s, setattr, pool, "hedging_on", on)
            loop.call_at(at_s + washout_s, self._mark, loop, str(number))

    def on_event(self, event: Event) -> None:
        """Count a request."""
        if isinstance(event, RequestEnded):
            if event.model not in self._counts.goals:
                self._counts.goals = {event.model: self._goal}
            self._counts.on_event(event)

    def _mark(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._counts.begin(name, loop.time())
        self.done |= {block.name: block for block in self._counts.blocks()}


def truth(run: SwitchedRun) -> dict[str, float]:
    """Return the true total effect on each of `FIGURES`, in the units of `TotalEffect`."""
    found = total_effect("truth", [Pair(run.off, run.on)], random.Random(0).random)
    assert found is not None
    each = {name: getattr(found, name) for name in FIGURES}
    return {name: contrast.off - contrast.on for name, contrast in each.items()}
