"""The ledger: tickets that add up, hedges that leave room, and what is unknown stops nothing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.ledger import Ledger, Limit, QuotaTicket, Resource

RPM = Limit(Resource.REQUESTS, 600.0)
TPM = Limit(Resource.TOKENS, 60_000.0)


def left(ledger: Ledger, now_s: float) -> list[float]:
    """What each bucket has left."""
    return [bucket.left for bucket in ledger.state(now_s)]


def test_nothing_known_stops_nothing() -> None:
    """Without limits there is room for everything, and all of it is left."""
    ledger = Ledger()
    ticket = ledger.reserve(1e9, 0.0)
    ledger.settle(ticket, 1e9, 0.0)
    assert ledger.room_for_hedge(1e9, 0.0)
    assert ledger.headroom(0.0) == 1.0
    assert not ledger.refuses(1e9, 0.0)
    assert ledger.cooling_s(0.0) == 0.0
    assert ledger.state(0.0) == []


def test_a_request_takes_one_and_its_tokens_and_both_refill() -> None:
    """Buckets refill continuously over their window and never above their limit."""
    ledger = Ledger([RPM, TPM])
    ledger.reserve(6_000.0, 0.0)
    assert left(ledger, 0.0) == [599.0, 54_000.0]
    assert left(ledger, 3.0) == [600.0, 57_000.0]
    assert left(ledger, 60.0) == [600.0, 60_000.0]
    assert ledger.headroom(60.0) == 1.0


def test_settling_corrects_the_reservation() -> None:
    """What was not used comes back, what was used beyond it is taken; the request stays counted."""
    ledger = Ledger([RPM, TPM])
    less, more = ledger.reserve(6_000.0, 0.0), ledger.reserve(6_000.0, 0.0)
    ledger.settle(less, 1_000.0, 0.0)
    assert left(ledger, 0.0) == [598.0, 53_000.0]
    ledger.settle(more, 10_000.0, 0.0)
    assert left(ledger, 0.0) == [598.0, 49_000.0]


def test_a_released_request_was_never_there() -> None:
    """A release gives back the request and its tokens."""
    ledger = Ledger([RPM, TPM])
    ledger.release(ledger.reserve(6_000.0, 0.0), 0.0)
    assert left(ledger, 0.0) == [600.0, 60_000.0]


operations = st.lists(
    st.tuples(st.sampled_from(["reserve", "settle", "release"]), st.integers(0, 20), st.floats(0.0, 100.0)), max_size=60
)


@given(operations)
def test_reserved_is_settled_plus_released(steps: list[tuple[str, int, float]]) -> None:
    """In any order, closed twice or not: what is missing is what is under way plus what was settled."""
    ledger = Ledger([Limit(Resource.REQUESTS, 1e6), Limit(Resource.TOKENS, 1e6)])
    tickets: list[QuotaTicket] = []
    used: dict[int, tuple[float, float]] = {}
    for what, index, tokens in steps:
        if what == "reserve":
            used[len(tickets)] = (1.0, tokens)
            tickets.append(ledger.reserve(tokens, 0.0))
        elif index < len(tickets):
            if tickets[index].is_open:
                used[index] = (1.0, tokens) if what == "settle" else (0.0, 0.0)
            if what == "settle":
                ledger.settle(tickets[index], tokens, 0.0)
            else:
                ledger.release(tickets[index], 0.0)
        requests, spent = (math.fsum(values) for values in zip((0.0, 0.0), *used.values(), strict=True))
        assert left(ledger, 0.0) == pytest.approx([1e6 - requests, 1e6 - spent])


@pytest.mark.parametrize(
    ("limit", "taken", "tokens", "has_room"),
    [
        (TPM, 0.0, 24_000.0, True),  # exactly 60 % are left
        (TPM, 0.0, 24_001.0, False),
        (TPM, 20_000.0, 4_000.0, True),
        (TPM, 20_000.0, 4_001.0, False),
        (Limit(Resource.TOKENS, 60_000.0, 8.0), 0.0, 24_001.0, False),
        (Limit(Resource.TOKENS, 60_000.0, 86_400.0), 0.0, 54_000.0, True),  # of a day's quota 10 % are enough
        (Limit(Resource.TOKENS, 60_000.0, 86_400.0), 0.0, 54_001.0, False),
        (Limit(Resource.REQUESTS, 2.0), 0.0, 0.0, False),
        (Limit(Resource.REQUESTS, 3.0), 0.0, 0.0, True),
    ],
)
def test_a_hedge_leaves_room_for_primaries(limit: Limit, taken: float, tokens: float, *, has_room: bool) -> None:
    """A hedge leaves 60 % of each bucket with a window up to a minute, 10 % of longer ones."""
    ledger = Ledger([limit])
    if taken:
        ledger.reserve(taken, 0.0)
    assert ledger.room_for_hedge(tokens, 0.0) is has_room


def test_every_bucket_must_have_room() -> None:
    """One full bucket is enough to deny."""
    ledger = Ledger([RPM, TPM])
    assert ledger.room_for_hedge(1_000.0, 0.0)
    assert not ledger.room_for_hedge(30_000.0, 0.0)


def test_after_a_429_hedges_keep_their_distance() -> None:
    """For 5 minutes 80 % are left; a Retry-After cools everything down until it is over."""
    ledger = Ledger([TPM])
    ledger.rate_limited(0.0, retry_after_s=2.0)
    assert ledger.cooling_s(0.5) == pytest.approx(1.5)
    assert ledger.refuses(1.0, 1.9)
    assert not ledger.room_for_hedge(1.0, 1.9)
    assert not ledger.refuses(1.0, 2.0)
    assert ledger.room_for_hedge(12_000.0, 2.0)
    assert not ledger.room_for_hedge(12_001.0, 299.0)
    assert ledger.room_for_hedge(12_001.0, 300.0)


def test_a_429_without_a_time_does_not_cool_down() -> None:
    """How long to wait then is somebody else's decision."""
    ledger = Ledger()
    ledger.rate_limited(0.0)
    assert ledger.cooling_s(0.0) == 0.0


