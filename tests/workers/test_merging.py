"""The states of several workers as the state of one gateway."""

import msgspec
from msgspec.structs import replace

from gateway.observe.instruments import Instruments
from gateway.observe.process import ProcessValue
from gateway.observe.recorder import Recorder
from gateway.observe.state import LeaseState, LimitState, MismatchState, QuotaState, ShareState
from gateway.observe.usage import UsageTable
from gateway.proof.tally import Group, Tally, merged_tallies
from gateway.workers.merging import (
    merged_admission,
    merged_description,
    merged_learned,
    merged_pools,
    merged_process,
    merged_share,
)
from pooled import pool as make_pool
from pooled import send
from sample_events import ADMISSION, EVENTS, pool
from ttft_gateway.estimation.tokens import TokenScale
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.pool.learned import LearnedModel, LearnedPool, learned_pool, restore_pool
from ttft_gateway.pool.pool import Pool


def test_pools_add_up() -> None:
    """Amounts are added, the worst breaker counts, and quantiles come from the worker with the most samples."""
    first = pool("m")
    busy = replace(first.replicas[0], in_flight=4, breaker="half_open", samples=900, ttft_p50_s=0.3)
    second = replace(first, hedging_on=False, replicas=(busy, *first.replicas[1:]))
    [merged] = merged_pools([[first], [second]])
    assert not merged.hedging_on
    assert merged.budget_level == 2 * first.budget_level
    replica = merged.replicas[0]
    assert (replica.in_flight, replica.breaker, replica.samples) == (7, "half_open", 900)
    assert replica.ttft_p50_s == 0.3
    assert len(merged.replicas) == len(first.replicas)


def test_limits_count_what_all_workers_have_spent() -> None:
    """Each worker counts all: the least that is left of a limit counts; of limits in responses, the newest."""
    limit = LimitState("requests", 60.0, 100.0, 90.0, observed=False, enforced=True, age_s=None)
    late = replace(limit, left=80.0)
    seen = replace(limit, resource="tokens", observed=True, enforced=False, age_s=5.0, left=20.0, others_s=2.0)
    newer = replace(seen, age_s=1.0, left=30.0, others_s=1.0)
    states = [
        replace(pool("m"), quotas=(QuotaState("q", cooling_s, limits, 10, 6, 4),))
        for cooling_s, limits in ((0.0, (limit, seen)), (2.5, (late, newer)))
    ]
    [merged] = merged_pools([[state] for state in states])
    [quota] = merged.quotas
    assert [(each.left, each.others_s) for each in quota.limits] == [(80.0, 0.0), (30.0, 2.0)]
    assert (quota.cooling_s, quota.reserved, quota.settled, quota.released) == (2.5, 20, 12, 8)


def test_admission_adds_up() -> None:
    """Requests, queues and bytes are added; of a key's rates the least is left."""
    key = replace(ADMISSION.keys[0], requests_left=9)
    merged = merged_admission([ADMISSION, replace(ADMISSION, keys=(key,))])
    [model], [key] = merged.models, merged.keys
    assert (model.in_flight, model.waiting, model.waiting_by_key) == (16, 6, {"team-a": 4, "team-b": 2})
    assert (key.in_flight, key.requests_left, key.tokens_left) == (20, 9, None)
    assert merged.body_bytes == 2 * ADMISSION.body_bytes


def test_values_of_processes_add_up() -> None:
    """CPU time and memory are added, the start is the first process's."""
    names = {"process_cpu_seconds": 5.0, "process_start_time_seconds": 2.0, "ttft_gateway_build_info": 1.0}
    rows = [[ProcessValue(name, "", "gauge", value + more) for name, value in names.items()] for more in (0.0, 0.5)]
    assert [value.value for value in merged_process(rows)] == [10.5, 2.0, 1.5]


