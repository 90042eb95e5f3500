"""The second round after a fault that all replicas share for a moment, and what stops it; in virtual time."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from defaults import default_hedging, default_timeouts
from gateway.race.context import Caller, Model, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.race.race import Race
from running import run_virtual
from scripted import RecordingClient, Scripted, ScriptedStream, Step, answer, bare_status, run_race, status
from ttft_gateway.apis.base import Api, Call, Sink
from ttft_gateway.apis.errors import BadStatus, ConnectError, ConnectionCut
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import BreakerState, Replica

OFF = default_hedging(policy=Policy.OFF)
GOOD = answer(0.05)
DOWN = status(0.01, 500)
SLOW = status(1.1, 500)
LASTING = status(0.01, 501)
CUT: list[Step] = [(0.01, ConnectionCut("cut"))]
REFUSED: list[Step] = [(0.0, ConnectError("refused"))]
FINAL: list[Step] = [(0.01, BadStatus("no", status=500, should_retry=False))]


class Case(NamedTuple):
    """Scripts of the pool's replicas and of a fallback, and what comes of them.

    Attributes:
        attempts: names of the replicas asked, in order.
        end_s: time of the first content or of the error.
        should_retry: `x-should-retry` of the error; "answered" without an error.
    """

    replicas: Sequence[Sequence[list[Step]]]
    attempts: str
    end_s: float
    should_retry: bool | str | None = "answered"
    fallback: Sequence[list[Step]] = ()
    facts: RequestFacts = RequestFacts()


CASES = {
    "both blip once": Case([[DOWN, GOOD], [DOWN, GOOD]], "aba", 0.02 + 0.3 + 0.05),
    "both are cut once": Case([[CUT, GOOD], [CUT, GOOD]], "aba", 0.02 + 0.3 + 0.05),
    "both refuse a connection once": Case([[REFUSED, GOOD], [REFUSED, GOOD]], "aba", 0.3 + 0.05),
    "one goes on failing": Case([[DOWN], [DOWN, GOOD]], "abab", 0.02 + 0.3 + 0.01 + 0.05),
    "both go on failing": Case([[DOWN], [DOWN]], "abab", 0.02 + 0.3 + 0.02, should_retry=False),
    "the only one, its quick retry included": Case([[DOWN, DOWN, GOOD]], "aaa", 0.01 + 0.05 + 0.01 + 0.3 + 0.05),
    "three": Case([[DOWN, GOOD], [DOWN], [DOWN]], "abca", 0.03 + 0.3 + 0.05),
    "a fallback works": Case([[DOWN], [DOWN]], "abc", 0.02 + 0.05, fallback=[GOOD]),
    "a fallback of one replica blips, too": Case([[DOWN], [DOWN]], "abcc", 0.03 + 0.05 + 0.05, fallback=[DOWN, GOOD]),
    "one of them for good": Case([[status(0.01, 401)], [DOWN, GOOD]], "abb", 0.02 + 0.3 + 0.05),
    "one of them by mistake": Case([[bare_status(0.01, 403)], [DOWN, GOOD]], "abb", 0.02 + 0.3 + 0.05),
    "what is not transient": Case([[LASTING], [LASTING]], "ab", 0.02, should_retry=False),
    "a replica that forbids it": Case([[FINAL], [FINAL]], "ab", 0.02, should_retry=False),
    "for longer than a second": Case([[SLOW], [SLOW]], "ab", 2.2, should_retry=False),
    "a key with two attempts": Case(
        [[DOWN], [DOWN]], "ab", 0.02, should_retry=None, facts=RequestFacts(attempts_max=2)
    ),
    "a caller that leaves before": Case(
        [[DOWN], [DOWN]], "ab", 0.02, should_retry=None, facts=RequestFacts(deadline_s=0.3)
    ),
    "a caller that leaves after": Case(
        [[DOWN, GOOD], [DOWN]], "aba", 0.02 + 0.3 + 0.05, facts=RequestFacts(deadline_s=0.4)
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_second_round(case: Case) -> None:
    """After transient failures of all replicas each one is asked again; an SDK may retry unless that is useless."""
    fallbacks = [Scripted(*case.fallback)] if case.fallback else []
    told = run_race(
        *(Scripted(*scripts) for scripts in case.replicas), fallbacks=fallbacks, hedge=OFF, facts=case.facts
    )
    assert "".join(attempt.replica for attempt in told.report.attempts) == case.attempts
    error = told.client.error
    assert (error.should_retry if error is not None else "answered") == case.should_retry
    assert (told.report.ttft_s or told.end_s) == pytest.approx(case.end_s, abs=1e-3)


def test_a_whole_answer_that_is_cut_twice_is_asked_for_again() -> None:
    """A caller of a whole answer has received nothing, so a cut in the middle of it is a transient failure as well."""
    cut: list[Step] = [*answer(0.01)[:4], (0.03, ConnectionCut("cut"))]
    told = run_race(Scripted(cut, GOOD), Scripted(cut), hedge=OFF, streaming=False)
    assert told.client.finished
    assert "".join(attempt.replica for attempt in told.report.attempts) == "aba"


def test_a_replica_that_is_taken_out_is_left_out() -> None:
    """The operator's switch holds for the second round as well."""

    def during(_race: Race, _client: RecordingClient, pools: list[Pool]) -> None:
        first, _ = pools[0].replicas
        asyncio.get_running_loop().call_later(0.1, lambda: pools[0].switch(first, 0.1, out=True))

    told = run_race(Scripted(DOWN, GOOD), Scripted(DOWN, GOOD), hedge=OFF, during=during)
    assert "".join(attempt.replica for attempt in told.report.attempts) == "abb"


