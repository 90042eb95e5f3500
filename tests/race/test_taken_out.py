"""A replica that is taken out gets no new attempt of any kind; its streams under way continue."""

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from defaults import default_hedging
from gateway.race.race import Race
from scripted import HEDGED, Outcome, RecordingClient, Scripted, Step, answer, run_race, status, text
from ttft_gateway.apis.base import Api
from ttft_gateway.apis.errors import ConnectionCut
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.picker import Picker
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica
from ttft_gateway.routing.strategies import Routing

LATE, QUICK = answer(5.0), answer(0.02)
DOWN = status(0.01, 503)
EMBEDDING = RequestFacts(api=Api.EMBEDDINGS)


def take_out(*names: str) -> Callable[[list[Pool]], None]:
    """Takes these replicas out."""

    def change(pools: list[Pool]) -> None:
        for pool in pools:
            for replica in pool.replicas:
                if replica.name in names:
                    pool.switch(replica, 0.0, out=True)

    return change


def later(at_s: float, *names: str) -> Callable[[Race, RecordingClient, list[Pool]], object]:
    """Takes these replicas out at a time."""
    return lambda _race, _client, pools: asyncio.get_running_loop().call_later(at_s, take_out(*names), pools)


def used(outcome: Outcome) -> str:
    """Names of the replicas of all attempts, in order."""
    return " ".join(attempt.replica for attempt in outcome.report.attempts)


@pytest.mark.parametrize(
    ("scripts", "out", "expected"),
    [
        ([QUICK, QUICK, QUICK], "a", "b"),  # primary
        ([LATE, QUICK, QUICK], "b", "a c"),  # hedge
        ([DOWN, QUICK, QUICK], "b", "a c"),  # failover
        ([QUICK, QUICK, QUICK], "a b c", "d"),  # a fallback has the rest
        ([DOWN, QUICK, QUICK], "b c", "a a d"),  # the quick retry of the only replica left, then the fallback
        ([DOWN, DOWN, DOWN], "d", "a b c a"),  # and the first one again, after a pause
    ],
)
def test_nothing_new_is_sent(scripts: list[list[Step]], out: str, expected: str) -> None:
    """Primaries, hedges, failovers and fallbacks skip a replica that is out."""
    replicas = [Scripted(script) for script in scripts]
    outcome = run_race(*replicas, fallbacks=[Scripted(QUICK)], prepare=take_out(*out.split()))
    assert used(outcome) == expected


@pytest.mark.parametrize("routing", list(Routing))
@pytest.mark.parametrize("size", [3, 40])
def test_every_strategy_skips_it(routing: Routing, size: int) -> None:
    """No strategy picks it, not even as the last resort or as the holder of a cached prompt."""
    replicas = [Replica(f"r{number}", Scripted()) for number in range(size)]
    pool = Pool("m", replicas, default_hedging(policy=Policy.OFF, routing=routing))
    facts = RequestFacts(prompt_tokens=100.0, prompt_bytes=400, prefixes=(1, 2))
    pool.picker.ring.sent(replicas[1], facts.prefixes)
    pool.loads.of[replicas[1]].memory.remember(facts.prefixes, 0.0)
    pool.switch(replicas[1], 0.0, out=True)
    picks = {pool.picker.pick(facts, (), 20.0, rand / 50) for rand in range(50)}
    assert replicas[1] not in picks
    assert None not in picks
    for each in replicas[2:]:
        pool.switch(each, 0.0, out=True)
    replicas[0].breaker.trip(20.0)
    replicas[0].breaker.trip(20.0)
    assert pool.picker.pick(facts, (), 20.0, 0.5) is None
    assert pool.picker.pick_ignoring_breakers(facts, (), 20.0, 0.5) is replicas[0]


