"""A backup-only replica gets hedges and failovers, and a primary only while no other replica can be used."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from defaults import default_hedging
from gateway.events import Role
from pooled import Seen
from scripted import HEDGED, Scripted, Step, answer, run_race, status
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica
from ttft_gateway.routing.strategies import Routing

FACTS = RequestFacts(prompt_tokens=100.0)
LATE, QUICK = answer(5.0), answer(0.02)


def reserve(*names: str) -> Callable[[list[Pool]], None]:
    """Makes these replicas backup-only; the pools are built again, as they are from settings."""

    def prepare(pools: list[Pool]) -> None:
        for index, pool in enumerate(pools):
            for replica in pool.replicas:
                replica.backup_only = replica.name in names
            pools[index] = Pool(pool.name, pool.replicas, pool.settings)

    return prepare


def fleet(ordinary: int, backup_only: int, *, routing: Routing = Routing.PREDICTED) -> Pool:
    """Replicas o0, o1, ... and backup-only ones b0, b1, ..."""
    replicas = [Replica(f"o{number}", Scripted()) for number in range(ordinary)]
    replicas += [Replica(f"b{number}", Scripted(), backup_only=True) for number in range(backup_only)]
    return Pool("m", replicas, default_hedging(policy=Policy.OFF, routing=routing))


def picked(pool: Pool, now_s: float, tried: tuple[Replica, ...] = (), facts: RequestFacts = FACTS) -> set[str]:
    """Names of the replicas that may get the next primary or failover."""
    picks = (pool.picker.pick(facts, tried, now_s, step / 97) for step in range(97))
    return {replica.name for replica in picks if replica is not None}


def answers(pool: Pool, replica: Replica, at_s: float, ttft_s: float) -> None:
    """One whole answer of a replica."""
    attempt = Seen(replica, at_s)
    pool.on_sent(attempt, FACTS, None, is_first=True)
    attempt.content_s = at_s + ttft_s
    pool.on_content(attempt, attempt.content_s)
    pool.on_end(attempt, Outcome.FINISHED, attempt.content_s, None)


def loses(pool: Pool, replica: Replica, at_s: float, waited_s: float) -> None:
    """An attempt that is cancelled after this time without content."""
    attempt = Seen(replica, at_s)
    pool.on_sent(attempt, FACTS, None, is_first=True)
    pool.on_end(attempt, Outcome.LOST, at_s + waited_s, None)


@pytest.mark.parametrize("routing", list(Routing))
@pytest.mark.parametrize(("ordinary", "backup_only"), [(1, 1), (2, 2), (30, 1), (1, 30), (20, 20)])
def test_primaries_go_to_ordinary_replicas(routing: Routing, ordinary: int, backup_only: int) -> None:
    """Primaries and failovers stay with ordinary replicas, of small and large pools, until none can be used."""
    pool = fleet(ordinary, backup_only, routing=routing)
    everyday = pool.replicas[:ordinary]
    assert {name[0] for name in picked(pool, 1.0)} == {"o"}
    for replica in everyday[1:]:
        replica.breaker.cool_down(1e9)
    assert picked(pool, 1.0) == {"o0"}
    assert {name[0] for name in picked(pool, 1.0, tried=(everyday[0],))} == {"b"}
    everyday[0].breaker.trip(1.0)
    everyday[0].breaker.trip(1.0)
    assert {name[0] for name in picked(pool, 2.0)} == {"b"}
    assert "o0" in picked(pool, 60.0)  # the probe of its breaker


def test_a_faster_backup_only_replica_gets_no_primary() -> None:
    """Neither a lower prediction nor the wait for a recent request brings a primary."""
    pool = fleet(1, 1)
    ordinary, backup_only = pool.replicas
    for step in range(60):
        answers(pool, ordinary, step / 10, 0.5)
    answers(pool, backup_only, 6.0, 0.01)
    assert picked(pool, 60.0) == {"o0"}


def test_a_cached_prompt_in_a_large_pool_stays_with_ordinary_replicas() -> None:
    """A backup-only replica that has the prompt's prefix cached is no candidate for a primary."""
    facts = RequestFacts(prompt_tokens=1_000.0, prompt_bytes=4_000, prefixes=(1, 2, 3))
    for routing in Routing:
        pool = fleet(30, 1, routing=routing)
        pool.picker.ring.sent(pool.replicas[-1], facts.prefixes)
        pool.loads.of[pool.replicas[-1]].memory.remember(facts.prefixes, 0.0)
        assert "b0" not in picked(pool, 1.0, facts=facts)


