"""Conditions about models, replicas, quotas and hedging: each yields what it finds in the facts. Pure.

A share of requests counts from three of them, so that one request of a quiet night is no share. Units: seconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from gateway.health.facts import RECENT_S, Facts
from gateway.health.finding import MODEL, REPLICA, Found
from gateway.health.windows import LATE_S, LastAttempt, ReplicaSlot
from gateway.observe.state import SLOW_LEVEL, QuotaState, ReplicaState, shares_left
from ttft_gateway.hedging.outcomes import Denial

FAILED_SHARE: Final = 0.02
LIMITED_SHARE: Final = 0.01
LATE_SHARE: Final = 0.1
ATTEMPTS_LIMITED_SHARE: Final = 0.05
QUOTA_LEFT_SHARE: Final = 0.1
OTHERS_SHARE: Final = 0.3
OTHERS_LEFT_SHARE: Final = 0.8  # with more left, others are no trouble
DENIED_SHARE: Final = 0.05
LOST_TOKENS_SHARE: Final = 0.2
COUNT_MIN: Final = 3
_NOTHING: Final = ReplicaSlot()
_QUICK: Final = 2  # quick answers in a minute, after which a replica is not slow any more
_LATE_MIN: Final = 4  # attempts in a row: of a healthy replica, some 3 % are late
_LOST_ELSEWHERE: Final = 0.2  # with more everywhere, the replica is not the cause
_LIMITS: Final[Mapping[str, str]] = {
    "provider": "the provider's limit",
    "key": "the limit of the caller's key",
    "model": "the concurrency limit of the model",
    "gateway": "a limit of the gateway",
}
_CURES: Final[Mapping[str, str]] = {
    Denial.QUOTA.value: "primaries need the rest of a quota; raise it or add a replica with another one",
    Denial.NO_REPLICA.value: "no other replica was usable; repair it, or add one",
    Denial.ONE_REPLICA.value: "no other replica is configured; add one",
    Denial.BILLED.value: "every other replica bills cancelled requests; set allow_billed_hedges to accept it",
    Denial.BILLING_UNKNOWN.value: "other replicas may bill cancelled requests; set cancel_stops_billing if they do not",
    Denial.HIDDEN_REASONING.value: "the answers begin with hidden reasoning; see docs/thinking-models.md",
}


def percent(share: float) -> str:
    """Format a share."""
    return f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"


def clock(at_s: float) -> str:
    """Format a time of day."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S")


def milliseconds(time_s: float) -> str:
    """Format a time in milliseconds."""
    return f"{1000 * time_s:,.0f} ms"


def last_error(last: LastAttempt) -> str:
    """Describe the last failure of a replica."""
    if not last.failed_s:
        return "no failure is known"
    what = [] if last.status is None else [f"status {last.status}"]
    what += [last.error] if last.error != "status" or not what else []
    return f"last at {clock(last.failed_s)}: {', '.join(what)}"


def is_down(replica: ReplicaState) -> bool:
    """Return True if a replica gets no requests because it fails."""
    return not replica.out and (replica.breaker != "closed" or replica.locked is not None)


def _serves(replica: ReplicaState) -> bool:
    return not replica.out and not is_down(replica)


def model_down(facts: Facts) -> Iterator[Found]:
    """Find models without a usable replica; a model of which the sources have found that there is none is not down."""
    unknown = {each.model: each for each in facts.discovery if each.fault is not None}
    for model, replicas in facts.models().items():
        if any(map(_serves, replicas)):
            continue
        if replicas:
            names = ", ".join(f"{each.replica} ({_why_down(facts, model, each)})" for each in replicas[:5])
            yield Found(f"no replica of {model} can be used: {names}", len(replicas), {MODEL: model})
        elif model in unknown:
            source = unknown[model]
            sentence = f"model {model} has no replicas: the source {source.source} has no usable answer: {source.fault}"
            yield Found(sentence, labels={MODEL: model})


def _why_down(facts: Facts, model: str, replica: ReplicaState) -> str:
    if replica.out:
        return "taken out"
    return replica.locked or last_error(facts.last_of(model, replica.replica))


