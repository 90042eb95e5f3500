"""The ledger: tickets that add up, hedges that keep room for primaries, and unknown limits that block nothing."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.apis.base import RateLimit, Resource
from ttft_gateway.limits.bucket import Limit, Spend
from ttft_gateway.limits.ledger import Ledger, QuotaTicket, Totals

RPM = Limit(Resource.REQUESTS, 600.0)
TPM = Limit(Resource.TOKENS, 60_000.0)
DAY_S = 86_400.0


def tokens(count: int) -> Spend:
    """A request with a prompt of this many tokens and no answer."""
    return Spend(count, 0)


def left(ledger: Ledger, now_s: float) -> list[float]:
    """Remaining amount of each bucket."""
    return [bucket.left for bucket in ledger.state(now_s)]


def stated(
    remaining: float | None,
    limit: float | None = 60_000.0,
    resource: Resource = Resource.TOKENS,
    reset_s: float | None = None,
    window_s: float = 60.0,
) -> list[RateLimit]:
    """One limit in a response."""
    return [RateLimit(resource, window_s, limit, remaining, reset_s)]


def answered(ledger: Ledger, limits: list[RateLimit], now_s: float, *, count: int = 0) -> QuotaTicket:
    """A request of so many tokens is sent and answered immediately; its answer states limits."""
    ticket = ledger.reserve(tokens(count), now_s)
    ledger.observe(ticket, limits, now_s)
    return ticket


def test_unknown_limits_block_nothing() -> None:
    """Without limits there is room for everything, and all of it is left."""
    ledger = Ledger()
    ledger.settle(ledger.reserve(tokens(10**9), 0.0), tokens(10**9), 0.0)
    assert ledger.room_for_hedge(tokens(10**9), 0.0)
    assert ledger.headroom(0.0) == 1.0
    assert ledger.wait_s(tokens(10**9), 0.0) == 0
    assert ledger.cooling_s(0.0) == 0.0
    assert ledger.state(0.0) == []


def _cooled_here(ledger: Ledger) -> None:
    ledger.rate_limited(ledger.reserve(tokens(10), 0.0), 0.0, 5.0)


def _cooled_elsewhere(ledger: Ledger) -> None:
    ledger.limited_elsewhere(5.0, 0.0)


def _reloaded(ledger: Ledger) -> None:
    _cooled_here(ledger)
    ledger.end_cool_down()


def _learned(ledger: Ledger) -> None:
    answered(ledger, stated(40_000.0), 0.0)
    _reloaded(ledger)


def _learned_nothing(ledger: Ledger) -> None:
    answered(ledger, stated(40_000.0, None), 0.0)
    ledger.spent_elsewhere(tokens(10), 0.0, 0.0)


@pytest.mark.parametrize(
    ("limits", "happens", "until_s"),
    [
        ([], None, -math.inf),
        ([TPM], None, math.inf),
        ([], _learned, math.inf),
        ([], _learned_nothing, -math.inf),
        ([], _cooled_here, 5.0),
        ([], _cooled_elsewhere, 5.0),
        ([], _reloaded, -math.inf),
        ([TPM], _reloaded, math.inf),
    ],
)
def test_only_a_known_limit_or_a_cool_down_restricts(
    limits: list[Limit], happens: Callable[[Ledger], None] | None, until_s: float
) -> None:
    """After that time nothing waits and all of the quota is left; a limit restricts from the event that states it."""
    ledger = Ledger(limits)
    if happens is not None:
        happens(ledger)
    assert ledger.restricts_until_s == until_s
    if until_s < math.inf:
        assert (ledger.wait_s(tokens(10**9), 5.0), ledger.headroom(5.0)) == (0.0, 1.0)


def test_a_limit_that_is_learned_late_counts_the_requests_under_way() -> None:
    """A reservation before the first limit is settled against it; one that ended before has no effect on it."""
    ledger = Ledger()
    ended, under_way = ledger.reserve(tokens(100), 0.0), ledger.reserve(tokens(1_000), 0.0)
    ledger.settle(ended, tokens(70), 0.0)
    ledger.observe(ended, stated(40_000.0), 0.0)
    assert left(ledger, 0.0) == [39_000.0]
    ledger.settle(under_way, tokens(400), 0.0)
    assert left(ledger, 0.0) == [39_600.0]
    assert ledger.totals == Totals(reserved=1_100, settled=470, released=630)


def test_a_request_takes_one_and_its_tokens_and_both_refill() -> None:
    """Buckets refill continuously over their window and never above their limit."""
    ledger = Ledger([RPM, TPM])
    ledger.reserve(Spend(5_000, 1_000), 0.0)
    assert left(ledger, 0.0) == [599.0, 54_000.0]
    assert left(ledger, 3.0) == [600.0, 57_000.0]
    assert left(ledger, 60.0) == [600.0, 60_000.0]
    assert ledger.headroom(60.0) == 1.0


def test_prompt_and_answer_can_be_counted_apart() -> None:
    """A limit on prompt tokens takes the prompt, one on answer tokens the answer."""
    ledger = Ledger([Limit(Resource.PROMPT_TOKENS, 1_000.0), Limit(Resource.ANSWER_TOKENS, 1_000.0)])
    ledger.settle(ledger.reserve(Spend(300, 200), 0.0), Spend(300, 50), 0.0)
    assert left(ledger, 0.0) == [700.0, 950.0]


def test_settling_corrects_the_reservation() -> None:
    """Unused tokens are given back, additional ones are taken; the request stays counted."""
    ledger = Ledger([RPM, TPM])
    less, more = ledger.reserve(tokens(6_000), 0.0), ledger.reserve(tokens(6_000), 0.0)
    ledger.settle(less, tokens(1_000), 0.0)
    assert left(ledger, 0.0) == [598.0, 53_000.0]
    ledger.settle(more, tokens(10_000), 0.0)
    assert left(ledger, 0.0) == [598.0, 49_000.0]
    assert ledger.totals == Totals(16_000, 11_000, 5_000)


def test_a_released_request_was_never_there() -> None:
    """A release gives back the request and its tokens."""
    ledger = Ledger([RPM, TPM])
    ledger.release(ledger.reserve(tokens(6_000), 0.0), 0.0)
    assert left(ledger, 0.0) == [600.0, 60_000.0]
    assert ledger.totals == Totals(6_000, 0, 6_000)


operations = st.lists(
    st.tuples(st.sampled_from(["reserve", "settle", "release"]), st.integers(0, 20), st.integers(0, 100)), max_size=60
)


@given(operations)
def test_reserved_is_settled_plus_released(steps: list[tuple[str, int, int]]) -> None:
    """In any order, closed twice or not: totals add up to the token, and buckets miss what is under way or settled."""
    ledger = Ledger([Limit(Resource.REQUESTS, 1e6), Limit(Resource.TOKENS, 1e6)])
    tickets: list[QuotaTicket] = []
    used: dict[int, tuple[float, float]] = {}
    for what, index, count in steps:
        if what == "reserve":
            used[len(tickets)] = (1.0, count)
            tickets.append(ledger.reserve(tokens(count), 0.0))
        elif index < len(tickets):
            if tickets[index].is_open:
                used[index] = (1.0, count) if what == "settle" else (0.0, 0.0)
            if what == "settle":
                ledger.settle(tickets[index], tokens(count), 0.0)
            else:
                ledger.release(tickets[index], 0.0)
        requests, spent = (math.fsum(values) for values in zip((0.0, 0.0), *used.values(), strict=True))
        assert left(ledger, 0.0) == [1e6 - requests, 1e6 - spent]
        assert ledger.totals.under_way == sum(ticket.spend.tokens for ticket in tickets if ticket.is_open)
    for ticket in tickets:
        ledger.release(ticket, 0.0)
    totals = ledger.totals
    assert totals.reserved == totals.settled + totals.released


@pytest.mark.parametrize(
    ("limit", "taken", "count", "has_room"),
    [
        (TPM, 0, 24_000, True),  # exactly 60 % are left
        (TPM, 0, 24_001, False),
        (TPM, 20_000, 4_000, True),
        (TPM, 20_000, 4_001, False),
        (Limit(Resource.TOKENS, 60_000.0, 8.0), 0, 24_001, False),
        (Limit(Resource.TOKENS, 60_000.0, DAY_S), 0, 54_000, True),  # of a day's quota 10 % are enough
        (Limit(Resource.TOKENS, 60_000.0, DAY_S), 0, 54_001, False),
        (Limit(Resource.REQUESTS, 2.0), 0, 0, False),
        (Limit(Resource.REQUESTS, 3.0), 0, 0, True),
    ],
)
def test_a_hedge_leaves_room_for_primaries(limit: Limit, taken: int, count: int, *, has_room: bool) -> None:
    """60 % of each bucket with a window up to a minute, and 10 % of longer ones, are withheld from hedges."""
    ledger = Ledger([limit])
    if taken:
        ledger.reserve(tokens(taken), 0.0)
    assert ledger.room_for_hedge(tokens(count), 0.0) is has_room


def test_every_bucket_must_have_room() -> None:
    """One full bucket is enough to deny."""
    ledger = Ledger([RPM, TPM])
    assert ledger.room_for_hedge(tokens(1_000), 0.0)
    assert not ledger.room_for_hedge(tokens(30_000), 0.0)


def test_a_retry_after_is_over_when_its_time_is() -> None:
    """A Retry-After cools down; after it the limit in the response counts again, for primaries and hedges."""
    ledger = Ledger()
    answered(ledger, stated(30_000.0), 0.0)
    ledger.rate_limited(ledger.reserve(tokens(0), 0.0), 0.0, retry_after_s=2.0)
    assert ledger.cooling_s(0.5) == pytest.approx(1.5)
    assert ledger.wait_s(tokens(1), 1.9) > 0
    assert ledger.wait_s(tokens(1), 1.5) == 0.5
    assert not ledger.room_for_hedge(tokens(1), 1.9)
    assert ledger.wait_s(tokens(1), 2.0) == 0
    assert ledger.room_for_hedge(tokens(3_000), 60.0)
    assert not ledger.room_for_hedge(tokens(3_001), 60.0)  # one response shows no usage


def test_the_quota_that_primaries_do_not_need_is_there_for_hedges() -> None:
    """Of 150 million tokens few are used: 10 s after a 429 a hedge has room again; with 5 % left it has none."""
    ledger, full = Ledger(), 150e6
    for second in range(120):
        answered(ledger, stated(full, full), float(second), count=1_200)
    refused = answered(ledger, stated(0.0, full, reset_s=360.0), 120.0, count=1_200)
    ledger.rate_limited(refused, 120.0, retry_after_s=2.0)
    assert not ledger.room_for_hedge(tokens(1_200), 121.0)
    for second in range(122, 131):
        answered(ledger, stated(full, full), float(second), count=1_200)
    assert ledger.room_for_hedge(tokens(1_200), 130.0)
    answered(ledger, stated(0.05 * full, full, reset_s=57.0), 131.0, count=1_200)
    assert not ledger.room_for_hedge(tokens(1_200), 131.0)


@pytest.mark.parametrize(("share", "has_room"), [(0.2, True), (0.9, True), (1.05, False)])
def test_a_limit_that_primaries_use_up_is_theirs(share: float, *, has_room: bool) -> None:
    """If this gateway and others use 1.05 of the refill, a nearly full bucket has no room: it would be missed later."""
    ledger, limit, left = Ledger(), 60_000.0, 60_000.0
    for second in range(240):
        left = min(limit, left + 1_000.0 - share * 1_000.0)
        answered(ledger, stated(left, limit), float(second), count=int(share * 500))
        ledger.room_for_hedge(tokens(100), float(second))
    assert left >= 48_000.0
    assert ledger.room_for_hedge(tokens(100), 240.0) is has_room


@pytest.mark.parametrize(("share_of_hedges", "has_room"), [(0.3, True), (0.0, False)])
def test_hedges_are_no_need_of_primaries(share_of_hedges: float, *, has_room: bool) -> None:
    """A bucket at 80 % of which all of the refill is used has room if part of the usage is hedges, which may end."""
    ledger, limit = Ledger(), 60_000.0
    for second in range(240):
        for share, is_hedge in ((1.1 - share_of_hedges, False), (share_of_hedges, True)):
            ticket = ledger.reserve(tokens(int(share * 1_000)), float(second), is_hedge=is_hedge)
            ledger.settle(ticket, ticket.spend, float(second))
            ledger.observe(ticket, stated(0.8 * limit, limit), float(second))
        ledger.room_for_hedge(tokens(100), float(second))
    assert ledger.room_for_hedge(tokens(100), 240.0) is has_room


@pytest.mark.parametrize(("left_share", "has_room"), [(0.97, True), (0.9, False)])
def test_a_limit_of_unknown_usage_is_left_nearly_full(left_share: float, *, has_room: bool) -> None:
    """Before the usage is known, hedges take the last 5 % of a limit: all of the rest may be needed."""
    ledger, limit = Ledger(), 60_000.0
    answered(ledger, stated(left_share * limit, limit), 0.0, count=1_000)
    assert ledger.room_for_hedge(tokens(100), 0.0) is has_room


@pytest.mark.parametrize(
    ("others", "idle_s", "has_room"),
    [
        (0.0, 1.0, True),
        (0.0, 900.0, True),  # no other use was seen
        (0.3, 900.0, True),  # most of the limit was free
        (0.7, 1.0, True),
        (0.7, 59.0, True),  # as old as its window
        (0.7, 61.0, False),  # others may have used it up since
        (0.7, 900.0, False),
        (0.7, 86_400.0, False),
    ],
)
def test_an_old_reading_is_renewed_before_a_hedge(others: float, idle_s: float, *, has_room: bool) -> None:
    """Full by our count is no proof after a pause: what others used counts until a response shows the limit again."""
    ledger, limit = Ledger(), 60_000.0
    for second in range(240):
        left = limit - others * 1_000.0 * (second % 4)
        answered(ledger, stated(left, limit), float(second), count=50)
        ledger.room_for_hedge(tokens(100), float(second))
    late_s = 239.0 + idle_s
    ledger.reserve(tokens(50), late_s)
    assert ledger.room_for_hedge(tokens(100), late_s) is has_room
    answered(ledger, stated(limit, limit), late_s + 1.0, count=50)
    assert ledger.room_for_hedge(tokens(100), late_s + 2.0)


def test_a_single_reading_is_no_usage() -> None:
    """One response, long ago, shows nothing about others; with the second one, rare requests are hedged."""
    ledger = Ledger()
    answered(ledger, stated(60_000.0), 0.0, count=50)
    assert ledger.room_for_hedge(tokens(100), 10.0)
    assert not ledger.room_for_hedge(tokens(100), 120.0)
    for number in range(1, 6):
        answered(ledger, stated(60_000.0), 120.0 * number, count=50)
        assert ledger.room_for_hedge(tokens(100), 120.0 * number + 119.0)


@pytest.mark.parametrize(("reset_s", "window_s"), [(6.0, 60.0), (59.0, 60.0), (3_600.0, 86_400.0), (None, 60.0)])
def test_a_used_up_limit_is_free_after_its_reset(reset_s: float | None, window_s: float) -> None:
    """A reading without room ends at its reset, or with its window; primaries renew it after a minute."""
    ledger = Ledger()
    for second in range(0, 300, 15):
        answered(ledger, stated(60_000.0, window_s=window_s), float(second), count=10)
        ledger.room_for_hedge(tokens(10), float(second))
    answered(ledger, stated(0.0, reset_s=reset_s, window_s=window_s), 300.0, count=10)
    free_s = 300.0 + (reset_s or window_s)
    assert not ledger.room_for_hedge(tokens(10), 300.0)
    assert ledger.headroom(301.0) < 0.5
    assert ledger.headroom_for_primary(361.0) == 1.0
    assert ledger.headroom(free_s) == pytest.approx(1.0)


def test_429s_that_follow_hedges_end_them_for_longer() -> None:
    """Without limits in responses: each 429 soon after hedges were resumed doubles the time without them."""
    ledger, now_s = Ledger(), 0.0
    for pause_s in (300.0, 600.0, 1_200.0):
        ledger.rate_limited(ledger.reserve(tokens(1), now_s), now_s)
        assert not ledger.room_for_hedge(tokens(1), now_s + pause_s - 1.0)
        assert ledger.room_for_hedge(tokens(1), now_s + pause_s)
        now_s += pause_s + 100.0
    now_s += 10_000.0
    ledger.rate_limited(ledger.reserve(tokens(1), now_s), now_s)
    assert ledger.room_for_hedge(tokens(1), now_s + 300.0)


def hedged(shares: tuple[float, float], limits: list[Limit]) -> list[bool]:
    """Whether hedges have room in ten hours in which a share of requests gets a bare 429: without, and with hedges."""
    ledger, rng, rooms = Ledger(limits), random.Random(1), list[bool]()
    for second in range(36_000):
        rooms.append(ledger.room_for_hedge(tokens(1), second))
        for _ in range(4):
            ticket = ledger.reserve(tokens(1), second)
            if rng.random() < shares[rooms[-1]]:
                ledger.rate_limited(ticket, second)
            ledger.settle(ticket, tokens(1), second)
    return rooms


@pytest.mark.parametrize(
    ("share", "limits"), [(0.005, []), (0.02, []), (0.05, []), (0.05, [Limit(Resource.REQUESTS, 2_400.0)])]
)
def test_429s_that_come_without_hedges_as_often_do_not_end_them(share: float, limits: list[Limit]) -> None:
    """Of ten hours, nine are hedged at least: each bare 429 once ended hedging for five minutes."""
    assert sum(hedged((share, share), limits)) >= 32_400


@pytest.mark.parametrize("shares", [(0.0, 0.02), (0.01, 0.1), (0.05, 0.14), (0.1, 0.1)])
def test_429s_that_hedges_cause_end_them(shares: tuple[float, float]) -> None:
    """Where a limit is nearly used up, or more, hedging is tried less and less often: at most 3 % of ten hours."""
    rooms = hedged(shares, [])
    assert sum(rooms) <= 1_080
    assert sum(rooms[18_000:]) <= sum(rooms[:18_000])


def test_429s_in_a_row_show_a_limit_however_rare() -> None:
    """A limit that is used up at the end of each minute refuses six requests in a row there: no hedges."""
    ledger, rooms = Ledger(), 0
    for request in range(4 * 7_200):
        now_s = request / 4
        ticket = ledger.reserve(tokens(1), now_s)
        if request % 240 >= 234:
            ledger.rate_limited(ticket, now_s)
        rooms += ledger.room_for_hedge(tokens(1), now_s)
    assert rooms <= 240  # until the first one


def test_429s_just_after_hedges_are_no_share_without_them() -> None:
    """A limit that hedges have used up refuses primaries until it has refilled: only 429s after five minutes count."""
    ledger, paused_s = Ledger(), 0.0
    for second in range(1_000):
        ticket = ledger.reserve(tokens(1), second)
        if second in range(0, 300, 20):
            ledger.rate_limited(ticket, second)
        if not ledger.room_for_hedge(tokens(1), second):
            paused_s = second
    assert paused_s == 599
    ledger.rate_limited(ledger.reserve(tokens(1), 1_000.0), 1_000.0)
    assert not ledger.room_for_hedge(tokens(1), 1_001.0)


def test_a_429_empties_short_buckets() -> None:
    """After a 429 short buckets are empty, a day's is not, and a limit in the same response is as stated."""
    ledger = Ledger([RPM, TPM, Limit(Resource.REQUESTS, 10_000.0, DAY_S)])
    ledger.rate_limited(ledger.reserve(tokens(1_000), 0.0), 0.0)
    assert left(ledger, 0.0) == [0.0, 0.0, 9_999.0]
    ledger = Ledger([RPM])
    refused = answered(ledger, stated(30_000.0), 0.0)
    ledger.rate_limited(refused, 0.0)
    assert left(ledger, 0.0) == [0.0, 30_000.0]


