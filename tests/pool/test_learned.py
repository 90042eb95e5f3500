"""The learned state as a document: what a restart keeps, for which replicas, and for how long."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import pytest

from defaults import default_hedging
from pooled import send
from scripted import Scripted
from ttft_gateway.apis.base import Api, Usage
from ttft_gateway.estimation.tokens import TokenScale, TokenScaleState
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.learned import AGE_S_MAX, LearnedPool, learned_pool, restore_pool
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

FACTS = RequestFacts(prompt_tokens=1_000.0)
SOURCES = MappingProxyType({"a": "A", "b": "B"})
SAVED_S = 1_000.0
ELAPSED_S = 5.0
STARTED_S = 3.0  # of the new process's clock, which has nothing to do with the old one's


def fleet(policy: Policy = Policy.ADAPTIVE, sources: Mapping[str, str] = SOURCES) -> Pool:
    """Idle replicas with these names and sources."""
    replicas = [Replica(name, Scripted(), source=source) for name, source in sources.items()]
    return Pool("m", replicas, default_hedging(policy=policy))


def experienced(policy: Policy = Policy.ADAPTIVE, requests: int = 200) -> Pool:
    """Two replicas after a minute of traffic: one request in ten is slow, and b takes half as long again as a."""
    pool = fleet(policy)
    for number in range(requests):
        start_s = SAVED_S - 60.0 + 60.0 / requests * number
        answer(pool, number % 2, start_s, (0.2 + 0.1 * (number % 2)) * (5.0 if number % 20 < 2 else 1.0))
    return pool


def answer(pool: Pool, index: int, start_s: float, ttft_s: float) -> None:
    """One whole answer."""
    attempt = send(pool, index, start_s, FACTS)
    pool.delay_s(attempt, FACTS)
    attempt.content_s = start_s + ttft_s
    pool.on_content(attempt, attempt.content_s)
    pool.on_end(attempt, Outcome.FINISHED, attempt.content_s, None)


def saved(pool: Pool, now_s: float = SAVED_S) -> LearnedPool:
    """Its state, by way of a file."""
    *_, state = learned_pool(pool, now_s)
    return msgspec.json.decode(msgspec.json.encode(state), type=LearnedPool)


def delay_s(pool: Pool, index: int, now_s: float) -> float:
    """Hedge delay of a request that nothing else competes with."""
    attempt = send(pool, index, now_s, FACTS)
    delay_s = pool.delay_s(attempt, FACTS)
    pool.on_end(attempt, Outcome.CLIENT_GONE, now_s, None)
    return delay_s


@pytest.mark.parametrize("policy", [Policy.ADAPTIVE, Policy.QUANTILE])
def test_a_restart_keeps_the_hedge_delay(policy: Policy) -> None:
    """The first request after a restart is hedged as after a pause of the same length, not as at a cold start."""
    before, after = experienced(policy), fleet(policy)
    learned = saved(before)
    assert delay_s(after, 0, STARTED_S) == default_hedging().cold_start_delay_s
    assert restore_pool(after, learned, ELAPSED_S, STARTED_S)
    for index in range(2):
        paused_s = delay_s(before, index, SAVED_S + ELAPSED_S)
        assert paused_s < 2.0
        assert delay_s(after, index, STARTED_S) == pytest.approx(paused_s, rel=0.05)
    assert after.learning.restored_age_s == pytest.approx(ELAPSED_S, abs=1.0)


def test_a_few_samples_are_kept_too() -> None:
    """A restart during the first 20 requests continues to count; the plan begins after the 20th."""
    after = fleet()
    assert restore_pool(after, saved(experienced(requests=15)), ELAPSED_S, STARTED_S)
    for number in range(4):
        answer(after, 0, STARTED_S + number, 0.2)
    assert delay_s(after, 0, STARTED_S + 5.0) == default_hedging().cold_start_delay_s
    answer(after, 0, STARTED_S + 6.0, 0.2)
    assert delay_s(after, 0, STARTED_S + 7.0) < 2.0


def test_old_samples_give_way_to_new_ones() -> None:
    """Restored samples leave the windows as in a process that has not ended: once 100 newer ones are there."""
    after = fleet()
    assert restore_pool(after, saved(experienced()), ELAPSED_S, STARTED_S)
    for number in range(260):
        answer(after, number % 2, STARTED_S + 0.5 * number, 2.0)
    assert after.learning.ttft["a"].quantile(0.01, STARTED_S + 130.0) == pytest.approx(2.0, rel=0.02)


def test_a_level_fades_while_the_gateway_is_down() -> None:
    """A replica's slow phase is forgotten after minutes, also without a process that measures time."""
    learned = saved(experienced())
    soon, later = fleet(), fleet()
    assert restore_pool(soon, learned, 1.0, STARTED_S)
    assert restore_pool(later, learned, 300.0, STARTED_S)
    levels = [pool.learning.predictor.levels for pool in (soon, later)]
    assert levels[0]["b"] / levels[0]["a"] > 1.35
    assert levels[1] == pytest.approx({"a": 1.0, "b": 1.0}, abs=0.01)