def test_a_stream_under_way_continues() -> None:
    """A replica that is taken out in the middle of its answer brings the whole answer."""
    script: list[Step] = [*answer(0.02)[:-1], (3.0, text("end")), (3.1, None)]
    outcome = run_race(Scripted(script), Scripted(QUICK), during=later(1.0, "a"))
    assert outcome.client.finished
    assert b"end" in outcome.client.got
    assert used(outcome) == "a"


def test_it_may_still_win_the_race() -> None:
    """An attempt that waits for its first content is not cancelled; its backup goes elsewhere."""
    outcome = run_race(Scripted(answer(0.3)), Scripted(LATE), Scripted(LATE), during=later(0.05, "a", "b"))
    assert used(outcome) == "a c"
    assert outcome.report.winner == "a"


@pytest.mark.parametrize("retry_after_s", [None, 1.0])
def test_it_is_not_tried_again(retry_after_s: float | None) -> None:
    """A replica that is taken out before its own retry does not get the retry."""
    down = status(0.01, 503, retry_after_s=retry_after_s)
    outcome = run_race(Scripted(down), fallbacks=[Scripted(QUICK)], during=later(0.03, "a"))
    assert used(outcome) == "a b"


def test_a_cut_stream_is_not_continued_there() -> None:
    """A recovery goes to another replica, although the one that cut the stream is healthy."""
    cut: list[Step] = [(0.01, "headers"), (0.02, text("a")), (0.1, ConnectionCut("cut"))]
    outcome = run_race(Scripted(cut, QUICK), streaming=False, during=later(0.05, "a"))
    assert used(outcome) == "a"
    assert outcome.client.error is not None


def test_a_pinned_request_goes_elsewhere() -> None:
    """A request that continues an answer of a replica that is out goes to another one."""
    outcome = run_race(Scripted(QUICK), Scripted(QUICK), pinned=1, prepare=take_out("b"))
    assert used(outcome) == "a"


def test_no_replica_for_the_api() -> None:
    """If every replica that supports the API is out, the client gets a 502, not a rate limit."""
    apis = [frozenset(Api), frozenset({Api.CHAT})]
    outcome = run_race(Scripted(QUICK), Scripted(QUICK), apis=apis, facts=EMBEDDING, prepare=take_out("a"))
    assert outcome.client.error is not None
    assert (outcome.client.error.status, outcome.client.error.code) == (502, "upstream_error")
    assert outcome.report.beyond_boundary == ()


def test_a_rate_limit_elsewhere_is_no_wait_for_it() -> None:
    """A replica that is out is not waited for, and its readiness hides no Retry-After of another one."""

    def prepare(pools: list[Pool]) -> None:
        take_out("a")(pools)
        pools[0].replicas[1].breaker.cool_down(60.0)

    outcome = run_race(Scripted(QUICK), Scripted(QUICK), prepare=prepare)
    assert outcome.client.error is not None
    assert (outcome.client.error.status, outcome.client.error.retry_after_s) == (429, 60.0)


def test_a_broken_router_skips_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica that is taken when routing raises is not one that is out."""

    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(Picker, "pick", broken)
    outcome = run_race(Scripted(QUICK), Scripted(QUICK), prepare=take_out("a"), hedge=replace(HEDGED, budget=0.0))
    assert used(outcome) == "b"


def test_it_returns_with_a_slow_start() -> None:
    """A replica that is taken in gets a tenth of its share of primaries at first, all of it after 10 s."""
    replicas = [Replica(name, Scripted()) for name in "ab"]
    pool = Pool("m", replicas, default_hedging(policy=Policy.OFF, routing=Routing.LEAST_IN_FLIGHT))
    pool.switch(replicas[0], 0.0, out=True)
    pool.switch(replicas[0], 100.0, out=False)
    for now_s, share in ((100.0, 0.05), (105.0, 0.25), (110.0, 0.5)):
        picks = [pool.picker.pick(RequestFacts(), (), now_s, (step + 0.5) / 200) for step in range(200)]
        assert picks.count(replicas[0]) == pytest.approx(200 * share, abs=2)
