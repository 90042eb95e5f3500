"""Loads of several gateways: added to the own ones, dropped when they are old; breakers and probes of all."""

import pytest

from gateway.share.loads import LoadExchange
from gateway.share.messages import GaugeAnswer
from pooled import answer, fail, send
from together import Together
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.routing.replicas import BreakerState

FACTS = RequestFacts(prompt_tokens=1_000.0)


def states(together: Together, index: int = 0) -> list[BreakerState]:
    """The breakers of one replica."""
    return [pool.replicas[index].breaker.state for pool in together.pools]


def test_loads_add_up_and_go_back() -> None:
    """Attempts and prompt tokens of others count, and leave nothing behind."""
    together = Together(3)
    mine, other, _ = together.pools
    sent = [send(mine, 0, 1.0), send(mine, 0, 1.0)]
    send(other, 0, 1.0)
    together.settle(1.0)
    for pool in together.pools:
        assert (pool.replicas[0].in_flight, pool.pending_tokens(pool.replicas[0])) == (3, 3_000.0)
    assert [pool.replicas[0].own_in_flight for pool in together.pools] == [2, 1, 0]
    assert other.loads.processes == 3
    for attempt in sent:
        answer(mine, attempt, 1.5)
    assert mine.replicas[0].in_flight == 1
    together.settle(1.5)
    assert [pool.replicas[0].in_flight for pool in together.pools] == [1, 1, 1]
    assert other.pending_tokens(other.replicas[0]) == 1_000.0


def test_the_next_request_avoids_a_replica_that_others_use() -> None:
    """A gateway without requests knows where the others have sent theirs."""
    together = Together(2)
    for now_s in (1.0, 1.1):
        for index in range(3):
            answer(together.pools[1], send(together.pools[1], index, now_s), now_s + 0.05)
    for _ in range(5):
        send(together.pools[0], 0, 2.0)
        send(together.pools[0], 1, 2.0)
    together.settle(2.0)
    picked = {together.pools[1].picker.pick(FACTS, (), 2.15, rand / 10) for rand in range(10)}
    assert together.pools[1].replicas[0] not in picked or together.pools[1].loads.processes == 2
    assert together.pools[1].replicas[0].in_flight == 5


def test_loads_that_are_too_old_are_dropped() -> None:
    """After half a second without an answer nothing of the others counts."""
    together = Together(2)
    send(together.pools[0], 0, 1.0)
    together.settle(1.0)
    assert together.pools[1].replicas[0].in_flight == 1
    part = together.parts(1)[0]
    assert part.asks(1.55, 0.1)  # the engine does not answer
    assert together.pools[1].replicas[0].in_flight == 1
    part.asks(1.65, 0.1)
    pool = together.pools[1]
    assert (pool.replicas[0].in_flight, pool.pending_tokens(pool.replicas[0]), pool.loads.processes) == (0, 0.0, 1)


def test_a_slow_exchange_shares_no_loads() -> None:
    """Loads that will be used for a second are worse than none."""
    together = Together(2)
    send(together.pools[0], 0, 1.0)
    together.exchange(1.0, period_s=1.0)
    together.exchange(2.0, period_s=1.0)
    assert together.pools[1].replicas[0].in_flight == 0


def test_failures_of_several_gateways_open_the_breaker_of_all() -> None:
    """Three failures at two gateways are enough, also for a third gateway that has met none."""
    together = Together(3)
    fail(together.pools[0], 0, 1.0)
    fail(together.pools[0], 0, 1.0)
    together.settle(1.0)
    assert states(together) == [BreakerState.CLOSED] * 3
    fail(together.pools[1], 0, 1.2)
    together.settle(1.3)
    assert states(together) == [BreakerState.OPEN] * 3


def test_failures_of_one_gateway_do_not() -> None:
    """Its own network may be broken."""
    together = Together(3)
    for _ in range(5):
        fail(together.pools[0], 0, 1.0)
    together.settle(1.0)
    assert states(together) == [BreakerState.OPEN, BreakerState.CLOSED, BreakerState.CLOSED]


def test_a_first_content_forgives_failures_elsewhere() -> None:
    """Single failures of a replica that answers never add up."""
    together = Together(3)
    for round_ in range(4):
        now_s = 1.0 + 2 * round_
        fail(together.pools[round_ % 3], 0, now_s)
        together.settle(now_s)
        answer(together.pools[2], send(together.pools[2], 0, now_s + 0.5), now_s + 0.6)
        together.settle(now_s + 0.7)
    assert states(together) == [BreakerState.CLOSED] * 3


def opened(gateways: int) -> Together:
    """Gateways with an open breaker at 1.5 s, because of failures at 1 s."""
    together = Together(gateways)
    for index in range(2):
        fail(together.pools[index], 0, 1.0)
        fail(together.pools[index], 0, 1.0)
    together.settle(1.0)
    assert states(together) == [BreakerState.OPEN] * gateways
    return together


