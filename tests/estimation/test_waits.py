"""The last waits of a way: the probability of a longer one, with waits that were given up, and refusals."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.estimation.waits import RECENT, WaitCurve, Waits

WAITS = st.lists(st.tuples(st.floats(0.0, 100.0), st.booleans()), max_size=60)


def test_a_wait_that_was_given_up_is_longer_than_it_lasted() -> None:
    """Of four waits, two of which were given up after 2 s, half are longer than 2 s, however long."""
    curve = WaitCurve([(0.5, True), (1.0, True), (2.0, False), (2.0, False)])
    assert curve.longer(0.4) == 1.0
    assert curve.longer(2.0) == curve.longer(1_000.0) == pytest.approx(0.5, abs=0.06)


def test_the_quantile_is_a_wait_that_was_seen() -> None:
    """Of a hundred waits of 1 to 100 ms, 90 % are below 90 ms; without waits there is none."""
    curve = WaitCurve([(0.001 * (index + 1), True) for index in range(100)])
    assert curve.quantile_s(0.9) == pytest.approx(0.09, abs=0.0021)
    assert WaitCurve([]).quantile_s(0.9) == 0.0
    assert WaitCurve([]).longer(5.0) == 1.0


@given(WAITS, st.floats(0.0, 120.0), st.floats(0.0, 120.0))
def test_a_curve_falls_and_stays_above_zero(waits: list[tuple[float, bool]], one_s: float, other_s: float) -> None:
    """A longer time is less often exceeded, and no number of samples excludes a longer wait."""
    curve = WaitCurve(waits)
    shorter_s, longer_s = sorted((one_s, other_s))
    assert 1.0 >= curve.longer(shorter_s) >= curve.longer(longer_s) > 0.0


def usual(rng: random.Random) -> float:
    """A wait of about a second."""
    return rng.lognormvariate(0.0, 0.5)


def test_recent_waits_are_a_part_of_all() -> None:
    """A slow drift shows in the recent waits first, and old waits can be forgotten."""
    waits, rng = Waits(), random.Random(1)
    for index in range(400):
        waits.add(usual(rng) * (1.0 + index / 400), is_end=True)
    assert waits.curve(RECENT).longer(1.5) > waits.curve().longer(1.5) + 0.1
    waits.forget_old()
    assert waits.curve().longer(1.5) == waits.curve(RECENT).longer(1.5)


@pytest.mark.parametrize("factor", [5.0, 0.2])
def test_a_change_is_noticed_within_a_dozen_waits(factor: float) -> None:
    """After a jump up or down the earlier waits are forgotten; without a jump, in thousands of waits they are not."""
    waits, rng = Waits(), random.Random(2)
    for _ in range(3_000):
        waits.add(usual(rng), is_end=True)
    before = waits.curve().longer(1.0)
    assert before == pytest.approx(0.5, abs=0.08)
    for _ in range(14):
        waits.add(factor * usual(rng), is_end=factor < 1.0)
    assert abs(waits.curve().longer(1.0) - (1.0 if factor > 1.0 else 0.0)) < 0.35


def test_refusals_are_counted_apart() -> None:
    """A refusal is no wait, and its share is of the last attempts."""
    waits = Waits()
    for index in range(100):
        if index % 10:
            waits.add(1.0, is_end=True)
        else:
            waits.add_refusal()
    assert waits.refused == pytest.approx(0.1)
    assert waits.seen == 90