@pytest.mark.parametrize(("elapsed_s", "is_used"), [(AGE_S_MAX - 60.0, True), (AGE_S_MAX + 20.0, False)])
def test_state_of_another_day_is_not_used(elapsed_s: float, is_used: bool) -> None:
    """The newest sample may be a day old; a file that was written again and again without requests is no younger."""
    pool = experienced()
    for now_s in (SAVED_S, SAVED_S + 3_600.0):
        after = fleet()
        learned = saved(pool, now_s)
        assert restore_pool(after, learned, elapsed_s - (now_s - SAVED_S), STARTED_S) is is_used


@pytest.mark.parametrize(
    ("sources", "restored"),
    [
        ({"a": "A", "b": "B"}, "ab"),
        ({"b": "B", "c": "C"}, "b"),  # a was removed, c added
        ({"a": "elsewhere", "b": "B"}, "b"),  # a moved
        ({"a": "B", "b": "A"}, ""),  # names exchanged
        ({"x": "A"}, ""),
    ],
)
def test_a_replica_is_known_by_name_and_source(sources: dict[str, str], restored: str) -> None:
    """A replica of another name or at another address starts without samples and without a level."""
    after = fleet(sources=sources)
    assert restore_pool(after, saved(experienced()), ELAPSED_S, STARTED_S) is bool(restored)
    learning = after.learning
    assert "".join(name for name in sources if learning.ttft[name].event_count(STARTED_S)) == restored
    assert "".join(learning.predictor.levels) == restored
    assert (delay_s(after, 0, STARTED_S) < 2.0) is (bool(restored) and len(sources) > 1)


def test_two_documents_are_added_bin_by_bin() -> None:
    """A window of the sums of two windows' counts has the samples of both."""
    learned = saved(experienced())
    ratios = learned.learning.ratios
    assert ratios is not None
    twice = msgspec.structs.replace(ratios, events=[2 * count for count in ratios.events])
    both, after = msgspec.structs.replace(learned.learning, ratios=twice), fleet()
    restore_pool(after, msgspec.structs.replace(learned, learning=both), ELAPSED_S, STARTED_S)
    assert after.learning.ratios.event_count(STARTED_S) == 2 * sum(ratios.events)


SUMS = {"matrix": [1.0, 5.0, 0.0, 1.0, 0.0, 0.0], "right": [1.0, 1.0, 0.0]}  # of no samples: 5 * 5 > 1 * 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("predictor.fit", {"matrix": [0.0] * 6, "right": [0.0] * 3}),
        ("predictor.fit", {"matrix": [1e-30, 0.0, 0.0, 0.0, 0.0, 0.0], "right": [1e30, 0.0, 0.0]}),
        ("predictor.samples", 7),
        ("predictor.first", [[0.2, 0.0, 0.0]]),
        ("ratios.events", [1]),
        ("answers", {"age_s": 0.0, "bins": [1, 2], "events": [1], "censored": [0, 0]}),
    ],
)
def test_a_state_that_contradicts_itself_changes_nothing(field: str, value: object) -> None:
    """A pool takes a whole state or none."""
    document = msgspec.to_builtins(saved(experienced()))
    *parents, last = field.split(".")
    part = document["learning"]
    for parent in parents:
        part = part[parent]
    part[last] = value
    after = fleet()
    with pytest.raises(ValueError, match=r"\w"):
        restore_pool(after, msgspec.convert(document, LearnedPool), ELAPSED_S, STARTED_S)
    assert delay_s(after, 0, STARTED_S) == default_hedging().cold_start_delay_s
    assert after.learning.restored_age_s is None


