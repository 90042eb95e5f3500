"""Compares the estimate of what hedging saved with the truth, which only a simulation has.

Every beaten attempt of a run is read to its first token, so both TTFTs of each request are known. Then shares of these
requests are drawn again and again, the others are treated as unknown, and each estimate is compared with the truth of
the run. Units: seconds.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from gateway.events import Event, RequestEnded
from gateway.observe.proof import Goal, count_request
from gateway.proof.effect import DirectEffect, Effect, direct_effect
from gateway.proof.intervals import Interval
from gateway.proof.tally import Group, Tally
from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples, policy_settings
from streaming_bench.simulation.scenario import Scenario
from ttft_gateway.hedging.measure import Instrument, MeasureShares

FIGURES: Final = ("misses", "p95", "p99", "mean")
_QUANTILES: Final = {"p95": 0.95, "p99": 0.99}
_LIMIT_S: Final = 10.0


class KnownRequest(NamedTuple):
    """A request with both of its TTFTs.

    Attributes:
        group: group without a draw: SAME, or BEATEN; a request for which a hedge was granted has `asked`.
        with_s, without_s: its TTFT with and without the hedge.
    """

    group: Group
    asked: bool
    with_s: float
    without_s: float


@dataclass(frozen=True, slots=True)
class KnownRun:
    """All requests of a run.

    Attributes:
        goal: SLO and limit.
        truth: the saved amount of each of `FIGURES`.
    """

    requests: Sequence[KnownRequest]
    goal: Goal
    truth: dict[str, float]


def known_run(scenario: Scenario, seed: int, slo_s: float, correlation: float | None = None) -> KnownRun:
    """Run the adaptive policy on one seed, and read every beaten attempt.

    Args:
        correlation: correlation of rare events between replicas; None for the scenario's.
    """
    plan = ComparisonPlan(("adaptive",), (seed,), correlation=correlation)
    settings = policy_settings(scenario, plan)
    measured = replace(settings.hedging, measure=MeasureShares(losers=1.0))
    goal, requests = Goal(slo_s, _LIMIT_S), list[KnownRequest]()

    def observe(event: Event) -> None:
        if isinstance(event, RequestEnded):
            requests.append(_known(event, goal))

    SeedSamples(scenario, plan, seed).run("adaptive", settings=replace(settings, hedging=measured), listener=observe)
    return KnownRun(requests, goal, _truth(requests, goal))


def _known(event: RequestEnded, goal: Goal) -> KnownRequest:
    tally = goal.tally()
    count_request(event, tally)
    with_s = sum(tally.times(group).sum_s for group in (Group.SAME, Group.BEATEN))
    without_s = tally.times(Group.READ_WITHOUT).sum_s if Group.READ_WITHOUT in tally.groups else with_s
    group = Group.BEATEN if tally.times(Group.BEATEN).count else Group.SAME
    return KnownRequest(group, event.measured is not None, with_s, without_s)


def _truth(requests: Sequence[KnownRequest], goal: Goal) -> dict[str, float]:
    with_s, without_s = sorted(each.with_s for each in requests), sorted(each.without_s for each in requests)
    at = {name: math.ceil(q * len(requests)) - 1 for name, q in _QUANTILES.items()}
    return {
        "misses": float(sum(each > goal.slo_s for each in without_s) - sum(each > goal.slo_s for each in with_s)),
        "mean": (sum(without_s) - sum(with_s)) / len(requests),
        **{name: without_s[index] - with_s[index] for name, index in at.items()},
    }


class Draws:
    """Estimates from random shares of the requests of a run that could be measured.

    Args:
        run: all requests, with both TTFTs.
        instrument: way to measure.
    """

    def __init__(self, run: KnownRun, instrument: Instrument) -> None:
        self._is_losers = instrument is Instrument.LOSERS
        tally = run.goal.tally()
        for request in run.requests:
            if self._is_losers:
                tally.add(request.group, request.with_s)
            elif not request.asked:
                tally.add(Group.SAME, request.with_s)
        self._same = msgspec.msgpack.encode(tally)
        if self._is_losers:
            self._drawn = [request for request in run.requests if request.group is Group.BEATEN]
        else:
            self._drawn = [request for request in run.requests if request.asked]

    def effect(self, share: float, chance: random.Random) -> DirectEffect:
        """Estimate from one draw."""
        tally = msgspec.msgpack.decode(self._same, type=Tally)
        for request in self._drawn:
            is_drawn = chance.random() < share
            if not self._is_losers:
                tally.add(
                    Group.WITHHELD if is_drawn else Group.GRANTED, request.without_s if is_drawn else request.with_s
                )
            elif is_drawn:
                tally.add_read(request.with_s, request.without_s)
        return direct_effect(tally)


class Coverage:
    """Of one figure: the intervals that were shown, and the share that contains the truth.

    Attributes:
        shown: number of intervals that were shown.
        covering: number of them that contain the truth.
        halves: half of each interval's width, as a share of the truth.
    """

    def __init__(self) -> None:
        self.shown = self.covering = 0
        self.halves: list[float] = []

    def add(self, interval: Interval | None, truth: float) -> None:
        """Add an estimate."""
        if interval is None:
            return
        self.shown += 1
        self.covering += interval.low <= truth <= interval.high
        if truth > 0:
            self.halves.append((interval.high - interval.low) / 2 / truth)

    @property
    def share(self) -> float:
        """Share of the intervals that contain the truth; NaN without any."""
        return self.covering / self.shown if self.shown else math.nan

    @property
    def half(self) -> float:
        """Median of the half widths; NaN without any."""
        return sorted(self.halves)[len(self.halves) // 2] if self.halves else math.nan


def coverage(runs: Sequence[KnownRun], instrument: Instrument, share: float, repetitions: int) -> dict[str, Coverage]:
    """Draw from the runs in turn; returns the coverage of each figure."""
    found = {figure: Coverage() for figure in FIGURES}
    draws = [Draws(run, instrument) for run in runs]
    for number in range(repetitions):
        run = runs[number % len(runs)]
        effect = draws[number % len(runs)].effect(share, random.Random(f"{number}/draw"))
        effects: dict[str, object] = asdict(effect)
        for figure in FIGURES:
            shown = effects[figure]
            assert isinstance(shown, Effect)
            found[figure].add(shown.saved, run.truth[figure])
    return found
