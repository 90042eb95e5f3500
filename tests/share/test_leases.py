"""Leased limits: the unspent amounts, the asks, and what is used while the engine is away."""

import math

import pytest

from gateway.share.fleet import ASK_WAIT_S, WhenAway
from gateway.share.hub import ShareHub
from gateway.share.leases import LeasedBucket
from gateway.share.low_limits import LowLimits
from gateway.share.messages import BucketAnswer, BucketAsk
from lease_table import Table
from ttft_gateway.apis.base import Resource
from ttft_gateway.limits.bucket import Bucket, Limit, Spend
from ttft_gateway.limits.rates import Slots
from used_limit import Used


def test_the_first_request_asks_and_later_ones_have_it_in_unspent() -> None:
    """While the first ask is under way, its wait is the sign for that; then the requests of a second are leased."""
    table = Table()
    rate = table.rate(600)
    assert rate.wait_s(1, 100.0) == ASK_WAIT_S
    assert rate.is_asking
    table.answer()
    assert (rate.wait_s(1, 100.0), rate.is_asking) == (0, False)
    rate.take(1, 100.0)
    table.answer()
    for _ in range(20):
        table.now_s += 0.1
        assert rate.wait_s(1, table.now_s) == 0
        rate.take(1, table.now_s)
        table.answer()
    assert len(table.asks) < 12


def test_only_the_engine_refuses() -> None:
    """It states the wait; within 50 ms it is not asked again."""
    table = Table()
    rate = table.rate()
    assert table.spend(rate, 100) == 60
    asks = len(table.asks)
    assert rate.wait_s(1, table.now_s) == pytest.approx(1.0)
    assert not rate.is_asking
    table.now_s += 0.04
    assert rate.wait_s(1, table.now_s) == pytest.approx(0.96)
    assert len(table.asks) == asks
    table.now_s += 0.02
    assert rate.wait_s(1, table.now_s) == ASK_WAIT_S
    table.now_s += 1.0
    table.answer()
    assert rate.wait_s(1, table.now_s) == 0


def test_a_request_gets_what_it_needs_whatever_the_hand_usually_holds() -> None:
    """A prompt of 30,000 tokens is a lease of its own; one above the limit waits for all of it."""
    table = Table()
    rate = table.rate(60_000)
    assert table.spend(rate, 1, 500.0) == 1
    assert table.spend(rate, 1, 30_000.0) == 1
    assert rate.wait_s(90_000.0, table.now_s) == ASK_WAIT_S
    table.answer()
    assert rate.wait_s(90_000.0, table.now_s) == pytest.approx(30_500.0 / 1_000, rel=0.05)


def test_a_fleet_that_is_large_for_the_limit_holds_nothing_in_unspent() -> None:
    """100 processes of 600 a minute ask for each request; 10 of 60,000 do not."""
    for processes, limit, is_each in ((100, 600, True), (10, 60_000, False)):
        table = Table(processes=processes)
        assert table.spend(table.rate(limit), 20) == 20
        assert (len(table.asks) >= 20) is is_each


def test_all_processes_together_hold_one_percent_ahead() -> None:
    """So that no other one is refused much that is there, however many requests this process had before."""
    table = Table(processes=4)
    rate = table.rate(6_000)
    table.spend(rate, 1_000)
    assert rate.unspent <= 0.01 * 6_000 / 4


def test_what_waits_is_asked_for_together() -> None:
    """One round trip is enough for a burst."""
    table = Table(processes=4)
    rate = table.rate(600)
    table.spend(rate, 1)
    assert rate.wait_s(1, table.now_s) == 0
    rate.take(1, table.now_s)
    table.answer()
    assert rate.wait_s(100, table.now_s, 3) == ASK_WAIT_S
    table.answer()
    assert rate.unspent > 100


def test_tokens_that_were_reserved_in_vain_are_given_back_at_once() -> None:
    """Other processes may lack them."""
    table = Table(processes=4)
    rate = table.rate(60_000)
    assert table.spend(rate, 4, 10_000.0) == 4
    rate.take(-36_000.0, table.now_s)
    assert rate.unspent >= 36_000
    table.leases.tick(table.now_s)
    table.answer()
    assert (rate.unspent, table.last_left) == (0, 56_000)