def test_a_429_is_all_that_may_be_known() -> None:
    """Without limits in responses, a 429 stops hedges for 5 minutes: others use the quota, by an unknown amount."""
    for configured in ((), (TPM,)):
        ledger = Ledger(configured)
        ledger.rate_limited(ledger.reserve(tokens(1), 0.0), 0.0)
        assert not ledger.room_for_hedge(tokens(1), 299.0)
        assert ledger.room_for_hedge(tokens(1), 300.0)


def test_a_429_without_a_time_and_without_limits_does_not_cool_down() -> None:
    """The length of the wait is then the caller's decision."""
    ledger = Ledger([RPM])
    ledger.rate_limited(ledger.reserve(tokens(1), 0.0), 0.0)
    assert ledger.cooling_s(0.0) == 0.0


@pytest.mark.parametrize(
    ("limits", "cooling_s"),
    [
        (stated(0.0, reset_s=20.0), 20.0 * 3_000 / 60_000),
        (stated(0.0), 3.0),
        (stated(2_999.0), 1.0),  # at least a second
        (stated(5_000.0), 0.0),  # it was not this one
        (stated(0.0, 1_000.0, Resource.REQUESTS, 36_000.0, DAY_S), 36.0),
        (stated(0.0, 10.0, Resource.REQUESTS, 36_000.0, DAY_S), 60.0),  # and at most a minute: then it is found out
    ],
)
def test_a_429_without_a_time_cools_down_by_its_limits(limits: list[RateLimit], cooling_s: float) -> None:
    """Until the limit that its answer states has room for the request again."""
    ledger = Ledger()
    ticket = ledger.reserve(tokens(3_000), 0.0)
    ledger.observe(ticket, limits, 0.0)
    ledger.rate_limited(ticket, 0.0)
    assert ledger.cooling_s(0.0) == pytest.approx(cooling_s)