class Blip(Scripted):
    """An endpoint that answers, except in the 200 ms after ten seconds."""

    def open(self, call: Call, sink: Sink) -> ScriptedStream:
        """Answer by the time instead of by the number of the request."""
        self.scripts = (DOWN if 10.0 <= asyncio.get_running_loop().time() < 10.2 else GOOD,)
        return super().open(call, sink)


async def _crowd(pool: Pool, arrivals_s: Sequence[float]) -> list[RecordingClient]:
    """Send one request at each time; return the clients."""
    loop = asyncio.get_running_loop()
    model = Model("m", [pool], default_timeouts())
    runtime = Runtime(loop, lambda _event: None, lambda: 0.5, TimerQueue(loop))
    call = Call(Api.CHAT, b"{}", {}, 1, "m", streaming=True)
    clients: list[RecordingClient] = []
    for number, at_s in enumerate(arrivals_s):
        await asyncio.sleep(max(0.0, at_s - loop.time()))
        clients.append(RecordingClient())
        Race(model, call, RequestFacts(), clients[-1], Caller(f"r{number}", "key", loop.time()), runtime).start()
    for client in clients:
        await client.over.wait()
    return clients


def test_a_crowd_gets_over_a_blip() -> None:
    """A blip of 200 ms opens all breakers; no caller gets an error during the blip or in the seconds after it."""

    async def main() -> None:
        replicas = [Replica(name, Blip()) for name in "ab"]
        pool = Pool("m", replicas, OFF)
        async with asyncio.TaskGroup() as tasks:
            crowd = tasks.create_task(_crowd(pool, [0.02 * n for n in range(800)]))
            await asyncio.sleep(10.19)
            assert {replica.breaker.state for replica in replicas} == {BreakerState.OPEN}
        assert {client.error for client in crowd.result()} == {None}

    run_virtual(main())


def test_an_outage_gets_no_second_rounds() -> None:
    """With everything down, attempts are within the retry budget, and after a second each error comes immediately."""

    async def main() -> None:
        replicas = [Scripted(DOWN), Scripted(DOWN)]
        pool = Pool("m", [Replica(str(number), replica) for number, replica in enumerate(replicas)], OFF)
        clients = await _crowd(pool, [0.05 * n for n in range(600)])
        attempts = sum(len(replica.streams) for replica in replicas)
        assert all(client.error is not None for client in clients)
        assert len(clients) < attempts <= 1.2 * len(clients) + 30 + 10
        assert asyncio.get_running_loop().time() < 0.05 * 599 + 0.1

    run_virtual(main())