@pytest.mark.parametrize("matrix", [(1.0, 5.0, 0.0, 1.0, 0.0, 1.0), (1.0, 0.9, -0.9, 1.0, 0.9, 1.0)])
def test_speeds_that_contradict_themselves_change_nothing(matrix: tuple[float, ...]) -> None:
    """Sums that are no sums of products of anything are dropped with the whole state of the pool."""
    document = msgspec.to_builtins(saved(generated({"a": 0.08, "b": 0.02, "c": 0.02})))
    document["streams"]["speeds"]["matrix"] = matrix
    after = fleet(sources={"a": "A", "b": "B", "c": "C"})
    with pytest.raises(ValueError, match="sums of products"):
        restore_pool(after, msgspec.convert(document, LearnedPool), ELAPSED_S, STARTED_S)
    assert not after.streams.speeds.gaps_s
    assert after.learning.restored_age_s is None


def test_the_factors_of_a_tokenizer_are_kept() -> None:
    """Prompt tokens are estimated after a restart as before, which the fit of the prediction depends on."""
    before, after = TokenScale(), TokenScale()
    for number in range(20):
        before.learn((100.0 + number, 10.0, 0.0), round(1.5 * (110.0 + number)))
    after.restore(msgspec.json.decode(msgspec.json.encode(before.state), type=TokenScaleState))
    text = (200.0, 20.0, 5.0)
    assert after.tokens(text) == pytest.approx(before.tokens(text), rel=0.01)
    with pytest.raises(ValueError, match="sums"):
        after.restore(msgspec.convert({"reports": 9, "fit": SUMS}, TokenScaleState))
    assert after.tokens(text) == pytest.approx(before.tokens(text), rel=0.01)


def working() -> Pool:
    """A pool with replicas that show signs of work before reasoning that is not shown."""
    pool = fleet()
    for _ in range(20):
        for name in SOURCES:
            pool.first_token.add_sign(name, Api.RESPONSES, 0.2)
        pool.first_token.add_answer(hidden=True)
    for number in range(40):
        attempt = send(pool, number % 2, SAVED_S - 60.0 + number, RequestFacts(api=Api.RESPONSES))
        attempt.headers_s = attempt.start_s + 0.05
        assert pool.on_work(attempt, Api.RESPONSES, attempt.start_s + 0.2)
    return pool


def test_the_choice_of_the_first_token_is_kept() -> None:
    """The learned times measure the event that is timed after the restart, too."""
    before, after = working(), fleet()
    assert before.first_token.by_work("a", Api.RESPONSES)
    assert restore_pool(after, saved(before), ELAPSED_S, STARTED_S)
    assert after.first_token.by_work("a", Api.RESPONSES)
    assert after.has_hidden_reasoning
    assert after.learning.ttft["a"].event_count(STARTED_S) == 20


def test_times_of_another_event_are_not_kept() -> None:
    """Signs of work were timed because of a replica that is gone: content is timed now, and its times are unknown."""
    before, after = working(), fleet()
    learned = saved(before)
    gone = [signs for signs in learned.first_token.signs if signs.replica == "x"]
    choice = msgspec.structs.replace(learned.first_token, signs=gone)
    assert restore_pool(after, msgspec.structs.replace(learned, first_token=choice), ELAPSED_S, STARTED_S)
    assert not after.first_token.by_work("a", Api.RESPONSES)
    assert after.learning.ttft["a"].event_count(STARTED_S) == 0
    assert after.learning.restored_age_s is None


def slowed(gap_s: float) -> Pool:
    """Three replicas at low traffic, of which a has become ten times slower; hedges cancel its attempts."""
    pool = fleet(sources={"a": "A", "b": "B", "c": "C"})
    for number in range(150):
        start_s = SAVED_S - gap_s * (150 - number)
        if number % 3 == 0 and number >= 120:
            attempt = send(pool, 0, start_s, FACTS)
            pool.on_end(attempt, Outcome.LOST, start_s + 0.5, None)
        else:
            answer(pool, number % 3, start_s, 0.2)
    pool.learning.predictor.fold(SAVED_S)
    return pool


