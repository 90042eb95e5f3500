"""Expected time until capacity is released."""

import pytest

from gateway.admission.wait_estimator import WaitEstimator


def test_it_is_littles_law() -> None:
    """With ten slots held for 20 s each, one comes back in 2 s and five in 10 s."""
    turnover = WaitEstimator(10)
    for _ in range(5):
        turnover.ended(20.0)
    assert turnover.wait_s() == pytest.approx(2.0)
    assert turnover.wait_s(5) == pytest.approx(10.0)


def test_what_is_large_counts_more() -> None:
    """Many small holders that end at the same time do not make a large one look quick."""
    turnover = WaitEstimator(1_000)
    turnover.ended(30.0, 500)
    for _ in range(10):
        turnover.ended(0.01, 1)
    assert turnover.wait_s(1_000) > 25


@pytest.mark.parametrize(("held_s", "expected_s"), [(1e-9, 0.1), (1e9, 60.0)])
def test_the_wait_is_bounded(held_s: float, expected_s: float) -> None:
    """However quick or slow they were, the wait is between 0.1 s and a minute."""
    turnover = WaitEstimator(1)
    turnover.ended(held_s)
    assert turnover.wait_s() == expected_s


def test_before_anything_has_ended() -> None:
    """With nothing known it is five seconds."""
    assert WaitEstimator(3).wait_s(2) == 5.0