def test_a_cool_down_is_never_shortened() -> None:
    """The latest end counts."""
    ledger = Ledger()
    ledger.cool_down(10.0)
    ledger.cool_down(5.0)
    assert ledger.cooling_s(4.0) == 6.0


def test_only_an_enforced_limit_refuses_primaries() -> None:
    """Primaries are advised by headroom, and rejected only at an enforced limit, less 1 %, until it has room."""
    for enforce in (False, True):
        ledger = Ledger([Limit(Resource.TOKENS, 1_000.0, enforce=enforce)])
        ledger.reserve(tokens(900), 0.0)
        assert ledger.headroom(0.0) == pytest.approx(0.1)
        assert ledger.wait_s(tokens(90), 0.0) == 0
        assert (ledger.wait_s(tokens(91), 0.0) > 0) is enforce
        assert ledger.wait_s(tokens(190), 0.0) == (pytest.approx(6.0) if enforce else 0.0)


def test_a_prompt_above_an_enforced_limit_is_sent_when_all_of_it_is_there() -> None:
    """It would wait for ever; its provider decides."""
    ledger = Ledger([Limit(Resource.TOKENS, 1_000.0, enforce=True)])
    assert ledger.wait_s(tokens(5_000), 0.0) == 0
    ledger.reserve(tokens(100), 0.0)
    assert ledger.wait_s(tokens(5_000), 0.0) == pytest.approx(6.0)


