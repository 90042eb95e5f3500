"""Reports of limits that are used up: the others take no more as left than is left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.share.hub import ShareHub
from gateway.share.low_limits import LowLimits
from gateway.share.messages import Ask, GaugeAnswer, GaugeAsk
from used_limit import Used


class House:
    """Processes that exchange over one hub."""

    def __init__(self, processes: int = 2) -> None:
        self.hub = ShareHub()
        self.now_s = 100.0
        self.dropped: list[str] = []
        self.of = [LowLimits(lambda name, _fault: self.dropped.append(name)) for _ in range(processes)]

    def exchange(self) -> None:
        """Let all processes exchange in turn, twice, so that each has the reports of all."""
        for _ in range(2):
            self.now_s += 0.5
            for number, low in enumerate(self.of):
                low.answered(self.hub.answer(self.now_s, str(number), self._asks(low)).answers, self.now_s)

    def _asks(self, low: LowLimits) -> list[Ask]:
        return list(low.asks(self.now_s, 0.1))

    def left(self, process: int, key: str = "key") -> float | None:
        return self.of[process].others_left(key, self.now_s)


@given(st.floats(-2, 1))
def test_a_report_is_of_at_most_what_is_left(left: float) -> None:
    """And of an eighth less at most; a full limit is not reported, and counts as a sixteenth less."""
    house = House()
    house.of[0].note(Used("key", left))
    house.exchange()
    reported = house.left(1)
    assert reported is not None
    assert max(0.0, min(left, 15 / 16) - 1 / 8) <= reported <= max(0.0, left)


def test_the_lowest_report_of_the_others_counts() -> None:
    """A process's own report is not among them."""
    house = House(3)
    for low, left in zip(house.of, (0.9, 0.3, 0.05), strict=True):
        low.note(Used("key", left))
    house.exchange()
    assert [house.left(number) for number in range(3)] == [0.0, 0.0, 0.25]


def test_limits_share_rows() -> None:
    """The lower of two limits with a row in common counts for both; most limits have no row in common."""
    house = House()
    house.of[0].note(Used("key", 0.5))
    house.exchange()
    lower = [number for number in range(1_000) if house.left(1, f"key {number}") != 15 / 16]
    assert 0 < len(lower) < 30
    house.of[0].note(Used(f"key {lower[0]}", 0.1))
    house.exchange()
    assert house.left(1) == 0.0


def test_a_limit_is_reported_until_it_is_full() -> None:
    """Then nothing is sent but the same rows, twice a second."""
    house, limit = House(), Used("key", 0.5)
    house.of[0].note(limit)
    house.exchange()
    assert house.left(1) == 0.375
    limit.left = 0.95
    house.exchange()
    assert house.left(1) == 15 / 16
    asks: list[Ask] = []
    for _ in range(20):
        house.now_s += 0.1
        asks += house.of[0].asks(house.now_s, 0.1)
    assert 4 <= len(asks) <= 5
    rows = [ask.rows for ask in asks if isinstance(ask, GaugeAsk)]
    assert all(each is rows[0] for each in rows)


def test_reports_are_unknown_before_the_first_answer_and_when_they_are_old() -> None:
    """The engine is then away, or has lost them."""
    house = House()
    assert house.left(0) is None
    house.exchange()
    house.now_s += 2.9
    assert house.left(0) == 15 / 16
    house.now_s += 0.2
    assert house.left(0) is None


def test_damaged_reports_are_dropped() -> None:
    """The other ones count."""
    house = House()
    [ask] = house.of[0].asks(house.now_s, 0.1)
    assert isinstance(ask, GaugeAsk)
    house.of[1].note(Used("key", 0.5))
    house.exchange()
    rows = {**{name: [0, 0, 0, 0, 1, 0, 0, 0] for name in ask.rows}, "7": [0, 3, 0, 0, 0, 0, 0, 0], "8": [0] * 8}
    house.of[0].answered([GaugeAnswer(2, rows, 1)], house.now_s)
    assert house.left(0) == 0.375
    assert house.dropped == ["the use of limits 7"]


@pytest.mark.parametrize("number", [100, 10_000])
def test_the_cost_does_not_grow_with_the_number_of_limits(number: int) -> None:
    """The rows are the same number for any number of keys."""
    house = House()
    for key in range(number):
        house.of[0].note(Used(f"key {key}", 0.5))
    [ask] = house.of[0].asks(house.now_s, 0.1)
    assert isinstance(ask, GaugeAsk)
    assert len(ask.rows) == 128
