"""Replicas with a law of the TTFT: queues, faults, traffic over time, and the same draws for every policy."""

from typing import Any

import pytest
from msgspec.structs import replace

from streaming_bench.simulation.comparison import ComparisonPlan, SeedSamples, compare
from streaming_bench.simulation.law_scenario import Day, Pulse
from streaming_bench.simulation.runner import SimulatedRequest
from streaming_bench.simulation.scenario import load
from streaming_bench.simulation.toml_section import Duration
from streaming_bench.simulation.world import arrivals_s


def records(workload: str, requests: int, policy: str = "off") -> list[SimulatedRequest]:
    """The records of one run, in the order of arrival."""
    scenario = load(workload, requests)
    return sorted(SeedSamples(scenario, ComparisonPlan((), ()), 1).run(policy).records)


def rows(workload: str, requests: int) -> dict[str, dict[str, Any]]:
    """The rows of a comparison of adaptive and off, by policy."""
    found = compare(load(workload, requests), ComparisonPlan(("adaptive", "off"), (1,)))["rows"]
    assert isinstance(found, list)
    return {row["policy"]: row for row in found}


def test_without_hedges_policies_have_the_same_ttft() -> None:
    """A static delay that is never reached gives the TTFTs of `off`, request by request."""
    scenario = load("U9", 300)
    samples = SeedSamples(scenario, ComparisonPlan((), (), static_delay_s=1000.0), 1)
    assert samples.run("static").records == samples.run("off").records


def test_a_shared_queue_answers_in_turn() -> None:
    """With one slot for two replicas no answer begins before the one ahead has ended."""
    scenario = load("U15", 200)
    assert scenario.law is not None
    law = replace(scenario.law, slots=1, answer=scenario.law.answer)
    run = SeedSamples(replace(scenario, law=law), ComparisonPlan((), ()), 1).run("off")
    ends_s = [each.arrived_s + each.ttft_s for each in sorted(run.records)]
    assert ends_s == sorted(ends_s)


def test_a_dead_replica_answers_after_its_span_only() -> None:
    """While the first replica is dead, requests sent to it wait for the failover after 10 s; the others do not."""
    slow = [119.0 < each.arrived_s < 1320.0 for each in records("U16", 1_500) if each.ttft_s > 10.0]
    assert slow.count(True) > 5 * slow.count(False)


def test_impatient_clients_count_from_their_first_request() -> None:
    """A client that retries after 3 s has waited for at least 3.5 s; one without retries fails."""
    waits_s = [each.ttft_s for each in records("U14", 1_500)]
    assert any(wait_s > 3.5 for wait_s in waits_s)
    assert not any(3.0 < wait_s < 3.5 for wait_s in waits_s)
    assert rows("U14/bursts", 400)["off"]["failed_share"] > 0


def test_a_silent_replica_costs_no_answer() -> None:
    """Answers that stop after their first token count as failed; after some fifteen the replica is known."""
    assert rows("U13", 1_200)["adaptive"]["failed_share"] <= 0.02


@pytest.mark.parametrize(
    ("pulse", "day"), [(Pulse(Duration(30), Duration(3), 10.0), None), (None, Day(Duration(60), 9.0))]
)
def test_traffic_follows_its_form(pulse: Pulse | None, day: Day | None) -> None:
    """Bursts have ten times the rate, and the middle of a day has nine times the rate of its start."""
    arrivals = replace(load("U7").arrivals, per_second=20.0, pulse=pulse, day=day)
    times_s = arrivals_s(arrivals, 20_000, 1)
    assert times_s == sorted(times_s)
    parts = [time_s % (30 if pulse else 60) // 3 for time_s in times_s]
    counts = [parts.count(part) for part in range(20)]
    ratio = counts[0] / counts[1] if pulse else (counts[9] + counts[10]) / (counts[0] + counts[19])
    assert ratio == pytest.approx(10 if pulse else 9, rel=0.2)


def test_rows_of_unseen_workloads_are_deterministic() -> None:
    """Two runs of one seed are the same, with limits that others use, too."""
    first, second = (rows("U12", 300) for _ in range(2))
    assert first == second


def test_a_restart_forgets() -> None:
    """A gateway that restarts every ten minutes hedges less than one that keeps what it learned."""
    forgotten, kept = (sum(each.hedges for each in records(name, 1_200, "adaptive")) for name in ("U11", "U11/kept"))
    assert forgotten < kept
