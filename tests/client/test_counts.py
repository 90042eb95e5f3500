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


@pytest.mark.parametrize(
    ("count", "p50", "p95"), [(1, 1, 1), (2, 1, 2), (3, 2, 3), (4, 2, 4), (19, 10, 19), (20, 10, 19), (21, 11, 20)]
)
def test_a_quantile_is_at_the_nearest_rank(count: int, p50: int, p95: int) -> None:
    """At least the named percentage of the times is at most the quantile, also of two or three times."""
    stats = Stats()
    for waited_s in range(count, 0, -1):
        stats.first("a", float(waited_s))
    counts = stats.snapshot().targets["a"]
    assert (counts.first_p50_s, counts.first_p95_s) == (p50, p95)
