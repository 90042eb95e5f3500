"""The share of the budget that is for first hedges."""

import pytest

from ttft_gateway.pool.learning import SecondHedges


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
