"""The breaker: when it opens, what it lets through, when it closes again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ttft_gateway.routing.replicas import FULL_S, OPEN_S, OPEN_S_MAX, Breaker, BreakerState

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def failed(times: int) -> Breaker:
    """A breaker after this many consecutive failures, at time 0."""
    breaker = Breaker()
    for _ in range(times):
        breaker.on_failure(0.0)
    return breaker


def test_three_failures_in_a_row_open_it() -> None:
    """One or two failures are weather, and a success between them starts the count again."""
    assert failed(2).state is CLOSED
    assert failed(3).state is OPEN
    breaker = failed(2)
    breaker.on_success(0.0, 0.0)
    breaker.on_failure(0.0)
    assert breaker.state is CLOSED


@pytest.mark.parametrize(
    ("sent_meanwhile", "sent_s", "opens"),
    [
        (0, -1.0, True),
        (4, -1.0, True),
        (5, -1.0, False),  # many are pending, and the next failure may be one of many answers
        (0, 1.0, False),
    ],
)
def test_an_answer_to_an_earlier_request_does_not_hide_failures(
    sent_meanwhile: int, sent_s: float, opens: bool
) -> None:
    """A replica that drains still ends what it has begun; a slow one fails at times while most answers are pending."""
    breaker = failed(2)
    breaker.pending = 0
    for _ in range(sent_meanwhile):
        breaker.on_sent(1.0)
    breaker.on_content(1.0, sent_s)
    breaker.on_failure(1.0)
    assert (breaker.state is OPEN) is opens


def test_a_full_replica_is_not_down() -> None:
    """It refuses with as many requests in flight as before; one that is down refuses with fewer, too."""
    full, down = Breaker(), Breaker()
    for at_s in range(5):
        if not full.on_refusal(float(at_s), float(at_s), 8):
            full.on_failure(float(at_s))
        if not down.on_refusal(float(at_s), float(at_s), 8 - at_s):
            down.on_failure(float(at_s))
    assert (full.state, full.failures) == (CLOSED, 2)
    assert down.state is OPEN


def test_a_replica_that_refuses_its_only_request_is_down() -> None:
    """Nothing else is in flight that could fill it."""
    breaker = Breaker()
    for at_s in range(3):
        assert not breaker.on_refusal(float(at_s), float(at_s), 0)
        breaker.on_failure(float(at_s))
    assert breaker.state is OPEN


def test_a_replica_that_fails_now_and_then_is_not_full() -> None:
    """It takes most requests that come with as many in flight."""
    breaker = Breaker()
    for at_s in range(100):
        if at_s % 10 == 0:
            assert not breaker.on_refusal(float(at_s), float(at_s), 8)
        else:
            breaker.on_taken(float(at_s), 8)
        assert not breaker.is_full(at_s + 0.1, 8)


def test_a_full_replica_that_takes_more_again_is_not_full() -> None:
    """As many contents of attempts with as many in flight as there were refusals end it."""
    breaker = Breaker()
    for at_s in range(3):
        breaker.on_refusal(float(at_s), float(at_s), 8)
    assert breaker.is_full(3.0, 8)
    breaker.on_taken(3.0, 7)
    assert breaker.is_full(3.0, 8)
    breaker.on_taken(3.0, 8)
    assert not breaker.is_full(3.0, 8)


def test_requests_that_were_sent_together_are_refused_together() -> None:
    """Their refusals show one thing, and the last one, with the fewest in flight, shows how many are too many."""
    breaker = Breaker()
    assert [breaker.on_refusal(1.0, 0.9, others) for others in (12, 11, 10)] == [False, False, True]
    assert breaker.on_refusal(1.01, 0.95, 9)
    assert breaker.is_full(1.02, 9)
    assert not breaker.is_full(1.02, 8)
    assert not breaker.is_full(1.0 + FULL_S, 9)
    assert not breaker.on_refusal(1.1, 1.05, 8)


def test_an_answer_to_an_earlier_request_closes_nothing() -> None:
    """Only a request that was sent since then shows that the replica takes requests again."""
    breaker = failed(3)
    breaker.on_success(1.0, -1.0)
    assert breaker.state is OPEN
    breaker.on_success(1.0, 0.5)
    assert breaker.state is CLOSED


def test_one_probe_at_a_time() -> None:
    """After the wait one request goes through; the next one waits for what becomes of it."""
    breaker = failed(3)
    assert not breaker.allows(OPEN_S - 0.1)
    assert breaker.allows(OPEN_S)
    breaker.on_sent(OPEN_S)
    assert breaker.state is HALF_OPEN
    assert not breaker.allows(OPEN_S)
    breaker.on_undecided(OPEN_S + 1)  # a probe that lost its race, or a disconnected client
    assert breaker.allows(OPEN_S + 1)


def test_failed_probes_wait_longer_but_never_for_long() -> None:
    """Each failed probe doubles the wait up to its bound, so that a replica that is back is soon used."""
    breaker, now_s, waits_s = failed(3), 0.0, []
    for _ in range(4):
        waits_s.append(breaker.open_until_s - now_s)
        now_s = breaker.open_until_s
        breaker.on_sent(now_s)
        breaker.on_failure(now_s)
    assert waits_s == [OPEN_S, 2 * OPEN_S, OPEN_S_MAX, OPEN_S_MAX]
    breaker.on_sent(breaker.open_until_s)
    breaker.on_success(breaker.open_until_s, breaker.open_until_s)
    assert (breaker.state, breaker.wait_s) == (CLOSED, OPEN_S)


def test_a_first_content_closes_it_on_trial() -> None:
    """The probe's first content is enough for other requests; if the answer breaks, the next wait is longer."""
    breaker = Breaker()
    for _ in range(3):
        breaker.on_failure(0.0, broken=True)
    breaker.on_sent(OPEN_S)
    breaker.on_content(OPEN_S + 1, OPEN_S + 1)
    assert breaker.state is CLOSED
    breaker.on_failure(OPEN_S + 2, broken=True)
    assert (breaker.state, breaker.open_until_s) == (OPEN, OPEN_S + 2 + 2 * OPEN_S)


