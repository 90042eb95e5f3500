"""Amounts that are reported late, against a bucket that was charged in time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.share.debts import SEGMENTS_MAX, WASTES_MAX, Segment, Spending, absorb, merged, waste

SIZE, END_S = 60.0, 400.0  # of a bucket that is refilled with 1 a second
POINTS = st.lists(st.tuples(st.integers(0, 399), st.integers(1, 30)), max_size=8)


def _left_in_time(points: list[tuple[float, float]], left: float) -> float:
    """Return what a bucket has left that was charged at once, and may be in debt."""
    at_s = 0.0
    for point_s, amount in sorted(points):
        left, at_s = min(SIZE, left + point_s - at_s) - amount, point_s
    return min(SIZE, left + END_S - at_s)


@given(st.lists(POINTS, max_size=5), st.integers(0, 60))
def test_late_reports_cost_what_they_would_have_cost_in_time(reports: list[list[tuple[int, int]]], first: int) -> None:
    """In any order of the reports: a bucket without any is full at some time, and wastes from then on."""
    full_s = SIZE - first
    wasted: list[Segment] = [(full_s, END_S, END_S - full_s)]
    left = SIZE
    for report in reports:
        left -= absorb(wasted, [(float(at_s), float(at_s), float(amount)) for at_s, amount in sorted(report)])
        assert all(amount > 0 and start_s < end_s for start_s, end_s, amount in wasted)
    points = [(float(at_s), float(amount)) for report in reports for at_s, amount in report]
    assert left == pytest.approx(_left_in_time(points, float(first)))


def test_what_is_spent_evenly_is_charged_evenly() -> None:
    """Half of what is wasted remains, and what comes back is wasted again."""
    wasted: list[Segment] = [(0.0, 100.0, 100.0)]
    assert absorb(wasted, [(0.0, 100.0, 50.0)]) == 0
    assert wasted == [(0.0, 100.0, 50.0)]
    assert absorb(wasted, [(20.0, 40.0, 20.0), (90.0, 90.0, 10.0)]) == pytest.approx(5)
    assert absorb(wasted, [(50.0, 50.0, -4.0)]) == 0
    assert sum(amount for _, _, amount in wasted) == pytest.approx(50 - 20 - 5 + 4)


def test_segments_are_bounded_and_keep_their_sum() -> None:
    """Spending at an even rate becomes few segments, and a burst stays where it was."""
    spending = Spending(60.0)
    for number in range(2_000):
        spending.add(1.0, 1.0 * number)
    spending.add(500.0, 2_000.0)
    for number in range(600):
        spending.add(1.0, 2_001.0 + number)
    spending.add(-1.0, 2_600.0)
    segments = spending.take()
    assert len(segments) <= SEGMENTS_MAX
    assert sum(amount for _, _, amount in segments) == 3_099
    assert spending.total == 0
    assert not spending.take()
    before = sum(amount for _, end_s, amount in segments if end_s < 2_000)
    within = sum(amount for start_s, end_s, amount in segments if start_s <= 2_000 <= end_s)
    assert before == pytest.approx(2_000, abs=5)
    assert within == pytest.approx(500, abs=5)


def test_neighbours_at_the_same_time_become_one() -> None:
    """An amount of an instant has no rate."""
    assert merged([(1.0, 1.0, 2.0), (1.0, 1.0, 3.0), (5.0, 5.0, 9.0)], 2) == [(1.0, 1.0, 5.0), (5.0, 5.0, 9.0)]


def test_what_is_wasted_is_bounded() -> None:
    """The oldest segments become longer; segments within a thirty-second of a window become one."""
    wasted: list[Segment] = []
    for number in range(1_000):
        waste(wasted, (0.5 * number, 0.5 * number + 0.25, 0.25), 60.0)
        assert len(wasted) <= WASTES_MAX
    assert sum(amount for _, _, amount in wasted) == 250
    assert wasted[-1][1] - wasted[-1][0] <= 60 / 32