def test_one_gateway_sends_the_probe_of_all() -> None:
    """After the wait, one breaker allows a request; its answer closes all."""
    together = opened(4)
    for step in range(60):
        together.exchange(1.2 + step / 10)
    allowing = [pool for pool in together.pools if pool.replicas[0].breaker.allows(7.2)]
    assert len(allowing) == 1
    answer(allowing[0], send(allowing[0], 0, 7.2), 7.25)
    together.settle(7.3)
    assert states(together) == [BreakerState.CLOSED] * 4
    assert together.pools[0].replicas[0].breaker.share(7.5) < 1.0


def test_without_an_engine_every_gateway_probes() -> None:
    """A probe is left to others only as long as there are answers."""
    together = opened(2)
    together.exchange(6.0)
    for part in together.parts(1):
        part.asks(7.0, 0.1)
    assert all(pool.replicas[0].breaker.allows(12.0) for pool in together.pools)


@pytest.mark.parametrize("gateways", [2, 5])
def test_late_attempts_of_several_gateways_make_a_replica_suspect(gateways: int) -> None:
    """Three late attempts in all are enough; a first content anywhere clears all."""
    together = Together(gateways)
    for pool in together.pools:
        for index in range(3):
            answer(pool, send(pool, index, 0.0), 0.01)
    together.settle(0.1)
    waiting = [send(together.pools[index % gateways], 0, 1.0) for index in range(4)]
    together.settle(2.5)
    assert all(pool.loads.is_suspect(pool.replicas[0], 2.7) for pool in together.pools)
    answer(together.pools[0], waiting[0], 2.7)
    together.settle(2.8)
    assert not any(pool.loads.is_suspect(pool.replicas[0], 2.9) for pool in together.pools)


def test_an_overdue_attempt_counts_at_all() -> None:
    """It makes a replica look slower everywhere before it is late."""
    together = Together(2)
    for pool in together.pools:
        for index in range(3):
            answer(pool, send(pool, index, 0.0), 0.01)
    send(together.pools[0], 0, 1.0)
    together.settle(1.3)
    pool = together.pools[1]
    assert pool.loads.of[pool.replicas[0]].stalls.overdue_s(1.4) == pytest.approx(0.39, abs=0.02)


def test_levels_agree() -> None:
    """A replica that is slow for the one gateway with its requests is avoided by all gateways."""
    together = Together(3)
    for step in range(60):
        now_s = step / 10
        for index in range(3):
            pool = together.pools[0 if index == 0 else step % 3]
            attempt = send(pool, index, now_s)
            answer(pool, attempt, now_s + (0.2 if index == 0 and step > 30 else 0.05))
        together.exchange(now_s + 0.3)
    levels = [pool.learning.predictor.levels["a"] for pool in together.pools]
    assert all(pool.learning.predictor.is_slow("a") for pool in together.pools)
    assert levels == [pytest.approx(4.0, rel=0.2)] * 3


def test_slow_attempts_of_all_gateways_are_one_test() -> None:
    """Eight gateways with one slow attempt each: all find the replica, and after four quick ones it is usual again."""
    together = Together(8)

    def answered(gateway: int, index: int, now_s: float, ttft_s: float) -> None:
        pool = together.pools[gateway]
        answer(pool, send(pool, index, now_s), now_s + ttft_s)

    for step in range(80):
        answered(step % 8, step % 3, step / 10, 0.05)
        together.exchange(step / 10 + 0.05)
    for gateway in range(8):
        answered(gateway, 0, 10.0 + gateway, 0.2)
        together.settle(10.2 + gateway)
    assert all(pool.learning.predictor.is_slow("a") for pool in together.pools)
    newcomer = together.join()
    together.settle(18.5)
    assert not newcomer.learning.predictor.is_slow("a")  # attempts from before are no new evidence
    for gateway in range(4):
        answered(gateway, 0, 20.0 + gateway, 0.05)
        together.settle(20.2 + gateway)
    assert not any(pool.learning.predictor.is_slow("a") for pool in together.pools)


def test_the_usual_replica_of_a_prefix_is_the_same_at_all() -> None:
    """A gateway that has not seen a prefix expects it where the others send it; a gateway alone expects nothing."""
    facts = RequestFacts(prompt_tokens=1_000.0, prompt_bytes=4_000, prefixes=(11, 22, 33))
    together = Together(2)
    alone = together.pools[0]
    assert {alone.loads.uncached(facts, replica, 0.0) for replica in alone.replicas} == {1_000.0}
    together.settle(0.0)
    for pool in together.pools:
        expected = [pool.loads.uncached(facts, replica, 0.2) for replica in pool.replicas]
        assert sorted(expected) == [500.0, 1_000.0, 1_000.0]
    first, second = ([pool.loads.uncached(facts, replica, 0.2) for replica in pool.replicas] for pool in together.pools)
    assert first == second