def test_counters_and_usage_add_up_after_the_channel() -> None:
    """What two processes count, encoded and added, is what one process counts of all their events."""
    one, added = Instruments(), Instruments()
    both, usage = UsageTable(), UsageTable()
    recorder = Recorder(one, both)
    for _ in range(2):
        own, own_usage = Instruments(), UsageTable()
        recorder.on_events(EVENTS)
        Recorder(own, own_usage).on_events(EVENTS)
        for target, dump in ((added, own.dump()), (usage, own_usage.dump())):
            target.add(msgspec.msgpack.decode(msgspec.msgpack.encode(dump), type=_kind(dump)))
    assert _lines(added) == _lines(one)
    assert usage.report().rows == both.report().rows


def _kind(dump: object) -> object:
    return dict[str, list[tuple[tuple[str, ...], list[float]]]] if isinstance(dump, dict) else type(dump)


def _lines(instruments: Instruments) -> list[tuple[str, dict[str, str], float]]:
    return [
        (name, labels, round(value, 9))
        for family in instruments.families()
        for name, labels, value in filter(None, family.lines())
    ]


def test_descriptions_add_up() -> None:
    """The description of a model has sums of what is under way, and estimates of the busiest worker."""
    replica = {
        "replica": "a",
        "ttft_ms": {"samples": 3, "p50": 100.0},
        "out": False,
        "breaker": "closed",
        "suspect": False,
        "in_flight": 1,
        "pending_prompt_tokens": 10,
    }
    row = {
        "pool": "m",
        "hedging": "on",
        "budget": {"share": 0.1, "requests": {"level": 1.5, "cap": 2.0}},
        "ttft_x": {"samples": 3},
        "quotas": [{"quota": "q", "cooling_s": 0.0, "tokens": {"reserved": 5}}],
        "replicas": [replica],
    }
    other = {**row, "ttft_x": {"samples": 9}, "hedging": "off"}
    other["replicas"] = [{**replica, "ttft_ms": {"samples": 9, "p50": 70.0}, "breaker": "open"}]
    merged = merged_description([{"model": "m", "pools": [row]}, {"model": "m", "pools": [other]}])
    assert merged is not None
    [shown] = merged["pools"]
    assert (shown["hedging"], shown["budget"]["requests"]) == ("off", {"level": 3.0, "cap": 4.0})
    assert shown["quotas"][0]["tokens"] == {"reserved": 10}
    [both] = shown["replicas"]
    assert (both["ttft_ms"]["p50"], both["in_flight"], both["breaker"]) == (70.0, 2, "open")
    assert merged_description([]) is None


def _learned(pool: Pool) -> dict[str, LearnedModel]:
    state = list(learned_pool(pool, 100.0))[-1]
    assert isinstance(state, LearnedPool)
    return {"m": LearnedModel(TokenScale().state, {pool.name: state})}


def _taught(times_s: list[float]) -> Pool:
    pool = make_pool(None, None)
    for number, ttft_s in enumerate(times_s):
        attempt = send(pool, number % 2, 90.0)
        attempt.content_s = 90.0 + ttft_s
        pool.on_content(attempt, attempt.content_s)
        pool.on_end(attempt, Outcome.FINISHED, attempt.content_s, None)
    return pool


def test_the_state_of_several_workers_is_no_sum() -> None:
    """Each has what all have exchanged; the times of a replica come from the worker with the most."""
    few, many = _learned(_taught([0.1] * 3)), _learned(_taught([0.2] * 40))
    [merged] = merged_learned([few, many, {}])["m"].pools.values()
    assert [merged] == list(many["m"].pools.values())
    [again] = merged_learned([many] * 8)["m"].pools.values()
    assert again == merged
    pool = make_pool(None, None)
    assert restore_pool(pool, merged, 0.0, 100.0)
    assert pool.learning.ttft["a"].count(100.0) == 20