def test_a_cool_down_is_never_shortened() -> None:
    """The latest end counts."""
    ledger = Ledger()
    ledger.cool_down(10.0)
    ledger.cool_down(5.0)
    assert ledger.cooling_s(4.0) == 6.0


def test_only_an_enforced_limit_refuses_primaries() -> None:
    """A primary is advised by headroom, and refused only where the limit says so."""
    for enforce in (False, True):
        ledger = Ledger([Limit(Resource.TOKENS, 1_000.0, enforce=enforce)])
        ledger.reserve(900.0, 0.0)
        assert ledger.headroom(0.0) == pytest.approx(0.1)
        assert not ledger.refuses(100.0, 0.0)
        assert ledger.refuses(101.0, 0.0) is enforce


def test_headroom_is_never_negative() -> None:
    """More was sent than the limit allows: nothing is left."""
    ledger = Ledger([TPM])
    ledger.reserve(1e6, 0.0)
    assert ledger.headroom(0.0) == 0.0
    assert left(ledger, 0.0)[0] < 0.0


def test_the_lower_of_configured_and_observed_wins() -> None:
    """Both are kept, and both must have room."""
    ledger = Ledger([TPM])
    ledger.observe(Resource.TOKENS, 0.0, limit=100_000.0, remaining=30_000.0)
    assert ledger.headroom(0.0) == pytest.approx(0.3)
    assert not ledger.room_for_hedge(1.0, 0.0)
    ledger.observe(Resource.TOKENS, 0.0, limit=100_000.0, remaining=100_000.0)
    assert ledger.headroom(0.0) == 1.0
    assert ledger.room_for_hedge(24_000.0, 0.0)
    assert not ledger.room_for_hedge(24_001.0, 0.0)
    assert [bucket.observed for bucket in ledger.state(0.0)] == [False, True]


def test_what_is_observed_is_overwritten_each_time() -> None:
    """The provider's own count replaces ours, also upwards and also with a new limit."""
    ledger = Ledger()
    ledger.observe(Resource.REQUESTS, 0.0, limit=100.0, remaining=10.0)
    ledger.reserve(0.0, 0.0)
    assert left(ledger, 0.0) == [9.0]
    ledger.observe(Resource.REQUESTS, 0.0, limit=200.0, remaining=150.0)
    assert left(ledger, 0.0) == [150.0]
    assert len(ledger.state(0.0)) == 1


@pytest.mark.parametrize(
    ("reset_s", "after_10_s"), [(20.0, 80.0), (0.001, 120.0), (None, 60.0), (0.0, 60.0), (-1.0, 60.0), (math.nan, 60.0)]
)
def test_an_observed_bucket_refills_until_its_reset(reset_s: float | None, after_10_s: float) -> None:
    """It is full again at the reset if that is known, else it refills over its window."""
    ledger = Ledger()
    ledger.observe(Resource.REQUESTS, 0.0, limit=120.0, remaining=40.0, reset_s=reset_s)
    assert left(ledger, 10.0) == [pytest.approx(after_10_s)]


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
    ledger.observe(Resource.TOKENS, 0.0, limit=limit, remaining=remaining)
    assert ledger.state(0.0) == []
    assert ledger.headroom(0.0) == 1.0


def test_a_missing_limit_is_the_one_we_know() -> None:
    """With only what remains, the observed limit counts, before there is one the configured."""
    ledger = Ledger([TPM])
    ledger.observe(Resource.TOKENS, 0.0, limit=None, remaining=6_000.0)
    assert ledger.headroom(0.0) == pytest.approx(0.1)
    ledger.observe(Resource.TOKENS, 0.0, limit=40_000.0, remaining=40_000.0)
    ledger.observe(Resource.TOKENS, 0.0, limit=None, remaining=20_000.0)
    assert ledger.headroom(0.0) == pytest.approx(0.5)


def test_windows_are_kept_apart() -> None:
    """A daily and a per-minute limit on requests are two buckets."""
    ledger = Ledger()
    ledger.observe(Resource.REQUESTS, 0.0, limit=100.0, remaining=100.0)
    ledger.observe(Resource.REQUESTS, 0.0, limit=1_000.0, remaining=200.0, window_s=86_400.0)
    assert left(ledger, 0.0) == [100.0, 200.0]
    assert ledger.headroom(0.0) == pytest.approx(0.2)


def test_a_ticket_from_before_an_observation_does_not_correct_it() -> None:
    """The provider has counted that request by then; our own bucket is still corrected."""
    ledger = Ledger([TPM])
    ticket = ledger.reserve(10_000.0, 0.0)
    ledger.observe(Resource.TOKENS, 0.5, limit=60_000.0, remaining=40_000.0)
    ledger.settle(ticket, 0.0, 0.5)
    assert left(ledger, 0.5) == [pytest.approx(60_000.0), 40_000.0]