def test_first_contents_do_not_hide_broken_answers() -> None:
    """Failures before a first content are forgotten with one, broken answers only with a complete answer."""
    breaker = failed(2)
    breaker.on_content(0.0, 0.0)
    breaker.on_failure(0.0)
    assert breaker.state is CLOSED
    for _ in range(3):
        breaker.on_content(0.0, 0.0)
        breaker.on_failure(0.0, broken=True)
    assert breaker.state is OPEN
    breaker.on_success(0.0, 0.0)
    assert (breaker.state, breaker.broken) == (CLOSED, 0)


def test_what_cannot_work_opens_it_at_once() -> None:
    """One rejected key opens the breaker, which is probed again as after any failure."""
    breaker = Breaker()
    breaker.trip(0.0)
    assert breaker.state is OPEN
    assert breaker.allows(OPEN_S)


def test_a_wait_is_no_failure() -> None:
    """A 429 keeps requests away for its time and counts nothing; a longer wait is never shortened."""
    breaker = Breaker()
    breaker.cool_down(10.0)
    breaker.cool_down(5.0)
    assert not breaker.allows(9.9)
    assert breaker.allows(10.0)
    assert (breaker.state, breaker.failures) == (CLOSED, 0)


@pytest.mark.parametrize(("retry_after_s", "wait_s"), [(None, 1.0), (0.0, 1.0), (0.2, 1.0), (2.0, 2.0)])
def test_frequent_429s_start_a_cool_down_of_a_second(retry_after_s: float | None, wait_s: float) -> None:
    """A replica that rejects each request is not asked at once again, although its `Retry-After` allows it."""
    breaker = Breaker()
    breaker.on_rate_limited(0.0, retry_after_s)
    breaker.on_rate_limited(0.0, retry_after_s)
    assert breaker.cooling_until_s == (retry_after_s or 0.0)
    breaker.on_rate_limited(0.0, retry_after_s)
    assert breaker.cooling_until_s == wait_s


_EVENTS = ("on_sent", "on_content", "on_success", "on_undecided", "trip", "open_with_others", "on_failure", "broken")


@given(st.lists(st.tuples(st.sampled_from([*_EVENTS, "limited", "waits", "end_cool_down"]), st.floats(0.0, 9.0))))
def test_without_events_there_is_nothing_to_reset(steps: list[tuple[str, float]]) -> None:
    """After any history: while a breaker is not eventful, it is free, and its callbacks would change nothing."""
    breaker, now_s = Breaker(), 0.0
    for name, gap_s in steps:
        now_s += gap_s
        if name == "broken":
            breaker.on_failure(now_s, broken=True)
        elif name in ("limited", "waits"):
            breaker.on_rate_limited(now_s, 5.0 if name == "waits" else None)
        elif name == "end_cool_down":
            breaker.end_cool_down()
        elif name in ("on_content", "on_success"):
            getattr(breaker, name)(now_s, now_s)
        else:
            getattr(breaker, name)(now_s)
        if not breaker.eventful:
            before = replace(breaker)
            breaker.on_sent(now_s)
            for callback in (breaker.on_content, breaker.on_success):
                callback(now_s, now_s)
                assert (breaker, breaker.is_closed(now_s)) == (before, True)