def test_a_slow_replica_of_one_worker_is_kept() -> None:
    """The worker with the most evidence counts, also if another one has the most requests."""
    busy, other = _taught([0.2] * 40), _taught([0.2] * 30)
    predictor = other.learning.predictor
    for each in (busy, other):
        each.learning.predictor.fold(91.0)
    for replica in 8 * "ab":
        predictor.add(replica, 0.2 if replica == "a" else 2.0, 100.0, 0.0, 92.0)
    busy.learning.predictor.add("a", 0.2, 100.0, 0.0, 92.0)
    busy.learning.predictor.add("b", 0.2, 100.0, 0.0, 92.0)
    busy.learning.predictor.fold(93.0)
    predictor.fold(93.0)
    assert [pool.learning.predictor.is_slow("b") for pool in (busy, other)] == [False, True]
    [merged] = merged_learned([_learned(busy), _learned(other)])["m"].pools.values()
    pool = make_pool(None, None)
    assert restore_pool(pool, merged, 0.0, 100.0)
    assert pool.learning.predictor.is_slow("b")


def test_late_attempts_of_all_workers_count() -> None:
    """Two workers with two late attempts each: after the restart the replica is suspect."""
    workers = _taught([0.2] * 40), _taught([0.2] * 30)
    for worker in workers:
        for _ in range(2):
            worker.on_end(send(worker, 0, 92.0), Outcome.LOST, 98.0, None)
    [merged] = merged_learned([_learned(worker) for worker in workers])["m"].pools.values()
    assert merged.replicas["a"].late == 3
    after = make_pool(None, None)
    assert restore_pool(after, merged, 0.0, 100.0)
    assert [each.loads.is_suspect(each.replicas[0], 100.0) for each in (*workers, after)] == [False, False, True]


def test_a_replica_with_another_source_is_another_one() -> None:
    """Its times at the worker with another address do not count."""
    [old] = _learned(_taught([0.1] * 8))["m"].pools.values()
    [new] = _learned(_taught([0.2] * 20))["m"].pools.values()
    moved = replace(new.replicas["a"], source="http://elsewhere")
    new = replace(new, replicas={**new.replicas, "a": moved})
    states = [{"m": LearnedModel(TokenScale().state, {"m": pool})} for pool in (old, new)]
    [merged] = merged_learned(states)["m"].pools.values()
    assert merged.replicas["a"] == moved


def test_the_exchange_is_that_of_the_worker_in_trouble() -> None:
    """Leases add up, debts do not; a worker with its engine away is shown, else the worker with the oldest exchange."""
    first = ShareState(
        "redis", True, 9.0, None, 0.1, 0.1, 4, None, "share", 0.225, (LeaseState("key:a:requests", 2.5, 1.0),)
    )
    second = replace(first, exchange_age_s=3.0, processes=3, mismatches=(MismatchState("key:a:requests", 9, 5),))
    merged = merged_share([first, second])
    assert merged == replace(second, processes=4, leases=(LeaseState("key:a:requests", 5.0, 1.0),))
    merged = merged_share([replace(first, processes=3, away_part=0.3), second])
    assert merged is not None
    assert merged.away_part == 0.3
    away = replace(first, up=False, fault="Connection refused")
    merged = merged_share([away, second])
    assert merged is not None
    assert (merged.up, merged.fault) == (False, "Connection refused")
    assert merged_share([]) is None


def test_counts_of_hedging_add_up() -> None:
    """Counts of an ended worker are added too, unless they are of another SLO; no counts are changed."""
    first, second, other = Tally(2.0, 10.0), Tally(2.0, 10.0), Tally(3.0, 10.0)
    for tally in (first, second, other):
        tally.add(Group.SAME, 0.5)
    total = merged_tallies([{"m": first}, {"m": second}, {"m": other}, {"n": other}])
    assert {model: tally.requests for model, tally in total.items()} == {"m": 2, "n": 1}
    assert first.requests == 1
    assert not merged_tallies([])
