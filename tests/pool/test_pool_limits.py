"""The pool and its quotas: excluded replicas, the time, and tickets that are settled with what was used."""

import pytest

from pooled import pool, send
from ttft_gateway.apis.base import RateLimit, Resource, Usage
from ttft_gateway.hedging.contract import Hedge, RequestFacts
from ttft_gateway.hedging.outcomes import Denial, Outcome
from ttft_gateway.limits.bucket import Limit, Spend
from ttft_gateway.limits.ledger import Ledger, LedgerRegistry, Totals
from ttft_gateway.pool.pool import Pool

FACTS = RequestFacts(prompt_tokens=1_000.0)
ANSWER = 500  # what an answer is taken for before there are any


def limited(pool: Pool, index: int, retry_after_s: float | None, now_s: float = 0.0) -> None:
    """One of its replicas answers 429."""
    pool.on_end(send(pool, index, now_s), Outcome.RATE_LIMITED, now_s, retry_after_s)


def chosen(pool: Pool, now_s: float, *tried: int) -> set[str]:
    """Names of the replicas that may get a primary."""
    used = [pool.replicas[index] for index in tried]
    picks = (pool.picker.pick(FACTS, used, now_s, rand / 10) for rand in range(10))
    return {replica.name for replica in picks if replica is not None}


def test_a_cool_down_holds_for_all_who_share_the_quota() -> None:
    """A 429 at one replica excludes its siblings of the same quota, and no others, until its Retry-After is over."""
    both = pool("q", "q", "other", ledgers={"q": Ledger(), "other": Ledger()})
    limited(both, 0, 5.0)
    assert chosen(both, 1.0) == {"c"}
    assert both.picker.wait_s(FACTS, (), 1.0) is None
    assert both.picker.wait_s(FACTS, [both.replicas[2]], 1.0) == 4.0
    assert both.picker.pick(FACTS, [both.replicas[2]], 1.0, 0.0) is None
    assert both.picker.wait_s(FACTS, [both.replicas[2]], 5.0) is None
    assert chosen(both, 5.0, 1, 2) == {"a"}
    assert chosen(both, 5.0, 0, 2) == {"b"}


def test_a_ledger_is_shared_between_pools() -> None:
    """A quota that cools down for one model does so for another."""
    ledgers = {"q": Ledger()}
    one, other = pool("q", ledgers=ledgers), pool("q", ledgers=ledgers)
    limited(one, 0, 5.0)
    assert other.picker.wait_s(FACTS, (), 1.0) == 4.0
    assert other.picker.pick(FACTS, (), 1.0, 0.0) is None


def test_a_replica_without_a_quota_cools_down_by_itself() -> None:
    """Its own Retry-After refuses it, and only it."""
    alone = pool(None, None)
    limited(alone, 0, 5.0)
    assert chosen(alone, 1.0) == {"b"}
    limited(alone, 1, 3.0)
    assert chosen(alone, 1.0) == set()
    assert alone.picker.wait_s(FACTS, (), 1.0) == 2.0
    assert chosen(alone, 3.0) == {"b"}


@pytest.mark.parametrize("quota", [None, "q"])
def test_a_429_ends_hedges_where_nothing_is_known_of_a_limit(quota: str | None) -> None:
    """For 5 minutes no hedge goes to a replica that refused a request: an engine, or one that states no limits."""
    two = pool(None, quota)
    for now_s in range(60):
        for index in (0, 1):
            attempt = send(two, index, float(now_s))
            two.on_content(attempt, now_s + 0.2)
            two.on_end(attempt, Outcome.FINISHED, now_s + 0.3, None)

    def is_hedged(now_s: float) -> bool:
        late = send(two, 0, now_s)
        decision = two.decide(FACTS, late, [late], [two.replicas[0]], now_s + 3.0, 0.0)
        two.on_end(late, Outcome.CLIENT_GONE, now_s + 3.0, None)
        return isinstance(decision, Hedge)

    assert is_hedged(60.0)
    limited(two, 1, None, 70.0)
    assert not is_hedged(80.0)
    assert not is_hedged(360.0)
    assert is_hedged(370.0)


def test_frequent_429s_that_do_not_say_how_long_ask_for_a_second() -> None:
    """One excludes nothing; several exclude their replica for that time, and not its siblings."""
    quiet = pool(None, None)
    limited(quiet, 0, None)
    assert chosen(quiet, 0.0, 1) == {"a"}
    for _ in range(6):
        limited(quiet, 0, None)
    assert chosen(quiet, 0.5) == {"b"}
    assert quiet.picker.wait_s(FACTS, [quiet.replicas[1]], 0.5) == 0.5
    assert chosen(quiet, 1.0, 1) == {"a"}


def test_429s_among_many_answers_exclude_nothing() -> None:
    """Under half of the requests, they cost another try each and no more."""
    busy = pool(None, None)
    for _ in range(100):
        limited(busy, 0, None)
        for _ in range(2):
            send(busy, 0, 0.0)
    assert chosen(busy, 0.0, 1) == {"a"}