def requests_fail(facts: Facts) -> Iterator[Found]:
    """Find models of which requests fail."""
    for name, model in facts.minute.models.items():
        share = model.failed / max(1, model.requests)
        if model.failed >= COUNT_MIN and share > FAILED_SHARE:
            most = max(model.errors, key=lambda label: model.errors[label])
            counts = f"{model.failed} of {model.requests} in a minute, most by {most}"
            yield Found(f"{percent(share)} of the requests for {name} fail ({counts})", share, {MODEL: name})


def callers_get_429(facts: Facts) -> Iterator[Found]:
    """Find models of which requests get a 429."""
    for name, model in facts.minute.models.items():
        share = model.limited / max(1, model.requests)
        if model.limited < COUNT_MIN or share <= LIMITED_SHARE:
            continue
        owner = max(model.limits, key=lambda limit: model.limits[limit])
        quotas = sorted({limit for pool in facts.pools if pool.model == name for limit in map(_used_up, pool.quotas)})
        of = f" of {' and '.join(filter(None, quotas))}" if owner == "provider" and any(quotas) else ""
        counts = f"{model.limited} of {model.requests} in a minute"
        sentence = f"{percent(share)} of the requests for {name} get a 429 ({counts}): {_LIMITS[owner]}{of} is used up"
        yield Found(sentence, share, {MODEL: name})


def _used_up(quota: QuotaState) -> str:
    """Name a quota that is used up; empty for another one."""
    used = quota.cooling_s > 0 or any(limit.left < QUOTA_LEFT_SHARE * limit.limit for limit in quota.limits)
    return f"quota {quota.quota}" if used else ""


def first_tokens_late(facts: Facts) -> Iterator[Found]:
    """Find models with late first tokens."""
    for name, model in facts.minute.models.items():
        share = model.late / max(1, model.answered)
        if model.late >= COUNT_MIN and share > LATE_SHARE:
            served = [each for each in facts.models().get(name, []) if model.replicas.get(each.replica)]
            times = ", ".join(
                f"{each.replica} {milliseconds(each.ttft_p50_s)}" for each in served[:5] if each.ttft_p50_s is not None
            )
            counts = f"{model.late} of {model.answered} in a minute" + (f"; median: {times}" if times else "")
            sentence = f"{percent(share)} of the first tokens of {name} take more than {LATE_S:g} s ({counts})"
            yield Found(sentence, share, {MODEL: name})


def misconfigured(facts: Facts) -> Iterator[Found]:
    """Find replicas that reject the key, the account or the model name of the gateway."""
    for model, replicas in facts.models().items():
        for each in replicas:
            last = facts.last_of(model, each.replica)
            if not each.out and is_misconfigured(last, each, facts.now_s):
                others = sum(map(_serves, replicas))
                serve = f"{others} other replica serves" if others == 1 else f"{others} other replicas serve"
                sentence = (
                    f"replica {each.replica} of {model} rejects the key, the account or the model name of the gateway "
                    f"({last_error(last)}); {serve}"
                )
                yield Found(sentence, labels={MODEL: model, REPLICA: each.replica})


def is_misconfigured(last: LastAttempt, replica: ReplicaState, now_s: float) -> bool:
    """Return True from a rejection until an answer, or for a minute while the breaker is closed."""
    if last.outcome not in ("misconfigured", "wrong_4xx") or last.answered_s >= last.failed_s:
        return False
    return replica.breaker != "closed" or (last.outcome == "misconfigured" and now_s < last.failed_s + RECENT_S)


def replica_down(facts: Facts) -> Iterator[Found]:
    """Find other replicas with an open breaker."""
    for model, replicas in facts.models().items():
        for each in replicas:
            last = facts.last_of(model, each.replica)
            if is_down(each) and not is_misconfigured(last, each, facts.now_s):
                failed = facts.model(model).replicas.get(each.replica)
                why = _why_down(facts, model, each)
                why += f"; failures in a minute: {failed.failed}" if failed is not None and failed.failed else ""
                why += f"; answers without content: {failed.empty}" if failed is not None and failed.empty else ""
                sentence = f"replica {each.replica} of {model} fails and gets no requests ({why})"
                yield Found(sentence, labels={MODEL: model, REPLICA: each.replica})