@pytest.mark.parametrize("gap_s", [0.1, 5.0])
def test_a_restart_keeps_a_slow_replica(gap_s: float) -> None:
    """It is still called slow, and gets as few primaries as before; after four quick answers it is as usual."""
    before, after = slowed(gap_s), fleet(sources={"a": "A", "b": "B", "c": "C"})
    assert before.learning.predictor.is_slow("a")
    assert restore_pool(after, saved(before), ELAPSED_S, STARTED_S)
    predictor = after.learning.predictor
    assert predictor.is_slow("a")
    assert predictor.levels["a"] == pytest.approx(before.learning.predictor.levels["a"])
    picks = [0, 0, 0]
    for number in range(60):
        now_s = STARTED_S + gap_s * number
        replica = after.picker.pick(FACTS, (), now_s, 0.5)
        assert replica is not None
        index = after.replicas.index(replica)
        picks[index] += 1
        if index:
            answer(after, index, now_s, 0.2)
        else:
            after.on_end(send(after, 0, now_s, FACTS), Outcome.LOST, now_s + 0.5, None)
    assert picks[0] <= 2
    end_s = STARTED_S + 60 * gap_s
    for number in range(4):
        answer(after, 0, end_s + number, 0.2)
    predictor.fold(end_s + 4.0)
    assert not predictor.is_slow("a")


def test_a_slow_replica_is_forgotten_after_ten_minutes() -> None:
    """A longer pause may have repaired it."""
    after = fleet(sources={"a": "A", "b": "B", "c": "C"})
    assert restore_pool(after, saved(slowed(0.1)), 700.0, STARTED_S)
    assert not after.learning.predictor.is_slow("a")
    assert after.learning.predictor.levels["a"] < 1.1


def test_a_state_without_what_later_versions_add_is_used() -> None:
    """A file of an earlier version has no tests, no traffic, no speeds and no late attempts."""
    state = msgspec.to_builtins(saved(slowed(5.0)))
    del state["gap_s"], state["streams"], state["learning"]["predictor"]["slowness"]
    for replica in state["replicas"].values():
        del replica["late"]
    after = fleet(sources={"a": "A", "b": "B", "c": "C"})
    assert restore_pool(after, msgspec.convert(state, LearnedPool), ELAPSED_S, STARTED_S)
    assert not after.learning.predictor.is_slow("a")


@pytest.mark.parametrize(("elapsed_s", "is_suspect"), [(5.0, True), (700.0, False)])
def test_a_restart_keeps_a_replica_that_stopped_answering(elapsed_s: float, is_suspect: bool) -> None:
    """It gets probes only, until it answers; after ten minutes it may have been repaired."""
    before, after = experienced(), fleet()
    for number in range(3):
        attempt = send(before, 0, SAVED_S + number, FACTS)
        before.on_end(attempt, Outcome.LOST, SAVED_S + number + 30.0, None)
    a = after.replicas[0]
    assert restore_pool(after, saved(before, SAVED_S + 32.0), elapsed_s, STARTED_S)
    assert after.loads.is_suspect(a, STARTED_S) is is_suspect
    answer(after, 0, STARTED_S, 0.2)
    assert not after.loads.is_suspect(a, STARTED_S + 0.2)


def generated(gaps_s: Mapping[str, float]) -> Pool:
    """Three replicas after 20 answers each, of 50 tokens with these gaps."""
    pool = fleet(sources={"a": "A", "b": "B", "c": "C"})
    for number in range(60):
        index, now_s = number % 3, SAVED_S - 120.0 + 2.0 * number
        attempt = send(pool, index, now_s, FACTS)
        attempt.content_s = attempt.generated_s = now_s + 0.2
        pool.on_content(attempt, attempt.content_s)
        attempt.events, attempt.usage = 51, Usage(1_000, 100)
        attempt.generated_s += 50 * gaps_s["abc"[index]] * (1.0 + 0.01 * (number % 7))
        pool.on_end(attempt, Outcome.FINISHED, attempt.generated_s, None)
    pool.streams.look(SAVED_S)
    return pool


def test_a_restart_keeps_the_speeds_of_answers() -> None:
    """A replica that generates slowly is avoided at once; after ten minutes its speed is forgotten."""
    before = generated({"a": 0.08, "b": 0.02, "c": 0.02})
    learned = saved(before)
    assert before.streams.slowness("a") > 3.0
    for elapsed_s, slowness in ((5.0, before.streams.slowness("a")), (700.0, 1.0)):
        after = fleet(sources={"a": "A", "b": "B", "c": "C"})
        assert restore_pool(after, learned, elapsed_s, STARTED_S)
        assert after.streams.slowness("a") == pytest.approx(slowness)
        for index in range(3):
            answer(after, index, STARTED_S, 0.2)
        picks = {after.picker.pick(FACTS, (), STARTED_S + 1.0, rand) for rand in (0.1, 0.4, 0.7)}
        assert (after.replicas[0] in picks) is (slowness == 1.0)
    moved = fleet(sources={"a": "elsewhere", "b": "B", "c": "C"})
    assert restore_pool(moved, learned, ELAPSED_S, STARTED_S)
    assert set(moved.streams.speeds.gaps_s) == {"b", "c"}