@pytest.mark.parametrize("retry_after_s", [301.0, 5.5 * 3600, 31 * 86_400.0])
@pytest.mark.parametrize("quota", ["q", None])
def test_a_long_wait_is_tested_after_five_minutes(retry_after_s: float, quota: str | None) -> None:
    """A Retry-After of hours may be a mistake: the next request after 5 minutes finds out."""
    one = pool(quota, ledgers={"q": Ledger()})
    limited(one, 0, retry_after_s)
    assert chosen(one, 299.0) == set()
    assert one.picker.wait_s(FACTS, (), 0.0) == 300.0
    assert chosen(one, 300.0) == {"a"}


@pytest.mark.parametrize("quota", ["q", None])
def test_a_reload_ends_cool_downs(quota: str | None) -> None:
    """An operator who knows better need not wait."""
    registry = LedgerRegistry({"q": ()})
    old = pool(quota, ledgers=registry)
    limited(old, 0, 200.0)
    new = Pool("p", old.replicas, old.settings, LedgerRegistry({"q": ()}, registry), old)
    assert chosen(new, 0.0) == {"a"}


def test_an_open_breaker_can_be_ignored_and_a_cool_down_cannot() -> None:
    """As a last resort a broken replica is used, but none with a pending Retry-After."""
    two = pool("q", "other", ledgers={"q": Ledger(), "other": Ledger()})
    limited(two, 0, 5.0)
    two.replicas[1].breaker.trip(0.0)
    assert two.picker.pick(FACTS, (), 1.0, 0.0) is None
    assert two.picker.pick_ignoring_breakers(FACTS, (), 1.0, 0.0) is two.replicas[1]
    assert two.picker.pick_ignoring_breakers(FACTS, [two.replicas[1]], 1.0, 0.0) is None


def test_where_all_are_tried_there_is_nothing_to_wait_for() -> None:
    """Time does not help."""
    tried = pool("q")
    assert tried.picker.wait_s(FACTS, tried.replicas, 0.0) is None


def test_an_enforced_limit_refuses_and_says_for_how_long() -> None:
    """At a limit marked enforce nothing is sent until there is room for this prompt, and for 1 % of the limit."""
    strict = pool("q", ledgers={"q": Ledger([Limit(Resource.TOKENS, 6_000.0, enforce=True)])})
    for _ in range(3):
        assert strict.picker.pick(FACTS, (), 0.0, 0.0) is not None
        send(strict, 0)
    assert strict.picker.pick(FACTS, (), 0.0, 0.0) is None
    assert strict.picker.wait_s(FACTS, (), 0.0) == pytest.approx(0.6)
    assert strict.picker.pick(FACTS, (), 0.61, 0.0) is not None


def test_primaries_are_steered_away_from_a_quota_that_is_nearly_used_up() -> None:
    """Below 10 % another quota is taken while it has more."""
    two = pool("q", "other", ledgers={"q": Ledger([Limit(Resource.TOKENS, 20_000.0)]), "other": Ledger()})
    for _ in range(13):
        send(two, 0)
    assert chosen(two, 0.0) == {"b"}
    assert chosen(two, 0.0, 1) == {"a"}


def test_what_responses_state_reaches_the_ledger() -> None:
    """An attempt's limits correct the mirror of its replica's quota."""
    ledger = Ledger()
    mirrored = pool("q", ledgers={"q": ledger})
    attempt = send(mirrored, 0)
    mirrored.on_limits(attempt, [RateLimit(Resource.TOKENS, 60.0, 10_000.0, 4_000.0)], 0.0)
    assert ledger.headroom(0.0) == pytest.approx(0.4)


def test_an_old_reading_of_a_quota_is_renewed_by_a_request() -> None:
    """A day's quota with 5 % left gets no primary for a minute, then one, and more if its response states enough."""
    two = pool("q", "other", ledgers={"q": Ledger(), "other": Ledger()})
    for sent_s, left in ((0.0, 5_000.0), (65.0, 3_000.0), (130.0, 90_000.0)):
        attempt, other = send(two, 0, sent_s), send(two, 1, sent_s)
        assert sent_s == 0.0 or "a" not in chosen(two, sent_s + 0.1)
        two.on_limits(attempt, [RateLimit(Resource.TOKENS, 86_400.0, 1e5, left)], sent_s + 0.2)
        for each in (attempt, other):
            two.on_content(each, sent_s + 0.3)
            two.on_end(each, Outcome.FINISHED, sent_s + 0.4, None)
        assert ("a" in chosen(two, sent_s + 59.0)) is (left > 1e4)
        assert "a" in chosen(two, sent_s + 61.0)