def usual_s(replica: ReplicaState, others: Sequence[ReplicaState]) -> float | None:
    """Return the usual TTFT: the median prediction of the other replicas, else the replica's own median."""
    times = sorted(
        each.predicted_s for each in others if each is not replica and each.predicted_s is not None and not each.suspect
    )
    return times[len(times) // 2] if times else replica.ttft_p50_s


def is_slow(
    replica: ReplicaState,
    others: Sequence[ReplicaState],
    slots: Mapping[str, ReplicaSlot],
    late: Mapping[str, int],
) -> bool:
    """Return True for a replica in use that has stopped answering, or begins or generates much more slowly than usual.

    The pool's tests are made for routing: they need more attempts than the few that a late replica still gets. So a
    replica is slow, too, if its last four attempts were late, and the attempts of most other replicas were not; and it
    is not slow any more after quick answers.

    Args:
        others: replicas of the model.
        slots: counts of the replicas in the last minute.
        late: late attempts in a row, by replica.
    """
    counts = slots.get(replica.replica, _NOTHING)
    if not _serves(replica):
        return False
    if replica.answer_slowness > SLOW_LEVEL:
        return True
    if replica.suspect or replica.level > SLOW_LEVEL:
        usual = usual_s(replica, others)
        is_quick = counts.answered >= _QUICK and not counts.cancelled and usual is not None
        return not (is_quick and counts.answered_s <= SLOW_LEVEL * (usual or 0.0) * counts.answered)
    rest = [each.replica for each in others if each is not replica]
    cancelled = sum(slots.get(name, _NOTHING).cancelled for name in rest)
    attempts = sum(slots.get(name, _NOTHING).attempts for name in rest)
    late_elsewhere = sum(late.get(name, 0) >= _LATE_MIN / 2 for name in rest)
    is_usual_elsewhere = cancelled <= _LOST_ELSEWHERE * attempts and 2 * late_elsewhere < len(rest)
    return late.get(replica.replica, 0) >= _LATE_MIN and counts.attempts > 0 and is_usual_elsewhere


def replica_slow(facts: Facts) -> Iterator[Found]:
    """Find slow replicas; the cancelled attempts show how much of it hedging hides."""
    for model, replicas in facts.models().items():
        slots, late = facts.model(model).replicas, facts.late(model)
        fired = sum(each.hedged for each in slots.values())
        slow = [each for each in replicas if is_slow(each, replicas, slots, late)]
        # To take one out, as the rule's command does, helps only while another one is well.
        another = any(_serves(each) and each not in slow for each in replicas)
        command = "" if another else f'curl -s "$ADMIN/admin/models/{model}"'
        for each in slow:
            counts = slots.get(each.replica, _NOTHING)
            how, ratio = _how_slow(each, replicas, counts)
            sentence = f"replica {each.replica} of {model} {how}"
            if counts.hedged and fired:
                sentence += f"; {percent(counts.hedged / fired)} of the hedges are spent on it"
            yield Found(sentence, ratio, {MODEL: model, REPLICA: each.replica}, command=command)


def _how_slow(replica: ReplicaState, others: Sequence[ReplicaState], counts: ReplicaSlot) -> tuple[str, float]:
    """Describe the slowness of a replica; return its factor, too, of which cancelled attempts show a lower bound."""
    waits, usual = counts.answered + counts.cancelled, usual_s(replica, others)
    now_s = (counts.answered_s + counts.cancelled_s) / waits if waits else 0.0
    if replica.suspect and replica.predicted_s is not None:
        now_s = max(now_s, replica.predicted_s)
    ratio = now_s / usual if usual else 1.0
    attempts = f"{counts.attempts} attempt{'' if counts.attempts == 1 else 's'}"
    parts = [f"from {attempts} in a minute, {counts.cancelled} cancelled"] if counts.attempts else []
    if replica.answer_slowness > max(SLOW_LEVEL, ratio):
        ratio, how = (
            replica.answer_slowness,
            f"takes {replica.answer_slowness:.3g}x as long as usual after first tokens",
        )
    elif usual is None or ratio < SLOW_LEVEL:
        how = "answers late or not at all"
    else:
        how = f"is {'at least ' if counts.cancelled else ''}{ratio:.3g}x slower than usual"
        parts.insert(0, f"{milliseconds(now_s)}, usual {milliseconds(usual)}")
    return f"{how} ({'; '.join(parts)})" if parts else how, max(ratio, 1.0)


def replica_gets_429(facts: Facts) -> Iterator[Found]:
    """Find replicas of which attempts get a 429."""
    for name, model in facts.minute.models.items():
        for replica, counts in model.replicas.items():
            share = counts.limited / max(1, counts.attempts)
            if counts.limited >= COUNT_MIN and share > ATTEMPTS_LIMITED_SHARE:
                numbers = f"{counts.limited} of {counts.attempts} in a minute"
                sentence = f"{percent(share)} of the attempts at {replica} of {name} get a 429 ({numbers})"
                yield Found(sentence, share, {MODEL: name, REPLICA: replica})


def quota_low(facts: Facts) -> Iterator[Found]:
    """Find quotas that are almost used up."""
    for quota, resource, share in shares_left(facts.pools):
        if share < QUOTA_LEFT_SHARE:
            labels = {"quota": quota, "resource": resource}
            yield Found(f"{percent(share)} of the {resource} of quota {quota} is left", 1.0 - share, labels)


def quota_used_by_others(facts: Facts) -> Iterator[Found]:
    """Find quotas of which clients without the gateway use a large part."""
    for quota, resource, left in shares_left(facts.pools):
        share = facts.gained.get(("others", f"{quota} {resource}"), 0.0) / RECENT_S
        if share > OTHERS_SHARE and left < OTHERS_LEFT_SHARE:
            sentence = f"other clients use {percent(share)} of the {resource} of quota {quota}; {percent(left)} is left"
            yield Found(sentence, share, {"quota": quota, "resource": resource})


def budget_spent(facts: Facts) -> Iterator[Found]:
    """Find models of which late requests are not hedged for want of budget."""
    for name, model in facts.minute.models.items():
        denied = model.denials.get(Denial.BUDGET.value, 0)
        share = denied / max(1, model.requests)
        if denied >= COUNT_MIN and share > DENIED_SHARE:
            sentence = (
                f"{percent(share)} of the requests for {name} are late and not hedged ({denied} of {model.requests} "
                f"in a minute), because the budget is spent; find the cause, or raise hedge.budget"
            )
            yield Found(sentence, share, {MODEL: name})


def hedges_denied(facts: Facts) -> Iterator[Found]:
    """Find the most frequent other reason against hedges."""
    for name, model in facts.minute.models.items():
        counts = {reason: count for reason, count in model.denials.items() if reason in _CURES}
        if counts and sum(counts.values()) >= COUNT_MIN:
            most = max(counts, key=lambda reason: counts[reason])
            share = counts[most] / max(1, model.requests)
            sentence = f"{percent(share)} of the requests for {name} are late and not hedged: {_CURES[most]}"
            yield Found(sentence, share, {MODEL: name})


def hedging_costly(facts: Facts) -> Iterator[Found]:
    """Find models of which a large part of the bill is of hedges that lost."""
    for name, (won, lost) in facts.half_hour.items():
        share = lost / max(1, won + lost)
        if share > LOST_TOKENS_SHARE:
            sentence = f"{percent(share)} of the billed tokens of {name} are of hedges that lost, in half an hour"
            yield Found(sentence, share, {MODEL: name})


def hedging_off(facts: Facts) -> Iterator[Found]:
    """Find pools with hedging switched off."""
    for pool in facts.pools:
        if not pool.hedging_on:
            labels = {MODEL: pool.model, "pool": pool.pool}
            yield Found(f"hedging of {pool.model} is switched off", labels=labels)


def replica_out(facts: Facts) -> Iterator[Found]:
    """Find replicas that are taken out."""
    for model, replicas in facts.models().items():
        for each in replicas:
            if each.out:
                labels = {MODEL: model, REPLICA: each.replica}
                yield Found(f"replica {each.replica} of {model} is taken out", labels=labels)


def discovery_fails(facts: Facts) -> Iterator[Found]:
    """Find sources of replicas without a usable answer."""
    for each in facts.discovery:
        if each.fault is not None:
            labels = {MODEL: each.model, "pool": each.pool}
            sentence = f"the source {each.source} of the replicas of {each.model} has no usable answer: {each.fault}"
            yield Found(sentence, labels=labels)