def test_more_than_was_reserved_is_a_debt_that_the_next_ask_settles() -> None:
    """And what was reserved too much is unspent again."""
    table = Table()
    rate = table.rate(60_000)
    table.spend(rate, 1, 500.0)
    rate.take(2_000.0, table.now_s)
    table.answer()
    assert table.last.beyond > 0
    assert rate.left(table.now_s) == pytest.approx(60_000 - 2_500)
    rate.take(-300.0, table.now_s)
    assert rate.left(table.now_s) == pytest.approx(60_000 - 2_200)


def test_a_lost_ask_puts_its_debt_back_once() -> None:
    """However often it is lost, the debt does not grow."""
    table = Table()
    rate = table.rate(60)
    table.spend(rate, 1)
    rate.take(10, table.now_s)
    for _ in range(5):
        table.lose()
        rate.tick(table.now_s)
    table.answer()
    assert rate.left(table.now_s) == pytest.approx(60 - 11)


def test_an_unused_hand_is_given_back_after_two_seconds() -> None:
    """Then the engine has all, and the lease is not in use."""
    table = Table()
    rate = table.rate(600)
    table.spend(rate, 20)
    table.now_s += 1.9
    table.leases.tick(table.now_s)
    assert not table.wanting
    table.now_s += 60.2
    table.leases.tick(table.now_s)
    table.answer()
    assert table.last.beyond < 0
    assert rate.left(table.now_s) == 600
    table.leases.tick(table.now_s)
    assert table.leases.held == {}


def test_the_rest_of_the_fleet_is_in_what_is_left() -> None:
    """Headers and headroom state the fleet's rest, which grows until the next answer."""
    table = Table()
    rate = table.rate()
    table.spend(rate, 1)
    table.others_take(30)
    table.now_s += 0.1
    table.spend(rate, 5)
    left = rate.left(table.now_s)
    assert 20 < left < 30
    assert rate.left(table.now_s + 3) == pytest.approx(left + 3)
    assert rate.left(table.now_s + 300) == 60
    assert rate.reset_s(table.now_s) == pytest.approx(60 - left)


def test_a_rejection_by_the_provider_empties_the_bucket_of_the_fleet() -> None:
    """The other processes learn it with their next ask."""
    table = Table()
    bucket = LeasedBucket(table.leases, "k", Limit(Resource.TOKENS, 60.0, enforce=True))
    assert bucket.cost(Spend(10, 5)) == 15
    bucket.drain(table.now_s)
    assert bucket.left(table.now_s) == 0
    table.answer()
    [answer] = table.hub.answer(table.now_s, "b", [BucketAsk("k", 60, 60)]).answers
    assert isinstance(answer, BucketAnswer)
    assert answer.left == 0
    state = bucket.state(table.now_s)
    assert (state.left, state.enforce, state.observed, state.age_s) == (0, True, False, None)


def test_an_enforced_quota_keeps_a_margin() -> None:
    """The fleet uses 1 % less of it immediately, and as much each second; its state has the configured limit."""
    table = Table()
    bucket = LeasedBucket(table.leases, "k", Limit(Resource.TOKENS, 600.0, enforce=True))
    assert bucket.left(table.now_s) == 594
    assert bucket.wait_s(594, table.now_s) == ASK_WAIT_S
    table.answer()
    bucket.take(594, table.now_s)
    table.now_s += 10
    assert bucket.left(table.now_s) == pytest.approx(100)
    assert (bucket.state(table.now_s).limit, bucket.state(table.now_s).window_s) == (600, 60)


def test_a_lower_limit_of_another_head_is_reported() -> None:
    """Until no process has it any more."""
    table = Table()
    table.hub.answer(table.now_s, "other", [BucketAsk("k", 30, 60)])
    rate = table.rate()
    assert table.spend(rate, 60) == 30
    assert table.leases.mismatches == {"k": (60, 30)}
    table.now_s += 6.0
    table.spend(rate, 1)
    assert table.leases.mismatches == {}


def test_alone_a_head_uses_its_hand_and_its_part() -> None:
    """Of four processes, each has 0.9 / 4 of what was left and of the refill, and no request waits for the engine."""
    table = Table(processes=4)
    rate = table.rate(600)
    table.spend(rate, 1)
    before, left = rate.left(table.now_s), table.asks
    table.others_take(0)
    table.leave()
    share = rate.left(table.now_s)
    assert share == pytest.approx(0.225 * 600, rel=0.02)
    assert (table.spend(rate, 1_000), before, bool(left)) == (int(share), before, True)
    wait_s = rate.wait_s(1, table.now_s)
    assert wait_s == pytest.approx((1 - share % 1) / 2.25, rel=0.01)
    table.now_s += wait_s
    assert table.spend(rate, 5) == 1
    assert not table.wanting


