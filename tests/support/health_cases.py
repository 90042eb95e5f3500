"""Cases of the verdict: facts in which a rule finds its trouble, and facts close to them in which it does not."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from gateway.health.facts import Facts, Note, WorkersState
from gateway.health.windows import CountSlot, LastAttempt, ModelSlot, ReplicaSlot
from gateway.observe.state import (
    DiscoveryState,
    LeaseState,
    LimitState,
    PoolState,
    QuotaState,
    ReplicaState,
    ShareState,
)

NOW_S = 1_795_845_600.0  # 2026-11-28 06:00 UTC
A, B = (ReplicaState(name, 0, "closed", predicted_s=0.2, ttft_p50_s=0.2) for name in "ab")


class Case(NamedTuple):
    """One rule on both sides of its condition.

    Attributes:
        alert: name of the rule.
        finds: facts in which it finds one trouble.
        sentence: the trouble.
        silent: facts in which it finds none.
    """

    alert: str
    finds: Facts
    sentence: str
    silent: Facts


def pool(*replicas: ReplicaState, **changes: Any) -> PoolState:
    """Return a pool of the model m."""
    return replace(PoolState("m", "m", "adaptive", True, 1.0, 4.0, replicas or (A, B)), **changes)


def facts(*pools: PoolState, **changes: Any) -> Facts:
    """Return facts with these pools."""
    return replace(Facts(NOW_S, pools=pools or (pool(),)), **changes)


def minute(
    keys: Mapping[str, int] | None = None, rejected: Mapping[str, int] | None = None, **counts: Any
) -> CountSlot:
    """Return the counts of a minute of the model m."""
    model = ModelSlot(**counts)
    return CountSlot(0, model.requests, models={"m": model}, keys=dict(keys or {}), rejected=dict(rejected or {}))


def _last(outcome: str, **changes: Any) -> Mapping[tuple[str, str], LastAttempt]:
    status = 401 if outcome == "misconfigured" else 503
    failure = LastAttempt("m", "a", 0.0, NOW_S - 5, outcome, f"upstream_{outcome}", status)
    return {("m", "a"): replace(failure, **changes)}


def _quota(left: float, cooling_s: float = 0.0) -> PoolState:
    limit = LimitState("tokens", 60.0, 1000.0, left, observed=True, enforced=False, age_s=1.0)
    return pool(quotas=(QuotaState("openai", cooling_s, (limit,), 0, 0, 0),))


def _slots(attempts: int, cancelled: int, elsewhere: int = 0) -> CountSlot:
    slow = ReplicaSlot(attempts, attempts - cancelled, cancelled, hedged=cancelled, cancelled_s=3.0 * cancelled)
    other = ReplicaSlot(20, 20 - elsewhere, elsewhere, hedged=1, answered_s=4.0)
    return minute(requests=20 + attempts, replicas={"a": slow, "b": other})


_SHARE = ShareState(
    "redis", up=False, since_s=30.0, fault="connection refused", reply_age_s=30.0, exchange_age_s=30.0, processes=2,
    expected=2, when_away="share", away_part=0.5, leases=(LeaseState("key:a:requests", 0.0, 12.0),),
)  # fmt: skip
_OPEN = replace(A, breaker="open")
_SUSPECT = replace(A, suspect=True, level=15.0, predicted_s=3.0)
_LATE = {("m", "a"): LastAttempt("m", "a", late=4)}
_LATE_BEFORE = {("m", "a"): LastAttempt("m", "a", late=3)}

CASES = (
    Case(
        "TtftNoConnections",
        facts(unaccepted=[Note(NOW_S, "127.0.0.1:8080", "Too many open files")]),
        "connections to 127.0.0.1:8080 could not be accepted at 06:00:00: Too many open files",
        facts(),
    ),
    Case(
        "TtftModelDown",
        facts(pool(_OPEN, replace(B, locked="its token has ended")), last=_last("failed")),
        "no replica of m can be used: a (last at 05:59:55: status 503, upstream_failed), b (its token has ended)",
        facts(pool(_OPEN, B), last=_last("failed")),
    ),
    Case(
        "TtftModelDown",
        facts(pool(replicas=()), discovery=[DiscoveryState("m", "m", "dns:llm", 0, None, "the name does not resolve")]),
        "model m has no replicas: the source dns:llm has no usable answer: the name does not resolve",
        facts(pool(replicas=()), discovery=[DiscoveryState("m", "m", "endpointslices:llm", 0, 3.0, None)]),
    ),
    Case(
        "TtftCallersGet429",
        facts(_quota(50.0), minute=minute(requests=100, limited=5, limits={"provider": 5})),
        "5% of the requests for m get a 429 (5 of 100 in a minute): the provider's limit of quota openai is used up",
        facts(_quota(50.0), minute=minute(requests=100, limited=2, limits={"provider": 2})),
    ),
    Case(
        "TtftCallersGet429",
        facts(minute=minute(requests=100, limited=12, limits={"provider": 1, "model": 11})),
        "12% of the requests for m get a 429 (12 of 100 in a minute): the concurrency limit of the model is used up",
        facts(minute=minute(requests=1000, limited=10, limits={"model": 10})),
    ),
    Case(
        "TtftGatewayOverloaded",
        facts(minute=minute({"team-a": 3, "team-b": 90}, {"overloaded": 30}, requests=60)),
        "the gateway rejects requests because a queue or the memory for bodies is full (30 in a minute; most requests "
        "come from key team-b, 90)",
        facts(minute=minute({"team-a": 3}, {"overloaded": 2, "rate_limit_exceeded": 100}, requests=60)),
    ),
    Case(
        "TtftRequestsFail",
        facts(minute=minute(requests=100, failed=4, errors={"upstream_cut": 3, "upstream_error": 1})),
        "4% of the requests for m fail (4 of 100 in a minute, most by upstream_cut)",
        facts(minute=minute(requests=10, failed=2, errors={"upstream_cut": 2})),
    ),
    Case(
        "TtftFirstTokensLate",
        facts(minute=minute(requests=20, answered=20, late=15, replicas={"a": ReplicaSlot(10)})),
        "75% of the first tokens of m take more than 5 s (15 of 20 in a minute; median: a 200 ms)",
        facts(minute=minute(requests=20, answered=20, late=2)),
    ),
    Case(
        "TtftGatewayBusy",
        facts(gained={("cpu", ""): 57.0}),
        "the gateway uses 95% of its 1 core",
        facts(gained={("cpu", ""): 57.0}, workers=WorkersState(2, 2)),
    ),
    Case(
        "TtftGatewaySlow",
        facts(minute=replace(minute(requests=100), slow_starts=5)),
        "the gateway itself adds more than 0.1 s to 5% of the requests (5 of 100 in a minute)",
        facts(_quota(500.0, cooling_s=3.0), minute=replace(minute(requests=100), slow_starts=5)),
    ),
    Case(
        "TtftReplicaMisconfigured",
        facts(pool(_OPEN, B), last=_last("misconfigured")),
        "replica a of m rejects the key, the account or the model name of the gateway (last at 05:59:55: status 401, "
        "upstream_misconfigured); 1 other replica serves",
        facts(pool(A, B), last=_last("misconfigured", answered_s=NOW_S - 1)),
    ),
    Case(
        "TtftReplicaDown",
        facts(pool(_OPEN, B), last=_last("failed"), minute=minute(replicas={"a": ReplicaSlot(failed=7)})),
        "replica a of m fails and gets no requests (last at 05:59:55: status 503, upstream_failed; failures "
        "in a minute: 7)",
        facts(pool(_OPEN, B), last=_last("misconfigured")),
    ),
    Case(
        "TtftReplicaDown",
        facts(pool(replace(A, breaker="half_open"), B)),
        "replica a of m fails and gets no requests (no failure is known)",
        facts(pool(replace(A, breaker="half_open", out=True), B)),
    ),
    Case(
        "TtftReplicaSlow",  # found by the pool
        facts(pool(_SUSPECT, B), minute=_slots(31, 29)),
        "replica a of m is at least 15x slower than usual (3,000 ms, usual 200 ms; from 31 attempts in a minute, 29 "
        "cancelled); 97% of the hedges are spent on it",
        facts(pool(replace(_SUSPECT, out=True), B), minute=_slots(31, 29)),
    ),
    Case(
        "TtftReplicaSlow",  # hidden by hedges
        facts(pool(A, B), minute=_slots(6, 4), last=_LATE),
        "replica a of m is at least 10x slower than usual (2,000 ms, usual 200 ms; from 6 attempts in a minute, 4 "
        "cancelled); 80% of the hedges are spent on it",
        facts(pool(A, B), minute=_slots(6, 3), last=_LATE_BEFORE),
    ),
    Case(
        "TtftReplicaSlow",  # silent, and elsewhere as many are cancelled
        facts(pool(replace(A, suspect=True, level=1.0), B)),
        "replica a of m answers late or not at all",
        facts(pool(A, B), minute=_slots(6, 5, elsewhere=8), last=_LATE),
    ),
    Case(
        "TtftReplicaSlow",  # late answers count, and elsewhere they are late, too
        facts(pool(A, B), minute=minute(replicas={"a": ReplicaSlot(4, 4, answered_s=16.0)}), last=_LATE),
        "replica a of m is 20x slower than usual (4,000 ms, usual 200 ms; from 4 attempts in a minute, 0 cancelled)",
        facts(pool(A, B), minute=_slots(4, 0), last={**_LATE, ("m", "b"): LastAttempt("m", "b", late=2)}),
    ),
    Case(
        "TtftReplicaSlow",  # quick again
        facts(pool(replace(A, level=2.5), B), minute=_slots(3, 2)),
        "replica a of m is at least 10x slower than usual (2,000 ms, usual 200 ms; from 3 attempts in a minute, 2 "
        "cancelled); 67% of the hedges are spent on it",
        facts(pool(_SUSPECT, B), minute=minute(replicas={"a": ReplicaSlot(2, 2, answered_s=0.4)})),
    ),
    Case(
        "TtftReplicaSlow",  # only after the first token
        facts(pool(replace(A, answer_slowness=4.0), B), minute=_slots(6, 1)),
        "replica a of m takes 4x as long as usual after first tokens (from 6 attempts in a minute, 1 cancelled); 50% "
        "of the hedges are spent on it",
        facts(pool(replace(A, answer_slowness=1.9), B), minute=_slots(6, 1)),
    ),
    Case(
        "TtftShareAway",
        facts(share=_SHARE),
        "the server of shared limits does not answer since 05:59:30 (connection refused); this gateway goes on with "
        "50% of each limit",
        facts(share=replace(_SHARE, up=True)),
    ),
    Case(
        "TtftQuotaUsedByOthers",
        facts(_quota(400.0), gained={("others", "openai tokens"): 30.0}),
        "other clients use 50% of the tokens of quota openai; 40% is left",
        facts(_quota(900.0), gained={("others", "openai tokens"): 30.0}),
    ),
    Case(
        "TtftReplicaGets429",
        facts(minute=minute(replicas={"a": ReplicaSlot(30, limited=3)})),
        "10% of the attempts at a of m get a 429 (3 of 30 in a minute)",
        facts(minute=minute(replicas={"a": ReplicaSlot(100, limited=3)})),
    ),
    Case(
        "TtftQuotaLow",
        facts(_quota(50.0)),
        "5% of the tokens of quota openai is left",
        facts(_quota(150.0)),
    ),
    Case(
        "TtftHedgeBudgetSpent",
        facts(minute=minute(requests=100, denials={"budget": 8})),
        "8% of the requests for m are late and not hedged (8 of 100 in a minute), because the budget is spent; find "
        "the cause, or raise hedge.budget",
        facts(minute=minute(requests=100, denials={"budget": 5, "low_gain": 50})),
    ),
    Case(
        "TtftReloadRejected",
        facts(reload=Note(NOW_S - 60, "reload", "line 3: no such setting\nline 4: another mistake")),
        "the configuration was rejected at 05:59:00, the previous one is in force: line 3: no such setting",
        facts(),
    ),
    Case(
        "TtftWorkersRestart",
        facts(ended=[Note(NOW_S, "worker 2", "was ended by SIGKILL")], workers=WorkersState(2, 1)),
        "a process of the gateway has ended and is replaced (worker 2 at 06:00:00: was ended by SIGKILL); 1 of 2 "
        "workers serve",
        facts(workers=WorkersState(2, 2)),
    ),
    Case(
        "TtftWorkersRestart",
        facts(workers=WorkersState(4, 4, (3,))),
        "worker 3 does not answer; 4 of 4 workers serve",
        facts(workers=WorkersState(4, 4)),
    ),
    Case(
        "TtftLogLinesLost",
        facts(gained={("log_lines_lost", ""): 40.0}),
        "standard output is not writable: 40 log lines were lost in a minute",
        facts(gained={("log_lines_lost", ""): 0.0}),
    ),
    Case(
        "TtftLearnedFileFails",
        facts(up={"ttft_gateway_learned_file_up": 0.0}, file=Note(NOW_S, "learned.json", "No space left on device")),
        "what the gateway has learned cannot be kept: No space left on device",
        facts(up={"ttft_gateway_learned_file_up": 1.0}, file=Note(NOW_S, "learned.json", "No space left on device")),
    ),
    Case(
        "TtftSpansLost",
        facts(gained={("spans_lost", ""): 7.0}),
        "7 spans were lost in a minute: the collector of traces does not take them",
        facts(gained={("spans_lost", ""): 0.0}),
    ),
    Case(
        "TtftComponentFails",
        facts(gained={("component_failures", "plan"): 2.0}),
        "the part plan of the gateway has failed 2 times in a minute, and is skipped",
        facts(gained={("component_failures", "plan"): 0.0}),
    ),
    Case(
        "TtftStateDropped",
        facts(gained={("state_dropped", "share"): 3.0}, lost_state={"share": Note(NOW_S, "m/a", "level is -1")}),
        "damaged state from share was dropped 3 times in a minute (m/a: level is -1)",
        facts(gained={("state_dropped", "share"): 0.0}),
    ),
    Case(
        "TtftDiscoveryFails",
        facts(discovery=[DiscoveryState("m", "m", "dns:llm", 2, 90.0, "the name does not resolve")]),
        "the source dns:llm of the replicas of m has no usable answer: the name does not resolve",
        facts(discovery=[DiscoveryState("m", "m", "dns:llm", 2, 3.0, None)]),
    ),
    Case(
        "TtftKeyUnusual",
        facts(minute=minute({"team-a": 324}), key_means={"team-a": 0.4}),
        "key team-a sends 5.4 requests per second, 0.4 on average before",
        facts(minute=minute({"team-a": 324}), key_means={"team-a": 1.2}),
    ),
    Case(
        "TtftInvalidKeys",
        facts(minute=minute(rejected={"invalid_api_key": 60})),
        "1.0 requests per second have no valid key",
        facts(minute=minute(rejected={"invalid_api_key": 6})),
    ),
    Case(
        "TtftHedgingCostly",
        facts(half_hour={"m": (750, 250)}),
        "25% of the billed tokens of m are of hedges that lost, in half an hour",
        facts(half_hour={"m": (900, 100)}),
    ),
    Case("TtftHedgingOff", facts(pool(hedging_on=False)), "hedging of m is switched off", facts()),
    Case("TtftReplicaOut", facts(pool(replace(A, out=True), B)), "replica a of m is taken out", facts()),
    Case(
        "TtftHedgesDenied",
        facts(minute=minute(requests=100, denials={"one_replica": 4, "quota": 2, "low_gain": 90})),
        "4% of the requests for m are late and not hedged: no other replica is configured; add one",
        facts(minute=minute(requests=100, denials={"one_replica": 2, "low_gain": 90})),
    ),
    Case(
        "TtftLimitsOwed",
        facts(share=replace(_SHARE, up=True)),
        "limit key:a:requests owes 12 to other processes; nothing is leased before",
        facts(share=replace(_SHARE, leases=())),
    ),
)
