"""One bucket with responses that are late, out of order, old, incomplete, or that include other clients' usage."""

import math
import random

import pytest

from ttft_gateway.apis.base import RateLimit, Resource
from ttft_gateway.limits.bucket import Bucket, Limit, Spend
from ttft_gateway.limits.ledger import Ledger, QuotaTicket

LIMIT = 600.0


def bucket(remaining: float, reset_s: float | None = None, waited_s: float = 0.0, sent_since: float = 0.0) -> Bucket:
    """A limit on requests, first observed at time 0."""
    fresh = Bucket(Limit(Resource.REQUESTS, LIMIT), is_observed=True)
    fresh.observe(stated(remaining, reset_s), 1, waited_s, sent_since, 0.0)
    return fresh


def stated(remaining: float | None, reset_s: float | None = None) -> RateLimit:
    """The limit in a response."""
    return RateLimit(Resource.REQUESTS, 60.0, LIMIT, remaining, reset_s)


def test_less_than_we_thought_is_believed_at_once() -> None:
    """If other clients use the quota, the provider's count replaces ours."""
    known = bucket(500.0)
    known.observe(stated(100.0), 2, 0.0, 0.0, 1.0)
    assert known.left(1.0) == 100.0


def test_usage_by_others_is_what_responses_show_beyond_our_count() -> None:
    """In seconds of the refill: 10 requests a second are 600 a minute, of which our own requests are no part."""
    known = bucket(500.0)
    assert known.state(0.0).others_s == 0.0
    known.take(20.0, 0.0)
    known.observe(stated(390.0), 2, 0.0, 0.0, 1.0)  # 500 - 20 + 10 without others
    assert known.state(1.0).others_s == pytest.approx(10.0)
    known.observe(stated(400.0), 3, 0.0, 0.0, 2.0)
    assert known.state(2.0).others_s == pytest.approx(10.0)
    known.drain(2.0)  # a 429, although there should be 400 left
    assert known.state(2.0).others_s == pytest.approx(50.0)


def test_our_own_429_is_no_usage_by_others() -> None:
    """At 1.25 times the limit a fifth of the requests is rejected and costs nothing; no other client uses the quota."""
    ledger, provider_left = Ledger(), 0.0
    for number in range(1500):
        now_s = 0.08 * number
        provider_left += 0.8
        ticket = ledger.reserve(Spend(0, 0), now_s)
        accepted = provider_left >= 1
        provider_left -= float(accepted)
        ledger.observe(ticket, [stated(provider_left)], now_s)
        if accepted:
            ledger.settle(ticket, Spend(0, 0), now_s)
        else:
            ledger.release(ticket, now_s)
    [limit] = ledger.state(120.0)
    assert limit.others_s == pytest.approx(0.0, abs=10.0)


def test_more_than_we_thought_is_believed_in_a_quarter_of_the_window() -> None:
    """A higher reading may be old: it is adopted over 15 s of responses, and immediately after a long silence."""
    known = bucket(0.0)
    known.observe(stated(500.0), 2, 0.0, 0.0, 1.5)
    assert known.left(1.5) == pytest.approx(15.0 + (500.0 - 15.0) / 10)
    other = bucket(0.0)
    other.observe(stated(500.0), 2, 0.0, 0.0, 15.0)
    assert other.left(15.0) == 500.0


def test_what_is_under_way_is_not_in_an_answer_yet() -> None:
    """Requests sent after the answered one are taken from what it states, less what has refilled since."""
    assert bucket(500.0, waited_s=2.0, sent_since=50.0).left(0.0) == 500.0 - (50.0 - 20.0)


def test_refill_while_an_answer_was_on_its_way_is_not_counted_twice() -> None:
    """An answer may have been written at its end: waiting alone adds nothing."""
    assert bucket(500.0, waited_s=20.0).left(0.0) == 500.0


def test_a_response_to_an_earlier_request_is_ignored() -> None:
    """Answers that come out of order do not bring old figures back."""
    known = bucket(300.0)
    known.observe(stated(200.0), 5, 0.0, 0.0, 1.0)
    known.observe(stated(100.0), 4, 1.0, 0.0, 1.0)
    assert known.left(1.0) == 200.0


