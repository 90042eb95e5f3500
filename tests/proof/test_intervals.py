"""Intervals of shares and means of a finite population."""

import math

import pytest

from gateway.proof.intervals import Interval, correlation_max, exactly, mean, share, split_difference, total


@pytest.mark.parametrize(
    ("hits", "sample", "population", "low", "high"),
    [
        (10, 100, 10**9, 0.0552, 0.1744),  # Wilson's, for a population without end
        (0, 20, 10**9, 0.0, 0.1611),
        (20, 20, 10**9, 0.8389, 1.0),
        (10, 100, 100, 0.1, 0.1),  # nothing is unknown
        (10, 50, 100, 0.1331, 0.2893),  # half of all are in the sample
    ],
)
def test_share(hits: int, sample: int, population: int, low: float, high: float) -> None:
    """The interval is Wilson's, narrower with the share of the population that is in the sample."""
    assert share(hits, sample, population) == pytest.approx((hits / sample, low, high), abs=2e-4)


def test_a_share_without_a_sample_is_unknown() -> None:
    """Unless there is nothing to know."""
    assert share(0, 0, 5)[1:] == (0.0, 1.0)
    assert share(0, 0, 0) == exactly(0.0)


def test_mean() -> None:
    """A skewed mean has the longer part of its interval above."""
    found = mean(100.0, 300.0, 100, 10**9)
    assert found.value == 1.0
    assert found.high - 1.0 > 1.0 - found.low > 0
    assert found.high == pytest.approx(1.325, abs=0.005)
    assert mean(100.0, 300.0, 100, 100) == exactly(1.0)
    assert math.isinf(mean(1.0, 1.0, 1, 5).high)


def test_sum() -> None:
    """Errors of independent parts add up as their squares, on each side."""
    assert total([Interval(1.0, 0.7, 1.4), Interval(2.0, 1.6, 2.3)]) == pytest.approx((3.0, 2.5, 3.5))
    assert total([exactly(1.0), Interval(-2.0, -5.0, -1.0)]) == pytest.approx((-1.0, -4.0, 0.0))


@pytest.mark.parametrize(("correlation", "low", "high"), [(0.0, -5.0, 10.0), (1.0, -7.0, 14.0)])
def test_the_errors_of_a_split_add_up(correlation: float, low: float, high: float) -> None:
    """The ends of 3 and 4, and of 6 and 8: their sums at a correlation of 1, the roots of their squares at 0."""
    one, other = Interval(20.0, 17.0, 26.0), Interval(20.0, 12.0, 24.0)
    assert split_difference(one, other, correlation) == pytest.approx((0.0, low, high))


@pytest.mark.parametrize(("p", "q", "highest"), [(0.3, 0.3, 1.0), (0.5, 0.2, 0.5), (0.0, 0.5, 0.0), (1.0, 0.5, 0.0)])
def test_the_largest_correlation_of_two_events(p: float, q: float, highest: float) -> None:
    """It is 1 for events of the same probability, and 0 if one of them is certain."""
    assert correlation_max(p, q) == pytest.approx(highest)
