"""TTFT targets in a pool: from its settings or the request, for the first attempt of a request only."""

import pytest

from defaults import default_hedging
from gateway.observe.describe import usual_delay_s
from pooled import Seen
from scripted import Scripted
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

FACTS = RequestFacts(prompt_tokens=100.0)
WITH_TARGET = RequestFacts(prompt_tokens=100.0, ttft_target_s=4.0)


def learned(**settings: float) -> Pool:
    """A pool that has seen answers after 0.2 s, and one in ten after 2 s."""
    pool = Pool("m", [Replica("a", Scripted()), Replica("b", Scripted())], default_hedging(**settings))
    for number in range(200):
        start_s = 3.0 * number
        attempt = Seen(pool.replicas[number % 2], start_s)
        pool.on_sent(attempt, FACTS, None, is_first=True)
        pool.on_content(attempt, start_s + (2.0 if number % 10 == 9 else 0.2))
        pool.on_end(attempt, Outcome.FINISHED, start_s + 2.5, None)
    return pool


def delay_s(pool: Pool, facts: RequestFacts, *, is_first: bool = True) -> float:
    """The hedge delay of a new attempt."""
    attempt = Seen(pool.replicas[0], 600.0)
    pool.on_sent(attempt, facts, None, is_first=is_first)
    return pool.delay_s(attempt, facts)


def test_a_target_delays_the_hedge() -> None:
    """With a target the hedge waits until shortly before the target; both ways of sending a primary agree."""
    pool = learned()
    usual_s, later_s = delay_s(pool, FACTS), delay_s(pool, WITH_TARGET)
    assert usual_s < 1.0
    assert 2.0 < later_s < 4.0
    begun = pool.begin(WITH_TARGET, 600.0, 0.0)
    assert begun is not None
    assert begun.delay_s == pytest.approx(later_s, rel=0.05)
    assert begun.forecast.target_s == 4.0


def test_the_requests_target_replaces_that_of_the_pool() -> None:
    """A pool's target holds for requests without their own, and in the delay that is shown."""
    pool = learned(ttft_target_s=3.0)
    by_pool_s, by_request_s = delay_s(pool, FACTS), delay_s(learned(ttft_target_s=3.0), WITH_TARGET)
    assert by_request_s - by_pool_s == pytest.approx(1.0, abs=0.1)
    shown_s = usual_delay_s(pool, pool.replicas[0], 600.0)
    assert shown_s == pytest.approx(by_pool_s, rel=0.1)


def test_later_attempts_have_no_target() -> None:
    """A failover, of which the target's time is over in part, has the usual delay."""
    assert delay_s(learned(), WITH_TARGET, is_first=False) == delay_s(learned(), FACTS, is_first=False)