def test_headroom_is_never_negative() -> None:
    """More was sent than the limit allows: nothing is left."""
    ledger = Ledger([TPM])
    ledger.reserve(tokens(10**6), 0.0)
    assert ledger.headroom(0.0) == 0.0
    assert left(ledger, 0.0)[0] < 0.0


def test_the_lower_of_configured_and_observed_wins() -> None:
    """Both are recorded, and both must have room."""
    ledger = Ledger([TPM])
    answered(ledger, stated(9_000.0, 100_000.0), 0.0)
    assert ledger.headroom(0.0) == pytest.approx(0.09)
    assert not ledger.room_for_hedge(tokens(1), 0.0)
    answered(ledger, stated(100_000.0, 100_000.0), 60.0)
    assert ledger.headroom(60.0) == 1.0
    assert ledger.room_for_hedge(tokens(24_000), 60.0)
    assert not ledger.room_for_hedge(tokens(24_001), 60.0)
    assert [bucket.observed for bucket in ledger.state(60.0)] == [False, True]


@pytest.mark.parametrize(
    ("limit", "remaining"),
    [
        (None, 5.0),
        (0.0, 0.0),
        (-1.0, -1.0),
        (100.0, None),
        (100.0, -1.0),
        (100.0, math.nan),
        (math.nan, 5.0),
        (5.0, 9.0),
    ],
)
def test_nonsense_is_unknown_and_never_zero(limit: float | None, remaining: float | None) -> None:
    """Absent, negative, NaN and impossible values change nothing."""
    ledger = Ledger()
    answered(ledger, stated(remaining, limit), 0.0)
    assert ledger.state(0.0) == []
    assert ledger.headroom(0.0) == 1.0