def test_after_a_late_reply_little_is_used_until_the_engine_is_away() -> None:
    """The other processes may still lease all that is left, but not more than half of the limit meanwhile."""
    for taken, least, all_left in ((300, 0.5 * 0.45 * 10, 0.45 * 300), (100, 0.45 * 200, 0.45 * 500)):
        table = Table(processes=2)
        rate = table.rate(600)
        table.others_take(taken, 600)
        table.spend(rate, 1)
        unspent = rate.unspent
        table.fleet.leave(table.now_s)
        assert table.spend(rate, 600) == pytest.approx(unspent + least, abs=2)
        table.fleet.is_away = True
        assert table.spend(rate, 600) == pytest.approx(all_left - least, abs=4)


def test_two_answers_at_nearly_the_same_time_show_no_fall() -> None:
    """What a request took is not extended to a thousand a second until the outage."""
    table = Table(processes=2)
    rate = table.rate(600)
    table.spend(rate, 1)
    table.now_s += 0.001
    table.spend(rate, 3)
    table.now_s += 1.5
    table.leave()
    assert rate.left(table.now_s) == pytest.approx(0.45 * 590, rel=0.03)


@pytest.mark.parametrize(
    ("age_s", "taken", "used", "admitted"),
    [
        (1, 0, 1.0, 0.45 * 600),  # the last answer counts
        (70, 0, 0.0, 0.45 * 15 / 16 * 600),
        (20, 450, 0.0, 0.45 * (150 + 50 + 200)),
        (20, 0, 0.5, 0.45 * 3 / 8 * 600),
        (20, 0, 1.0, 1),
        (70, 0, None, 1),
    ],
)
def test_alone_after_an_old_answer_reports_count(
    age_s: float, taken: float, used: float | None, admitted: float
) -> None:
    """What others may have used since is in their reports; one usual request is always admitted."""
    table = Table(processes=2)
    rate = table.rate(600)
    table.spend(rate, 1)
    table.others_take(taken, 594)
    table.now_s += 5.0
    table.leases.tick(table.now_s)  # gives back what is not used
    table.answer()
    table.now_s += age_s
    if used is not None:
        report(table, 1 - used)
    table.leave()
    assert rate.left(table.now_s) == pytest.approx(admitted, rel=0.03)


def test_alone_a_limit_without_an_answer_has_its_part_by_reports_only() -> None:
    """Without reports it is filled, as if it had been used up."""
    for is_known, admitted in ((True, 0.45 * 3 / 8 * 600), (False, 0.0)):
        table = Table(processes=2)
        rate = table.rate(600)
        if is_known:
            report(table, 0.5)
        table.leave()
        assert rate.left(table.now_s) == pytest.approx(admitted)


def report(table: Table, left: float) -> None:
    """Let another process report what is left of the limit."""
    other = LowLimits()
    other.note(Used("k", left))
    table.exchange(other, "other")
    table.exchange()


def test_alone_a_request_larger_than_the_part_is_saved_up_for() -> None:
    """A thousand processes of 60 a minute: each has one request in 18 minutes, none has to wait for ever."""
    table = Table(processes=1_000)
    table.fleet.alone_since_s, table.fleet.is_alone = table.now_s, True
    rate = table.rate()
    assert rate.wait_s(1, table.now_s) == pytest.approx(60)
    table.now_s += 60
    assert table.spend(rate, 5) == 1
    assert rate.wait_s(1, table.now_s) == pytest.approx(60 / 0.054, rel=0.01)


@pytest.mark.parametrize("is_known", [True, False])
def test_what_is_read_before_the_first_reply_empties_no_limit(*, is_known: bool) -> None:
    """Metrics and refused requests of a gateway that starts leave the engine's count as it is."""
    table = Table(processes=2)
    if is_known:
        table.others_take(1)
    table.now_s += 1.0
    table.fleet.alone_since_s, table.fleet.is_alone = table.now_s, True
    rate = table.rate()
    assert rate.left(table.now_s) == 0
    assert rate.wait_s(1, table.now_s) > 0
    table.fleet.is_alone = False
    assert table.spend(rate, 100) == 60


