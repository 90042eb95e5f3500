"""Replicas that refuse what is more than they can hold, in virtual time: they are full, and not down."""

import random

import pytest

from defaults import default_hedging
from pooled import send
from running import run_virtual
from scripted import Scripted, ScriptedStream, answer, status
from traffic import poisson
from ttft_gateway.apis.base import Call, Sink
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import FAILURES_TO_OPEN, BreakerState, Replica
from ttft_gateway.routing.strategies import Routing

NAMES = ("a", "b", "c", "d")
ROOM = 16  # answers at a time
ANSWER_S = 2.0
FACTS = RequestFacts()


class Full(Scripted):
    """A replica that refuses requests while it has as many answers under way as it can hold."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self._code = code
        self.refusals = 0
        self.replica = Replica("", self)

    def open(self, call: Call, sink: Sink) -> ScriptedStream:
        is_full = self.replica.in_flight > ROOM
        self.refusals += is_full
        self.scripts = (status(0.005, self._code) if is_full else answer(0.2, gap_s=(ANSWER_S - 0.2) / 2),)
        return super().open(call, sink)


def served(code: int, in_use: float, routing: Routing = Routing.PREDICTED) -> tuple[float, float, list[BreakerState]]:
    """Return the share of callers that get an error, the refusals per request, and the states of the breakers."""
    requests = 1500

    async def main() -> tuple[float, float, list[BreakerState]]:
        rng = random.Random(1)
        endpoints = [Full(code) for _ in NAMES]
        replicas = [Replica(name, each) for name, each in zip(NAMES, endpoints, strict=True)]
        for replica, each in zip(replicas, endpoints, strict=True):
            each.replica = replica
        pool = Pool("p", replicas, default_hedging(routing=routing))
        ended = await poisson(pool, requests, in_use * len(NAMES) * ROOM / ANSWER_S, rng, settle_s=60.0)
        failed = sum(event.status != 200 for event in ended)
        refusals = sum(each.refusals for each in endpoints)
        return failed / requests, refusals / requests, [replica.breaker.state for replica in replicas]

    return run_virtual(main())


@pytest.mark.parametrize("code", [500, 503, 429])
def test_the_others_are_used_while_a_replica_is_full(code: int) -> None:
    """At 75 % of what they can hold, hardly a caller gets an error: a full replica stays in use."""
    failed, refusals, states = served(code, in_use=0.75)
    assert failed <= 0.01
    assert refusals <= 0.1
    assert set(states) == {BreakerState.CLOSED}


def test_few_requests_are_refused_while_half_of_the_room_is_free() -> None:
    """After a first refusal, equally quick replicas share the requests in flight: 0.3 % are refused; 3.9 % were."""
    failed, refusals, _ = served(429, in_use=0.5)
    assert failed == 0.0
    assert refusals <= 0.01


def test_a_queue_opens_no_breaker() -> None:
    """A timeout shows nothing while the replica gives others their first tokens; one of a silent replica counts."""
    pool = Pool("p", [Replica(name, Scripted()) for name in "ab"], default_hedging())
    breaker = pool.replicas[0].breaker
    for answered, state in ((True, BreakerState.CLOSED), (False, BreakerState.OPEN)):
        late = [send(pool, 0, 0.0 if answered else 20.0, FACTS) for _ in range(FAILURES_TO_OPEN)]
        if answered:
            pool.on_content(send(pool, 0, 0.0, FACTS), 9.0)
        for each in late:
            pool.on_end(each, Outcome.TTFT_TIMEOUT, each.start_s + 10.0, None)
        assert breaker.state is state