def test_a_missing_limit_is_the_one_we_know() -> None:
    """With only what remains, the observed limit counts; before there is one, the configured, by the window's share."""
    ledger = Ledger([TPM, RPM])
    answered(ledger, stated(6_000.0, None), 0.0)
    answered(ledger, stated(20.0, None, Resource.REQUESTS, window_s=10.0), 0.0)
    assert [bucket.limit for bucket in ledger.state(0.0)] == [60_000.0, 600.0, 60_000.0, 100.0]
    answered(ledger, stated(40_000.0, 40_000.0), 60.0)
    answered(ledger, stated(20_000.0, None), 60.0)
    assert ledger.headroom(60.0) == pytest.approx(0.5)


def test_windows_are_kept_apart() -> None:
    """A daily and a per-minute limit on requests are two buckets."""
    ledger = Ledger()
    limits = [*stated(99.0, 100.0, Resource.REQUESTS), *stated(200.0, 1_000.0, Resource.REQUESTS, None, DAY_S)]
    answered(ledger, limits, 0.0)
    assert left(ledger, 0.0) == [99.0, 200.0]
    assert ledger.headroom(0.0) == pytest.approx(0.2)


def test_a_ticket_from_before_an_observation_does_not_correct_it() -> None:
    """The provider has counted that request by then; our own bucket is still corrected."""
    ledger = Ledger([TPM])
    ticket = ledger.reserve(tokens(10_000), 0.0)
    answered(ledger, stated(40_000.0), 0.5)
    ledger.settle(ticket, tokens(0), 0.5)
    assert left(ledger, 0.5) == [pytest.approx(60_000.0), 40_000.0]
