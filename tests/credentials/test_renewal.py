"""When a token is fetched, used and given up, as a function of time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.credentials.renewal import LEAD_S_MAX, Renewal
from ttft_gateway.credentials.token import Token


@given(st.floats(0.01, 1e6), st.floats(0, 1))
def test_a_token_is_renewed_well_before_its_end(lifetime_s: float, rand: float) -> None:
    """The next fetch is half of the lifetime before the end, at most 18 minutes, and no sooner than half a second."""
    state = Renewal()
    state.on_token(Token("t", lifetime_s), 0.0, rand)
    left_s = lifetime_s - state.next_s
    assert state.next_s >= 0.4 * lifetime_s - 1e-6
    assert left_s <= 1.2 * LEAD_S_MAX + 1e-6
    assert state.next_s == 0.5 or left_s >= min(0.5 * lifetime_s, LEAD_S_MAX) - 1e-6


def test_a_token_is_used_until_it_ends() -> None:
    """Failures change nothing before the end; after it there is no token, and the fault is the reason."""
    state = Renewal()
    state.on_token(Token("t", 100.0), 0.0, 0.0)
    assert state.next_s == 50.0
    waits = []
    now_s = 50.0
    for _ in range(7):
        state.on_failure("down", now_s, 0.0)
        waits.append(state.next_s - now_s)
        now_s = state.next_s
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert state.usable(99.9) == Token("t", 100.0)
    assert state.usable(100.0) is None
    assert str(state.fault) == "down"
    state.on_token(Token("u", 100.0), 150.0, 0.0)
    assert state.fault is None, "a success ends the failures"
    assert state.usable(150.0) == Token("u", 100.0)


def test_a_source_that_repeats_a_token_is_asked_again_after_half_of_the_rest() -> None:
    """The same token with the same end does not lead to a loop of fetches."""
    state, now_s, end_s, fetches = Renewal(), 0.0, 3600.0, 0
    while now_s < 3590.0:
        state.on_token(Token("t", end_s - now_s), now_s, 0.0)
        now_s, fetches = state.next_s, fetches + 1
    assert fetches <= 10


def test_a_rejected_token_is_renewed_once() -> None:
    """A rejection of the token in use starts one fetch; one of an older token, or of the new one, starts none."""
    state = Renewal()
    state.on_token(Token("t", 3600.0), 0.0, 0.0)
    assert state.on_rejected(sent_s=5.0, now_s=6.0)
    assert state.next_s == 6.0
    assert not state.on_rejected(sent_s=5.5, now_s=6.1)
    state.on_token(Token("u", 3600.0), 7.0, 0.0)
    assert not state.on_rejected(sent_s=6.9, now_s=8.0)
    assert not state.on_rejected(sent_s=7.5, now_s=8.0)
    assert state.on_rejected(sent_s=70.0, now_s=70.0)


@pytest.mark.parametrize("every_s", [5.0, math.inf])
def test_a_token_without_an_end_is_looked_at_again(every_s: float) -> None:
    """A watched file is read at its interval."""
    state = Renewal(every_s=every_s)
    assert state.on_token(Token("t"), 1.0, 0.5)
    assert (state.next_s, state.until_s) == (1.0 + every_s, math.inf)
    assert not state.on_token(Token("t"), 6.0, 0.5)
    assert state.since_s == 1.0
    assert state.on_token(Token("u"), 11.0, 0.5)