@pytest.mark.parametrize(("left_share", "is_hedged"), [(1.0, True), (0.05, False)])
def test_a_429_ends_hedges_only_while_the_quota_is_needed(left_share: float, *, is_hedged: bool) -> None:
    """10 s after a 429 of one of two quotas of 150 million tokens a late request is hedged; not into 5 % of them."""
    two, full, now_s = pool("q", "other", ledgers={"q": Ledger(), "other": Ledger()}), 150e6, 0.0
    for now_s in range(120):
        for index in (0, 1):
            attempt = send(two, index, float(now_s))
            two.on_limits(attempt, [RateLimit(Resource.TOKENS, 60.0, full, full)], float(now_s))
            two.on_content(attempt, now_s + 0.2)
            two.on_end(attempt, Outcome.FINISHED, now_s + 0.3, None)
    limited(two, 1, 1.0, 120.0)
    for now_s in range(122, 129):
        attempt = send(two, 1, float(now_s))
        two.on_limits(attempt, [RateLimit(Resource.TOKENS, 60.0, full, left_share * full)], float(now_s))
        two.on_content(attempt, now_s + 0.2)
        two.on_end(attempt, Outcome.FINISHED, now_s + 0.3, None)
    late = send(two, 0, 127.0)
    decision = two.decide(FACTS, late, [late], [two.replicas[0]], 130.0, 0.0)
    denial = None if isinstance(decision, Hedge) else decision.reason
    assert denial is (None if is_hedged else Denial.QUOTA)


def test_a_hedge_goes_to_a_quota_that_has_room() -> None:
    """The quicker of two backups is left out while its quota has no room for hedges; without any room none is sent."""
    limits = {name: Ledger([Limit(Resource.TOKENS, 200_000.0)]) for name in ("full", "free")}
    three, times_s = pool("own", "full", "free", ledgers={"own": Ledger()} | limits), (0.2, 0.1, 0.3)
    for now_s in range(60):
        for index, time_s in enumerate(times_s):
            attempt = send(three, index, float(now_s))
            three.on_content(attempt, now_s + time_s)
            three.on_end(attempt, Outcome.FINISHED, now_s + time_s, None)

    def backup(now_s: float) -> str:
        late = send(three, 0, now_s)
        decision = three.decide(FACTS, late, [late], [three.replicas[0]], now_s + 3.0, 0.0)
        return decision.replica.name if isinstance(decision, Hedge) else decision.reason.value

    found = [backup(120.0)]
    for name in ("full", "free"):
        limits[name].reserve(Spend(90_000, 0), 122.0)
        found.append(backup(120.0))
    assert found == ["b", "c", Denial.QUOTA.value]


USAGE = Usage(prompt_tokens=900, completion_tokens=70)


@pytest.mark.parametrize(
    ("outcome", "end", "replica", "settled"),
    [
        (Outcome.FINISHED, {"usage": USAGE}, {}, 970),
        (Outcome.FINISHED, {"events": 7}, {}, 1_500),  # no usage: as reserved
        (Outcome.LOST, {}, {}, 1_000),
        (Outcome.LOST, {}, {"bills_cancelled": True}, 1_500),  # cancelling does not stop the bill
        (Outcome.CLIENT_GONE, {"events": 12}, {}, 1_012),
        (Outcome.CLIENT_GONE, {"events": 12}, {"bills_cancelled": True}, 1_500),
        (Outcome.TTFT_TIMEOUT, {}, {}, 1_000),
        (Outcome.CUT, {"events": 12}, {}, 1_500),
        (Outcome.FAILED, {}, {}, 1_000),
        (Outcome.FAILED, {"error": "connect"}, {}, 0),
        (Outcome.RATE_LIMITED, {}, {}, 0),
        (Outcome.MISCONFIGURED, {}, {}, 0),
        (Outcome.CLIENT_ERROR, {}, {}, 0),
        (Outcome.MODEL_REFUSAL, {"usage": USAGE}, {}, 970),
        (Outcome.FINISHED, {"usage": USAGE}, {"counts_max_tokens": True}, 1_400),
    ],
)
def test_every_outcome_closes_its_ticket(
    outcome: Outcome, end: dict[str, object], replica: dict[str, bool], settled: int
) -> None:
    """Each way to end settles or releases what was reserved, to the token."""
    ledger = Ledger()
    closing = pool("q", ledgers={"q": ledger}, **replica)
    attempt = send(closing, 0)
    for name, value in end.items():
        setattr(attempt, name, value)
    closing.on_end(attempt, outcome, 1.0, None)
    assert ledger.totals == Totals(1_000 + ANSWER, settled, 1_000 + ANSWER - settled)


@pytest.mark.parametrize(
    ("bound", "counts_max_tokens", "answer"),
    [(None, False, ANSWER), (None, True, ANSWER), (80, False, 80), (4_000, False, ANSWER), (4_000, True, 4_000)],
)
def test_what_is_reserved_for_an_answer(bound: int | None, *, counts_max_tokens: bool, answer: int) -> None:
    """The usual p90, no more than max_tokens; all of max_tokens where the provider counts it beforehand."""
    ledger = Ledger()
    facts = RequestFacts(prompt_tokens=10.2, answer_tokens=bound)
    send(pool("q", ledgers={"q": ledger}, counts_max_tokens=counts_max_tokens), 0, facts=facts)
    assert ledger.totals.reserved == 11 + answer