@pytest.mark.parametrize(
    ("when_away", "admitted", "refused"),
    [(WhenAway.SHARE, 13, False), (WhenAway.ALONE, 59, False), (WhenAway.REFUSE, 2, True)],
)
def test_when_away(when_away: WhenAway, admitted: int, refused: bool) -> None:
    """A part of what was left, all of it, or the unspent amount."""
    table = Table(when_away, processes=4)
    rate = table.rate()
    table.fleet.processes = 1
    table.spend(rate, 1)
    table.fleet.processes = 4
    table.leave()
    assert table.spend(rate, 100) == pytest.approx(admitted, abs=1)
    assert rate.is_refused is refused
    assert rate.wait_s(1, table.now_s) > 0


def test_what_was_spent_alone_is_settled_with_the_same_engine() -> None:
    """A hung engine has its data: it gets the debt."""
    table = Table(processes=2)
    rate = table.rate(600)
    table.spend(rate, 1)
    table.leave()
    spent = 1 + table.spend(rate, 100)
    assert spent == 101
    table.fleet.is_alone = False
    table.leases.tick(table.now_s)
    table.answer()
    assert rate.left(table.now_s) == pytest.approx(600 - spent)


@pytest.mark.parametrize("is_new", [False, True], ids=["same", "new"])
def test_what_was_spent_alone_counts_once_if_the_answer_is_lost(*, is_new: bool) -> None:
    """The engine has executed the ask; what is spent in another time alone counts, too."""
    table = Table(processes=2)
    rate = table.rate(600)
    table.spend(rate, 1)
    spent = 1
    if is_new:
        table.hub = ShareHub()
    for number in (100, 10):
        table.leave()
        spent += table.spend(rate, number)
        table.fleet.is_alone = False
        table.leases.tick(table.now_s)
        for requester in table.take_asks():
            table.hub.answer(table.now_s, "me", [table.asks[-1]])
            requester.lost(table.now_s)
        assert rate.owed > 0
    for _ in range(2):
        table.leases.tick(table.now_s)
        table.answer()
    assert spent == 111
    assert rate.left(table.now_s) == pytest.approx(600 - spent, abs=3 * 0.01 * 600)
    assert rate.owed == 0


def test_what_was_spent_alone_counts_once_with_a_new_engine() -> None:
    """It goes on from what was left before."""
    table = Table(processes=2)
    rate = table.rate(600)
    table.spend(rate, 1)
    table.leave()
    spent = 1 + table.spend(rate, 100)
    table.hub = ShareHub()
    table.now_s += 1.0
    table.fleet.is_alone = False
    table.leases.tick(table.now_s)
    table.answer()
    assert rate.left(table.now_s) == pytest.approx(600 - spent + 10)
    assert rate.owed == 0


def test_what_is_owed_is_seen() -> None:
    """While the engine is away, and after its return while the fleet is in debt."""
    table = Table(processes=1)
    rate = table.rate(600)
    table.spend(rate, 1)
    table.leave()
    table.spend(rate, 500)
    assert rate.owed == pytest.approx(500, abs=7)
    assert rate.unspent == -rate.owed
    table.fleet.is_alone = False
    table.leases.tick(table.now_s)
    assert table.take_asks()
    assert rate.owed == pytest.approx(500, abs=7)
    rate.lost(table.now_s)
    table.others_take(400)
    table.leases.tick(table.now_s)
    table.answer()
    assert rate.owed == -table.last_left > 0


def test_a_short_time_alone_gives_its_part_once() -> None:
    """Until the next answer, what was left is not divided again."""
    table = Table(processes=2)
    rate = table.rate(600)
    table.spend(rate, 1)
    admitted = 0
    for _ in range(5):
        table.leave()
        admitted += table.spend(rate, 1_000)
        table.fleet.is_alone = False
    assert admitted <= 0.46 * 600 + 10


def test_what_needs_no_lease_has_none() -> None:
    """A key without a concurrency limit, and a quota that only advises."""
    leases = Table().leases
    assert type(leases.slots("key:k", math.inf)) is Slots
    assert isinstance(leases.bucket("q", Limit(Resource.TOKENS, 60.0)), Bucket)
    assert isinstance(leases.bucket("q", Limit(Resource.TOKENS, 60.0, enforce=True)), LeasedBucket)
