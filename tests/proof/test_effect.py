"""The estimate of what hedging saved: exact cases, what is not shown, and a small form of its coverage."""

import math

import pytest

from gateway.proof.effect import direct_effect
from gateway.proof.report import report
from gateway.proof.tally import Group, Tally
from known_runs import FIGURES, coverage, known_run
from split_coverage import coverage as coverage_of_split
from streaming_bench.simulation.scenario import load
from ttft_gateway.hedging.measure import Instrument


def tally(requests: int = 10_000, beaten: int = 400, read: int = 400) -> Tally:
    """Requests of 100 ms; those that were beaten took 200 ms, and would have taken 3 s."""
    counts = Tally(2.0, 10.0, span_s=3600.0)
    for _ in range(requests - beaten):
        counts.add(Group.SAME, 0.1)
    for number in range(beaten):
        counts.add(Group.BEATEN, 0.2)
        if number < read:
            counts.add_read(0.2, 3.0)
    return counts


def test_if_every_loser_is_read_nothing_is_unknown() -> None:
    """The figures cover the counted requests; a quantile is exact up to the width of its bin."""
    effect = direct_effect(tally())
    assert effect.misses.saved == (400.0, 400.0, 400.0)
    assert (effect.misses.without, effect.misses.with_) == ((400.0,) * 3, (0.0,) * 3)
    assert effect.mean.saved == pytest.approx((0.112,) * 3)
    assert effect.p99.without is not None
    assert effect.p99.saved is not None
    assert effect.p99.without.value == pytest.approx(3.0, rel=0.003)
    assert effect.p99.saved.low < 2.8 < effect.p99.saved.high
    assert effect.p99.saved.high - effect.p99.saved.low < 0.03


def test_a_difference_below_the_bins_is_not_shown() -> None:
    """The p95 is the same with and without hedging."""
    effect = direct_effect(tally())
    assert effect.p95.without is not None
    assert effect.p95.saved is None


def test_too_little_data_has_a_sentence_with_the_time() -> None:
    """Below 20 measured requests no figure without hedging is shown."""
    found = report("m", tally(read=5))
    assert not found.enough
    assert (found.misses.without, found.misses.saved, found.p99_ms.saved, found.mean_ms.saved) == (None,) * 4
    assert found.misses.with_ is not None
    assert found.missing == "5 of 20 measured requests for figures; at this rate 3 h more"


def test_unmeasured_hedges_count_as_if_they_saved_nothing() -> None:
    """The estimate is then a lower bound, and their number is shown."""
    counts = tally(read=100)
    for _ in range(400):
        counts.add(Group.UNMEASURED, 0.2)
    found = report("m", counts)
    assert found.unmeasured == 400
    assert found.misses.saved is not None
    assert found.misses.saved.value == 400


def test_an_unknown_quantile_is_not_shown() -> None:
    """More than 1 % of the requests would have had no token within the TTFT timeout."""
    counts = Tally(2.0, 10.0)
    for _ in range(1000):
        counts.add(Group.SAME, 0.1)
        counts.add(Group.BEATEN, 0.2)
        counts.add_read(0.2, math.inf)
    found = report("m", counts)
    assert (found.p99_ms.without, found.p99_ms.saved) == (None, None)
    assert found.misses.saved is not None


def test_hold_out() -> None:
    """Withheld requests stand for all for which a hedge was granted."""
    counts = Tally(2.0, 10.0)
    for number in range(1000):
        counts.add(Group.WITHHELD if number % 10 == 0 else Group.GRANTED, 3.0 if number % 10 == 0 else 0.2)
    effect = direct_effect(counts)
    assert effect.misses.saved is not None
    assert effect.misses.saved.value == pytest.approx(1000)
    assert effect.misses.saved.low > 950


def test_counts_of_gateways_add_up() -> None:
    """The estimate from two halves is the estimate from the whole."""
    whole, half = tally(20_000, 800, 100), tally(10_000, 400, 50)
    half.merge(tally(10_000, 400, 50))
    assert report("m", half) == report("m", whole)


def test_money() -> None:
    """The bill of the losers is divided by the misses that were avoided."""
    counts = tally()
    counts.add_cost(1000, 2.0)
    assert report("m", counts).cost_per_avoided_miss == pytest.approx(0.005)
    assert report("m", tally()).cost_per_avoided_miss is None


@pytest.mark.parametrize("unhelped", [0.0, 1.0])
def test_a_hold_out_contains_the_truth_on_heavy_tails(unhelped: float) -> None:
    """At 30 % withheld: 86 % of the intervals did while both arms counted as independent, if hedges do not help."""
    assert coverage_of_split(unhelped, 0.3, 150) >= 0.9


@pytest.mark.parametrize("instrument", Instrument)
def test_intervals_contain_the_truth(instrument: Instrument) -> None:
    """On W1, simulated; 200 repetitions of all workloads are in tests/acceptance/proof_coverage.py."""
    run = known_run(load("W1", 3000), seed=1, slo_s=0.02)
    found = coverage([run], instrument, 0.4, 40)
    for figure in FIGURES:
        assert found[figure].shown == 40
        assert found[figure].share >= 0.85, figure
