"""The race and quotas that the fleet shares: a request waits for an ask under way, and for nothing else."""

import asyncio
import math

import pytest

from defaults import default_timeouts
from gateway.share.fleet import ASK_S_MAX, Fleet, Requester
from gateway.share.hub import ShareHub
from gateway.share.leases import Leases
from gateway.share.messages import BucketAsk
from scripted import Outcome, Scripted, answer, run_race, status
from ttft_gateway.apis.base import Resource
from ttft_gateway.limits.bucket import Limit
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.pool import Pool

NO_WAIT = default_timeouts(retry_after_s_max=0.0)


class Shared:
    """Leases a quota of 100 requests a minute from an engine.

    Args:
        answers_s: time to its answers; infinite for none.
        left: requests that are left for the fleet.

    Attributes:
        asks: number of asks.
    """

    def __init__(self, answers_s: float = 0.003, left: float = 100.0) -> None:
        self._answers_s = answers_s
        self._left = left
        self.asks = 0

    def __call__(self, pools: list[Pool]) -> None:
        """Give the first replica of the first pool a leased quota."""
        loop = asyncio.get_running_loop()
        fleet, hub = Fleet(), ShareHub()
        fleet.is_alone = False
        hub.answer(loop.time(), "other", [BucketAsk("quota", 100.0, 60.0, 100.0 - self._left)])

        def want(requester: Requester) -> None:
            if self._answers_s == math.inf:
                loop.call_later(ASK_S_MAX, lambda: fleet.leave(loop.time()))
                return
            ask = requester.ask(loop.time())
            assert ask is not None
            self.asks += 1
            [reply] = hub.answer(loop.time(), "me", [ask]).answers
            loop.call_later(self._answers_s, lambda: requester.answered(reply, loop.time()))

        fleet.want = want
        leases = Leases(fleet)
        limit = Limit(Resource.REQUESTS, 100.0, enforce=True)
        replica = pools[0].replicas[0]
        pools[0].quotas.of[replica] = Ledger([limit], lambda each: leases.bucket("quota", each))


def race(shared: Shared, *replicas: Scripted, fallbacks: tuple[Scripted, ...] = ()) -> Outcome:
    """Race a request with a leased quota, where no Retry-After is waited out."""
    return run_race(*replicas, fallbacks=fallbacks, timeouts=NO_WAIT, prepare=shared)


def test_an_ask_under_way_is_waited_for_whatever_is_configured() -> None:
    """Also before a fallback is used: the answer takes about a millisecond."""
    shared, fallback = Shared(), Scripted(answer(0.05))
    told = race(shared, Scripted(answer(0.05)), fallbacks=(fallback,))
    assert told.client.finished
    assert not fallback.streams
    assert told.end_s == pytest.approx(0.07 + 0.003, abs=0.002)
    assert shared.asks == 2  # the second ask leases ahead, in addition to the request


def test_another_replica_is_not_waited_for() -> None:
    """A sibling with room gets the request immediately."""
    told = race(Shared(), Scripted(answer(0.05)), Scripted(answer(0.05)))
    assert told.report.winner == "b"


def test_a_failover_waits_for_an_ask_too() -> None:
    """The only other replica is used, although nothing was leased for it when the first one failed."""
    told = run_race(
        Scripted(answer(0.05)),
        Scripted(status(0.01, 500)),
        timeouts=NO_WAIT,
        prepare=Shared(),
    )
    assert told.client.finished
    assert told.report.winner == "a"


def test_a_refusal_is_final() -> None:
    """It has the wait that the engine states."""
    told = race(Shared(left=0.0), Scripted(answer(0.05)))
    error = told.client.error
    assert error is not None
    assert error.code == "upstream_rate_limited"
    assert error.retry_after_s == pytest.approx(0.6, abs=0.01)
    assert told.end_s < 0.01


def test_no_request_waits_longer_than_the_time_limit() -> None:
    """An engine that never answers costs 90 ms; the quota is then empty, and the fallback is used."""
    primary, fallback = Scripted(answer(0.05)), Scripted(answer(0.05))
    told = race(Shared(answers_s=math.inf), primary, fallbacks=(fallback,))
    assert told.client.finished
    assert (len(primary.streams), len(fallback.streams)) == (0, 1)
    assert told.end_s == pytest.approx(0.07 + ASK_S_MAX, abs=0.003)
