"""The counts of hedging clients."""

import pytest

from ttft_gateway import Stats


def test_the_times_of_a_target_are_its_last_ones() -> None:
    """The quantiles are of the last 500 times to the first event, whatever came before; None before the first time."""
    stats = Stats()
    stats.sent("a", 0)
    assert stats.snapshot().targets["a"].first_p50_s is None
    for waited_s in (*[9.0] * 700, *[number / 1000 for number in range(500)]):
        stats.first("a", waited_s)
    counts = stats.snapshot().targets["a"]
    assert (counts.first_p50_s, counts.first_p95_s) == pytest.approx((0.249, 0.474))