def test_a_late_primary_is_hedged_on_it() -> None:
    """With one ordinary and one backup-only replica, a late primary gets its backup there, and no primary ever does."""
    outcome = run_race(Scripted(LATE), Scripted(QUICK), prepare=reserve("b"))
    assert [(each.replica, each.role) for each in outcome.report.attempts] == [("a", Role.PRIMARY), ("b", Role.BACKUP)]
    assert outcome.report.winner == "b"
    in_reverse = run_race(Scripted(QUICK), Scripted(QUICK), prepare=reserve("a"))
    assert [(each.replica, each.role) for each in in_reverse.report.attempts] == [("b", Role.PRIMARY)]


@pytest.mark.parametrize("hedge", [HEDGED, replace(HEDGED, policy=Policy.OFF)], ids=["hedged", "off"])
def test_a_failover_goes_there_before_a_fallback(hedge: HedgeParameters) -> None:
    """After a failure the order is: ordinary replicas, backup-only ones, fallbacks."""
    replicas = [Scripted(status(0.01, 503)), Scripted(status(0.01, 503)), Scripted(status(0.01, 503))]
    outcome = run_race(*replicas, fallbacks=[Scripted(QUICK)], prepare=reserve("a"), hedge=hedge)
    assert [each.replica for each in outcome.report.attempts] == ["b", "c", "a", "d"]


def test_a_first_attempt_there_counts_as_failover() -> None:
    """If no ordinary replica can be used, the first attempt is a failover with its own reason."""

    def prepare(pools: list[Pool]) -> None:
        reserve("b")(pools)
        pools[0].replicas[0].breaker.cool_down(100.0)

    outcome = run_race(Scripted(QUICK), Scripted(QUICK), prepare=prepare)
    [attempt] = outcome.report.attempts
    assert (attempt.replica, attempt.role, attempt.reason) == ("b", Role.FAILOVER, "no other replica is usable")


def test_its_ttft_is_learned_from_its_hedges() -> None:
    """Content of a hedge moves its level; without samples the level returns to the pool's."""
    pool = fleet(1, 1)
    ordinary, backup_only = pool.replicas
    for step in range(100):
        answers(pool, ordinary, step / 10, 0.2)
        if step % 10 == 0:
            answers(pool, backup_only, step / 10, 0.6)
    pool.learning.predictor.fold(10.5)
    assert pool.learning.predictor.levels["b0"] > 1.2
    pool.learning.predictor.fold(200.0)
    assert pool.learning.predictor.level("b0") == pytest.approx(0.0, abs=0.01)


def test_suspects_are_replaced_and_probed() -> None:
    """If every ordinary replica holds its requests, backup-only ones get the primaries, but for one in 5 s each."""
    pool = fleet(1, 1)
    ordinary, backup_only = pool.replicas
    for step in range(30):
        answers(pool, ordinary, step / 10, 0.05)
    for step in range(3):
        loses(pool, ordinary, 4.0 + step / 10, 2.0)
    assert pool.loads.is_suspect(ordinary, 7.0)
    picks = [pool.picker.pick(FACTS, (), 7.0 + step / 10, 0.5) for step in range(100)]
    assert picks.count(ordinary) == 2
    assert picks.count(backup_only) == 98
    backup_only.breaker.cool_down(100.0)
    assert pool.picker.pick(FACTS, (), 17.0, 0.5) is ordinary  # better than an error


def test_a_suspect_backup_only_replica_is_probed_by_hedges() -> None:
    """It gets no primaries, so one hedge in 5 s may show that it answers again."""
    pool = fleet(1, 1)
    ordinary, backup_only = pool.replicas
    for step in range(30):
        answers(pool, ordinary, step / 10, 0.05)
    for step in range(3):
        loses(pool, backup_only, 4.0 + step / 10, 2.0)
    assert pool.loads.is_suspect(backup_only, 7.0)
    backups = [pool.picker.backup(FACTS, ordinary, (ordinary,), 7.0 + step / 10, 0.5) for step in range(100)]
    assert [index for index, replica in enumerate(backups) if replica is backup_only] == [0, 50]


def test_round_robin_keeps_its_order() -> None:
    """The ordinary replicas of a large pool get their turns in order, as if there were no others."""
    pool = fleet(40, 3, routing=Routing.ROUND_ROBIN)
    assert [pool.picker.pick(FACTS, (), 1.0, 0.3) for _ in range(80)] == list(pool.replicas[:40]) * 2


@pytest.mark.parametrize("script", [QUICK, LATE])
def test_a_pinned_request_goes_there(script: list[Step]) -> None:
    """A request that continues an answer of a backup-only replica goes to that replica."""
    outcome = run_race(Scripted(QUICK), Scripted(script), prepare=reserve("b"), pinned=1)
    assert outcome.report.attempts[0].replica == "b"