def test_rejections_are_judged_by_each_gateway_and_acquitted_by_all() -> None:
    """A breaker that is open because of rejections is no failure for the others; an answer elsewhere acquits."""
    together = Together(3)
    for pool in together.pools[:2]:
        judge = pool.rejections(pool.replicas[0])
        for number in range(3):
            judge.on_rejected(number, "key", (judge,), 1.0, disproved=False)
    together.settle(1.0)
    fail(together.pools[2], 0, 1.2)
    together.settle(1.2)
    assert states(together) == [BreakerState.OPEN, BreakerState.OPEN, BreakerState.CLOSED]
    answer(together.pools[2], send(together.pools[2], 0, 2.0), 2.1)
    together.settle(2.1)
    for pool in together.pools[:2]:
        assert pool.rejections(pool.replicas[0]).requests == {}
        assert pool.replicas[0].breaker.allows(2.8)


def test_pools_without_changes_are_exchanged_less_often() -> None:
    """Every 300 ms, and with the next period after a change here; the loads of the others are never too old."""
    together = Together(2)
    mine, other = (
        next(part for part in together.parts(process) if isinstance(part, LoadExchange)) for process in (0, 1)
    )
    asked: list[int] = []
    for number in range(100):
        now_s = 1.0 + 0.1 * number
        if number == 60:
            send(together.pools[0], 0, now_s)
        for process, part in enumerate((mine, other)):
            if asks := part.asks(now_s, 0.1):
                asked += [number] * (1 - process)
                part.answered(together.hub.answer(now_s, str(process), asks).answers, now_s)
            assert number < 1 or part.are_known
    assert 60 in asked
    assert other.pool.replicas[0].in_flight == 1
    assert 100 / 3 <= len(asked) <= 1.2 * 100 / 3


def test_loads_that_have_not_changed_are_not_returned() -> None:
    """They stay in force, also after an ask without an answer."""
    together = Together(2)
    mine, other = (
        next(part for part in together.parts(process) if isinstance(part, LoadExchange)) for process in (0, 1)
    )
    send(together.pools[1], 0, 1.0)

    def exchange(part: LoadExchange, process: str, now_s: float) -> bool:
        asks = part.asks(now_s, 0.1)
        answers = together.hub.answer(now_s, process, asks).answers
        part.answered(answers, now_s)
        assert isinstance(answers[0], GaugeAnswer)
        return answers[0].others is None

    exchange(other, "1", 1.0)
    assert not exchange(mine, "0", 1.0)
    assert not exchange(mine, "0", 1.1)  # the credits of the start are divided
    assert exchange(mine, "0", 1.4)
    assert together.pools[0].replicas[0].in_flight == 1
    assert mine.asks(1.7, 0.1)
    assert exchange(mine, "0", 2.0)
    assert together.pools[0].replicas[0].in_flight == 1
    send(together.pools[0], 1, 2.05)
    assert not exchange(mine, "0", 2.05)


def test_a_quiet_pool_reports_nothing_new() -> None:
    """Its rows are the same object until a request, an answer, a failure or another gateway changes something."""
    together = Together(2)
    mine, other = together.pools
    loads = together.parts(0)[0]
    assert isinstance(loads, LoadExchange)
    for index in range(3):
        answer(mine, send(mine, index, 1.0), 1.1)
    for step in range(30):
        together.exchange(1.2 + step)
    quiet = loads.own(32.0)
    assert loads.own(33.5) is quiet
    attempt = send(mine, 0, 34.0)
    together.exchange(34.1)
    assert other.replicas[0].in_flight == 1
    answer(mine, attempt, 34.2)
    together.settle(34.3)
    assert other.replicas[0].in_flight == 0
    fail(mine, 1, 35.0)
    fail(other, 1, 35.0)
    fail(other, 1, 35.0)
    together.settle(35.1)
    assert states(together, 1) == [BreakerState.OPEN] * 2
    assert loads.own(35.3) is not quiet


def test_loads_of_a_quiet_pool_are_replaced_after_a_pause() -> None:
    """What others report counts again after it was too old, also if it has not changed meanwhile."""
    together = Together(2)
    send(together.pools[0], 0, 1.0)
    together.settle(1.0)
    for now_s in (1.7, 1.8):
        together.parts(1)[0].asks(now_s, 0.1)  # without an answer
    assert together.pools[1].replicas[0].in_flight == 0
    together.settle(1.9)
    assert together.pools[1].replicas[0].in_flight == 1
