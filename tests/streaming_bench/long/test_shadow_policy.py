"""The policy `shadow` over a whole simulated workload: what it predicts against a run with hedging."""

import pytest

from gateway.events import Event, RequestEnded, Role
from gateway.observe.proof import Goal, count_request
from gateway.proof.shadow import shadow_report
from gateway.proof.tally import Tally
from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples
from streaming_bench.simulation.scenario import load

_REQUESTS = 6000


def test_predicted_and_true_effect_on_w2() -> None:
    """One request in five waits for a cold cache: the predicted misses equal the misses of a run with hedging."""
    scenario = load("W2", _REQUESTS)
    samples = SeedSamples(scenario, ComparisonPlan(("shadow", "adaptive"), (2,)), 2)
    hedges = {"shadow": 0, "adaptive": 0}
    tallies = {policy: Goal(0.1, 10.0, is_shadow=True).tally() for policy in hedges}
    for policy, tally in tallies.items():

        def observe(event: Event, policy: str = policy, tally: Tally = tally) -> None:
            if isinstance(event, RequestEnded):
                hedges[policy] += any(attempt.role is Role.BACKUP for attempt in event.attempts)
                count_request(event, tally)

        samples.run(policy, listener=observe)
    report = shadow_report("m", tallies["shadow"])
    misses = sum(times.misses for group, times in tallies["adaptive"].groups.items())
    assert hedges["shadow"] == 0
    assert report.requests == _REQUESTS
    assert report.hedges == pytest.approx(hedges["adaptive"], rel=0.1)
    assert report.misses.independent == pytest.approx(misses, rel=0.15)
    assert report.misses.correlated == pytest.approx(report.misses.observed, rel=0.05)
    assert misses < 0.75 * (report.misses.observed or 0.0)
