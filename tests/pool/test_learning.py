"""The share of the budget that is for first hedges, and the ratios of the first samples."""

import pytest

from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.pool.learning import Learning, SecondHedges


def test_the_first_share_leaves_room_for_second_hedges() -> None:
    """B' is B with one hedge, else 0.97 B / (1 + (n2+1)/(n1+10)), the counts decaying with each first hedge."""
    hedges = SecondHedges()
    assert hedges.first_share(0.1, 1) == 0.1
    assert hedges.first_share(0.1, 2) == pytest.approx(0.097 / 1.1)
    for n in range(20_000):
        hedges.count(second=False)
        if n % 4 == 0:
            hedges.count(second=True)
    assert hedges.first_share(0.1, 2) == pytest.approx(0.097 / 1.25, rel=0.01)
    assert hedges.first_share(0.1, 1) == 0.1


def _learned(times_s: list[float], *, asks: bool) -> Learning:
    """Learn times one second apart, with predictions that were far too high; `asks` for a plan each time."""
    learning = Learning(["a"], HedgeParameters())
    for now_s, ttft_s in enumerate(times_s):
        learning.predictor.add("a", ttft_s, 0.0, 0.0, float(now_s))
        learning.add_content("a", ttft_s, 10.0, float(now_s))
        if asks:
            learning.plan("a", float(now_s))
    return learning


def test_the_first_ratios_are_made_again_by_the_law_they_led_to() -> None:
    """Neither a guessed prediction nor a slow start is seen in them; from 100 samples on they stay as they are."""
    for start_s in (1.0, 30.0):
        learning = _learned([start_s] * 25 + [1.0] * 70, asks=True)
        for quantile in (0.1, 1.0):  # the last samples, less than a twentieth, wait for the next plan
            assert learning.ratios.quantile(quantile, 95.0) == pytest.approx(1.0, rel=0.02)
    learning = _learned([1.0] * 120, asks=True)
    learning.add_content("a", 1.0, 0.5, 120.0)
    learning.plan("a", 121.0)
    assert learning.ratios.quantile(1.0, 121.0) == pytest.approx(2.0, rel=0.02)
    assert learning.ratios.quantile(0.5, 121.0) == pytest.approx(1.0, rel=0.02)


def test_first_samples_that_no_plan_asks_for_are_bounded() -> None:
    """A pool without hedges keeps no more than a number of samples, and others get ratios by the present law."""
    learning = _learned([1.0] * 399, asks=False)
    assert learning.ratios.quantile(0.5, 399.0) == pytest.approx(0.1, rel=0.02)
    assert learning.take_new(399.0)[0] == ({}, {})
    assert learning.ratios.quantile(0.5, 399.0) == pytest.approx(1.0, rel=0.02)
    assert _learned([1.0] * 400, asks=False).ratios.quantile(0.5, 400.0) == pytest.approx(1.0, rel=0.02)