@pytest.mark.parametrize(
    ("reset_s", "after_10_s", "after_40_s"),
    [
        (20.0, 350.0, 600.0),  # half of what was missing, then all of it
        (50.0, 200.0, 500.0),
        (0.001, 200.0, 500.0),  # no more than all of it in a second, and at the usual pace from the reset on
        (None, 200.0, 500.0),
        (0.0, 200.0, 500.0),
        (-1.0, 200.0, 500.0),
        (math.nan, 200.0, 500.0),
    ],
)
def test_it_refills_until_its_reset(reset_s: float | None, after_10_s: float, after_40_s: float) -> None:
    """It is full again at the reset if that is known, else it refills over its window."""
    known = bucket(100.0, reset_s)
    assert known.left(10.0) == pytest.approx(after_10_s, abs=1.0)
    assert known.left(40.0) == pytest.approx(after_40_s, abs=1.0)


@pytest.mark.parametrize("reset_s", [None, 4.0, 20.0, 200.0])
def test_the_wait_it_states_is_the_time_it_takes(reset_s: float | None) -> None:
    """After wait_s there is exactly as much as was asked for."""
    for cost in (50.0, 150.0, 590.0, 1_000.0):
        known = bucket(100.0, reset_s)
        wait_s = known.wait_s(cost, 0.0)
        assert (wait_s > 0) == (cost > 100.0)
        assert wait_s == 0 or known.left(0.99 * wait_s) < cost
        assert known.left(wait_s) >= min(cost, LIMIT) - 1e-6


def test_a_limit_that_shrinks_takes_what_is_left_with_it() -> None:
    """Adaptive limits: the new one counts from its first answer on."""
    known = bucket(600.0)
    known.stated = 200.0
    known.observe(RateLimit(Resource.REQUESTS, 60.0, 200.0, 150.0), 2, 0.0, 0.0, 1.0)
    assert known.amount == 200.0
    assert known.left(1.0) == 150.0


@pytest.mark.parametrize("others", [0.0, 0.5])
@pytest.mark.parametrize("error", [0.8, 1.0, 1.3])  # our estimates of tokens against what the provider counts
@pytest.mark.parametrize("lag_s", [0.0, 5.0])
def test_the_mirror_does_not_drift(others: float, error: float, lag_s: float) -> None:
    """After 10 minutes at 90 % of a quota, the mirror's mean error is within 15 % of the limit.

    For any usage by other clients, any error of our own counting, and also with old readings in responses; it errs more
    on the careful side than on the other.
    """
    rng = random.Random(7)
    limit, now_s, errors = 60_000.0, 0.0, []
    ledger, truth, history = Ledger(), limit, [(0.0, limit)]
    open_tickets: list[tuple[float, float, QuotaTicket, int]] = []
    rate = 0.9 * limit / 60.0 / 500
    while now_s < 600.0:
        gap_s = rng.expovariate(rate)
        now_s += gap_s
        truth = min(limit, truth + gap_s * limit / 60.0)
        size = rng.randrange(100, 900)
        truth = max(0.0, truth - size)
        history.append((now_s, truth))
        while open_tickets and open_tickets[0][0] <= now_s:
            at_s, remaining, ticket, used = open_tickets.pop(0)
            ledger.observe(ticket, [RateLimit(Resource.TOKENS, 60.0, limit, remaining)], at_s)
            ledger.settle(ticket, Spend(used, 0), at_s)
        if rng.random() >= others:
            ticket = ledger.reserve(Spend(round(size * error), 0), now_s)
            seen = next(left for at_s, left in reversed(history) if at_s <= max(0.0, now_s - lag_s))
            open_tickets.append((now_s + rng.uniform(0.2, 2.0), seen, ticket, round(size * error)))
            open_tickets.sort(key=lambda item: item[0])
        state = ledger.state(now_s)
        if now_s > 60.0 and state:
            errors.append((state[0].left - truth) / limit)
    assert -0.15 <= sum(errors) / len(errors) <= 0.05
    assert sum(error > 0.1 for error in errors) <= 0.05 * len(errors)
