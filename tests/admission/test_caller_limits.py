"""Limits of one key: never exceeded, with an exact wait, and each reservation is used or given back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.caller_limits import CallerLimits, CallerTicket, KeyLimiter, LimitStatus, OverLimit, Quantity


def admitted(account: KeyLimiter, prompt: float, answer: float, now_s: float) -> CallerTicket | OverLimit:
    """Enter a request and reserve its tokens in one step; one without enough tokens gives its place back."""
    ticket = account.enter(now_s)
    if isinstance(ticket, OverLimit):
        return ticket
    over = account.reserve(ticket, prompt, answer, now_s)
    if over is None:
        return ticket
    account.release(ticket, now_s)
    return over


STEPS = st.lists(
    st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 400.0), st.floats(0.0, 400.0), st.floats(0.0, 1.5)), max_size=60
)


@given(STEPS, st.integers(1, 30), st.integers(100, 1_000))
def test_no_minute_has_more_than_its_limit_and_a_full_bucket(
    steps: list[tuple[float, float, float, float]], requests: int, tokens: int
) -> None:
    """From any start, requests <= limit * (1 + minutes); tokens too, if no request uses more than reserved."""
    account, now_s = KeyLimiter(CallerLimits(requests, tokens)), 0.0
    entered: list[tuple[float, float]] = []
    for gap_s, prompt, answer, share in steps:
        now_s += gap_s
        ticket = admitted(account, prompt, answer, now_s)
        if isinstance(ticket, CallerTicket):
            used = min(1.0, share) * ticket.tokens
            account.settle(ticket, used, now_s)
            entered.append((now_s, used))
    for first, (start_s, _) in enumerate(entered):
        minutes = [(at_s - start_s) / 60 for at_s, _ in entered[first:]]
        for last, share in enumerate(minutes):
            assert last + 1 <= requests * (1 + share) + 1e-3
            assert sum(used for _, used in entered[first : first + last + 1]) <= tokens * (1 + share) * (1 + 1e-5)
    assert account.in_flight == 0


@given(STEPS, st.integers(1, 30), st.integers(100, 1_000))
def test_the_wait_is_honest(steps: list[tuple[float, float, float, float]], requests: int, tokens: int) -> None:
    """A request that returns after its wait is admitted if none came before; a little earlier it is not."""
    account, now_s = KeyLimiter(CallerLimits(requests, tokens)), 0.0
    for gap_s, prompt, answer, share in steps:
        now_s += gap_s
        result = admitted(account, prompt, answer, now_s)
        if isinstance(result, OverLimit) and result.wait_s is not None and result.wait_s > 1e-3:  # else rounding
            assert isinstance(admitted(account, prompt, answer, now_s + 0.9 * result.wait_s), OverLimit)
            now_s += result.wait_s
            was_for_requests = result.quantity is Quantity.REQUESTS
            result = admitted(account, prompt, answer, now_s + 1e-6)
            assert isinstance(result, CallerTicket) or (was_for_requests and result.quantity is Quantity.TOKENS)
        if isinstance(result, CallerTicket):
            account.settle(result, share * result.tokens, now_s)


def entered(account: KeyLimiter, prompt: float = 0.0, answer: float = 0.0, now_s: float = 0.0) -> CallerTicket:
    """A request that gets in."""
    ticket = admitted(account, prompt, answer, now_s)
    assert isinstance(ticket, CallerTicket)
    return ticket


def test_a_refusal_takes_nothing() -> None:
    """Asking again and again uses up neither requests nor tokens."""
    account = KeyLimiter(CallerLimits(requests_per_min=10, tokens_per_min=100))
    before = account.status(0.0)
    for _ in range(50):
        assert isinstance(admitted(account, 101.0, 0.0, 0.0), OverLimit)
    assert account.status(0.0) == before


def test_what_was_never_sent_costs_nothing() -> None:
    """Releasing a ticket restores the previous state."""
    account = KeyLimiter(CallerLimits(10, 1_000, 5))
    before = account.status(0.0)
    ticket = entered(account, 100.0, 300.0)
    assert account.status(0.0) != before
    account.release(ticket, 0.0)
    assert (account.status(0.0), account.in_flight) == (before, 0)


def test_it_is_settled_with_what_was_used() -> None:
    """More than was taken is a debt that time pays, less is given back, and each ticket counts once."""
    account = KeyLimiter(CallerLimits(tokens_per_min=600))
    ticket = entered(account, 100.0, 100.0)
    account.settle(ticket, 50.0, 0.0)
    account.settle(ticket, 50.0, 0.0)
    account.release(ticket, 0.0)
    assert account.status(0.0) == [LimitStatus(Quantity.TOKENS, 600, 550, 5.0)]
    account.settle(entered(account, 100.0, 0.0), 800.0, 0.0)
    assert account.status(0.0) == [LimitStatus(Quantity.TOKENS, 600, 0, 85.0)]
    assert admitted(account, 10.0, 0.0, 0.0) == OverLimit(Quantity.TOKENS, 600, 10, 26.0)


def test_requests_at_a_time() -> None:
    """At most `concurrency` requests are admitted, one more per end; the wait is one's duration / concurrency."""
    account = KeyLimiter(CallerLimits(concurrency=2))
    tickets = [entered(account), entered(account)]
    assert admitted(account, 0.0, 0.0, 1.0) == OverLimit(Quantity.CONCURRENCY, 2, 3, 5.0)
    account.settle(tickets[0], 0.0, 8.0)
    entered(account, now_s=8.0)
    assert admitted(account, 0.0, 0.0, 9.0) == OverLimit(Quantity.CONCURRENCY, 2, 3, 4.0)


def test_a_prompt_over_the_limit_never_fits_and_an_answer_may() -> None:
    """A prompt over the limit is always rejected; one over it only with its answer waits for a full bucket."""
    account = KeyLimiter(CallerLimits(tokens_per_min=100))
    assert admitted(account, 101.0, 0.0, 0.0) == OverLimit(Quantity.TOKENS, 100, 101, None)
    entered(account, 50.0, 1e6)
    refused = admitted(account, 50.0, 1e6, 0.0)
    assert isinstance(refused, OverLimit)
    assert refused.wait_s == pytest.approx(60.0)


def test_a_rejected_request_counts() -> None:
    """A request that the caller got wrong takes one of its requests, and neither tokens nor a concurrent request."""
    account = KeyLimiter(CallerLimits(requests_per_min=10, tokens_per_min=100, concurrency=1))
    for _ in range(3):
        ticket = account.enter(0.0)
        assert isinstance(ticket, CallerTicket)
        assert account.enter(0.0) == OverLimit(Quantity.CONCURRENCY, 1, 2, 5.0)
        assert account.reserve(ticket, 50.0, 0.0, 0.0) is None
        account.reject(ticket, 0.0)
        account.release(ticket, 0.0)
    assert [status.remaining for status in account.status(0.0)] == [7, 100]
    assert account.in_flight == 0
