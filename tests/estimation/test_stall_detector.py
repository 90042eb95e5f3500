"""The suspect rule: three late attempts in a row without a first content, one first content clears it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.estimation.stall_detector import StallDetector


def three_waiting(predicted_s: float = 0.5) -> StallDetector:
    """Three attempts sent at 0, 0.1 and 0.2 s."""
    waits = StallDetector()
    for n in range(3):
        waits.sent(n, predicted_s, n / 10)
    return waits


@pytest.mark.parametrize(
    ("predicted_s", "suspect_at_s"),
    [(0.5, 1.7), (0.1, 1.2), (1 / 3, 1.2), (10.0, 30.2)],
    ids=["3x", "1 s at least", "both", "3x of long"],
)
def test_three_waiting_late_make_it_suspect(predicted_s: float, suspect_at_s: float) -> None:
    """A replica is suspect once the third attempt is later than 3 times its prediction and than 1 s."""
    waits = three_waiting(predicted_s)
    assert not waits.is_suspect(suspect_at_s - 0.01)
    assert waits.is_suspect(suspect_at_s + 0.01)


def test_given_up_late_counts_like_waiting() -> None:
    """Late attempts that lost count on, mixed with those that wait."""
    waits = three_waiting()
    waits.given_up(0, 2.0)
    waits.given_up(1, 2.0)
    assert waits.is_suspect(2.0)
    waits.given_up(2, 2.0)
    assert waits.is_suspect(100.0)


def test_given_up_early_does_not_count() -> None:
    """An attempt cancelled before it was late does not count."""
    waits = three_waiting()
    waits.given_up(0, 1.0)
    assert not waits.is_suspect(100.0)


def test_an_error_does_not_count() -> None:
    """A failed attempt is the breaker's business."""
    waits = three_waiting()
    waits.failed(0)
    assert not waits.is_suspect(100.0)


def test_one_first_content_clears_it() -> None:
    """A first content clears the count, and attempts that were late by then no longer count."""
    waits = three_waiting()
    waits.given_up(0, 2.0)
    waits.sent(3, 0.5, 2.0)
    waits.first_content(3, 2.5)
    assert not waits.is_suspect(2.5)
    assert not waits.is_suspect(100.0)
    waits.given_up(1, 3.0)
    assert not waits.is_suspect(100.0)


def test_an_attempt_that_a_later_one_overtook_shows_nothing() -> None:
    """The answer to an attempt removes those that were sent before it, and no others: the replica goes on."""
    waits = three_waiting()
    waits.sent(3, 0.5, 0.3)
    waits.first_content(2, 0.4)
    assert waits.overdue_s(0.7) == 0.0  # attempts 0 and 1 are stragglers
    assert waits.overdue_s(1.0) == pytest.approx(0.2)  # attempt 3 is not
    waits.given_up(0, 2.0)
    waits.given_up(1, 2.0)
    assert not waits.is_suspect(100.0)


def test_after_an_answer_it_takes_three_later_ones() -> None:
    """Late attempts make it suspect again if they were sent with the answered one or after it."""
    waits = three_waiting()
    waits.sent(3, 0.5, 0.2)
    waits.sent(4, 0.5, 0.9)
    waits.first_content(2, 1.0)
    waits.sent(5, 0.5, 1.1)
    assert not waits.is_suspect(2.5)
    assert waits.is_suspect(2.7)


def test_two_late_ones_are_weather() -> None:
    """Two in a row are not enough."""
    waits = StallDetector()
    waits.sent(0, 0.1, 0.0)
    waits.sent(1, 0.1, 0.0)
    assert not waits.is_suspect(1_000.0)


def test_an_unknown_prediction_is_never_late() -> None:
    """Nothing is late against an infinite prediction."""
    waits = three_waiting(math.inf)
    assert not waits.is_suspect(1e9)
    assert waits.overdue_s(1e9) == 0.0


def test_probes_keep_their_distance() -> None:
    """A suspect gets a primary immediately, then one after each interval; a longer one counts from the last primary."""
    waits = StallDetector()
    assert [waits.take_probe(now_s, 5.0) for now_s in (10.0, 10.1, 14.9, 15.0, 15.1, 30.0)] == [
        True,
        False,
        False,
        True,
        False,
        True,
    ]
    assert not waits.take_probe(49.9, 20.0)
    assert waits.take_probe(50.0, 20.0)


def test_overdue_is_the_most_overdue() -> None:
    """overdue_s is the age beyond the prediction of the most overdue attempt; 0 without an overdue attempt."""
    waits = StallDetector()
    assert waits.overdue_s(5.0) == 0.0
    waits.sent(0, 10.0, 0.0)
    waits.sent(1, 1.0, 2.0)
    assert waits.overdue_s(2.5) == 0.0
    assert waits.overdue_s(5.0) == pytest.approx(2.0)


operations = st.lists(
    st.tuples(st.sampled_from(["sent", "content", "given up", "failed"]), st.integers(0, 9), st.floats(0.0, 3.0)),
    max_size=60,
)


@given(operations)
def test_it_is_the_rule_as_written(steps: list[tuple[str, int, float]]) -> None:
    """For any history: suspect if and only if three attempts became late after the last first content.

    An attempt that ended with an error, or was sent before an answered one, does not count.
    """
    waits = StallDetector()
    now_s, answered_s = 0.0, -math.inf
    late_at: dict[int, float] = {}  # of attempts still waiting, in the order of their sending
    sent_at: dict[int, float] = {}
    given_up: list[float] = []
    for what, attempt, gap_s in steps:
        now_s += gap_s
        if what == "sent" and attempt not in late_at and len(late_at) < 8:
            waits.sent(attempt, 0.2 * attempt, now_s)
            late_at[attempt], sent_at[attempt] = now_s + max(1.0, 0.6 * attempt), now_s
        elif what == "content" and attempt in late_at:
            waits.first_content(attempt, now_s)
            late_at = {each: at_s for each, at_s in late_at.items() if sent_at[each] >= sent_at[attempt]}
            del late_at[attempt]
            answered_s = now_s
        elif what == "given up" and attempt in late_at:
            waits.given_up(attempt, now_s)
            at_s = late_at.pop(attempt)
            given_up += [at_s] if at_s <= now_s else []
        elif what == "failed" and attempt in late_at:
            waits.failed(attempt)
            del late_at[attempt]
        late = sum(answered_s < at_s <= now_s for at_s in [*late_at.values(), *given_up])
        assert waits.is_suspect(now_s) is (late >= 3)