def limited(retry_after_s: float | None = 60.0, *, by_tokens: bool = False) -> Pool:
    """Two replicas with quotas of their own, of which a has answered 429 now and nothing before."""
    pool = waiting_fleet()
    attempt = send(pool, 0, SAVED_S, FACTS)
    pool.on_end(attempt, Outcome.RATE_LIMITED, SAVED_S, retry_after_s, by_tokens=by_tokens)
    return pool


def waiting_fleet() -> Pool:
    """Replicas with quotas that nothing is known about."""
    replicas = [Replica(name, Scripted(), name, source=name) for name in "ab"]
    return Pool("m", replicas, default_hedging(), {"a": Ledger(), "b": Ledger()})


@pytest.mark.parametrize("by_tokens", [False, True])
@pytest.mark.parametrize(
    ("retry_after_s", "elapsed_s", "wait_s"),
    [(60.0, 5.0, 55.0), (60.0, 0.0, 60.0), (60.0, 60.0, 0.0), (60.0, 100_000.0, 0.0), (9_999.0, 5.0, 295.0)],
)
def test_a_restart_keeps_the_wait_after_a_429(
    retry_after_s: float, elapsed_s: float, wait_s: float, by_tokens: bool
) -> None:
    """Nothing is sent before its end, at most five minutes; a wait that is over has no effect."""
    before, after = limited(retry_after_s, by_tokens=by_tokens), waiting_fleet()
    learned = saved(before)
    assert learned.is_worth_keeping
    restore_pool(after, learned, elapsed_s, STARTED_S)
    a, b = after.replicas
    assert after.quotas.wait_s(a, FACTS, STARTED_S) == pytest.approx(wait_s)
    assert after.quotas.wait_s(b, FACTS, STARTED_S) == 0.0
    small = RequestFacts(prompt_tokens=100.0, answer_tokens=1)
    assert after.quotas.wait_s(a, small, STARTED_S) == pytest.approx(0.0 if by_tokens else wait_s)
    assert after.picker.pick(FACTS, (b,), STARTED_S, 0.0) is (None if wait_s else a)


@pytest.mark.parametrize(("elapsed_s", "has_room"), [(5.0, False), (299.0, False), (301.0, True)])
def test_a_restart_keeps_the_time_without_hedges(elapsed_s: float, has_room: bool) -> None:
    """After a 429 without known limits no hedge takes of the quota, by the time of the 429 and not of the start."""
    after = waiting_fleet()
    restore_pool(after, saved(limited(None)), elapsed_s, STARTED_S)
    assert after.quotas.has_room(after.replicas[0], FACTS, STARTED_S) is has_room


def test_an_old_429_is_not_kept() -> None:
    """After twice the time without hedges, nothing of it is left in the document."""
    state = saved(limited(None), SAVED_S + 601.0)
    assert not state.is_worth_keeping
    assert state.replicas["a"].wait is None


@pytest.mark.parametrize("cooling_s", [-1.0, 301.0, 1e300])
def test_a_wait_out_of_range_is_damage(cooling_s: float) -> None:
    """A replica never waits for longer than five minutes, whatever the document has."""
    state = msgspec.to_builtins(saved(limited()))
    state["replicas"]["a"]["wait"]["cooling_s"] = cooling_s
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(state, LearnedPool)
    state["replicas"]["a"]["wait"] = {"cooling_s": 0.0, "quota": {"cooling_s": 20_000.0, "tokens": 0.0}}
    state["replicas"]["a"]["wait"]["quota"] |= {"limited_s": 0.0, "hedges_s": 300.0}
    after = waiting_fleet()
    restore_pool(after, msgspec.convert(state, LearnedPool), 0.0, STARTED_S)
    assert after.quotas.wait_s(after.replicas[0], FACTS, STARTED_S) == 300.0
