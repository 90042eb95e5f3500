"""Conditions about the gateway itself: its processes, connections, files, shared limits and keys. Pure.

Units: seconds; requests per second.
"""

from collections.abc import Iterator
from typing import Final

from gateway.health.conditions import COUNT_MIN, clock, percent
from gateway.health.facts import RECENT_S, Facts
from gateway.health.finding import Found

OVERLOADED_PER_S: Final = 0.05
INVALID_KEYS_PER_S: Final = 0.2
UNUSUAL_FACTOR: Final = 5.0
UNUSUAL_PER_S: Final = 0.5
BUSY_SHARE: Final = 0.85
SLOW_START_SHARE: Final = 0.01


def no_connections(facts: Facts) -> Iterator[Found]:
    """Find addresses at which connections cannot be accepted."""
    for note in facts.unaccepted:
        sentence = f"connections to {note.subject} could not be accepted at {clock(note.at_s)}: {note.reason}"
        yield Found(sentence, labels={})


def overloaded(facts: Facts) -> Iterator[Found]:
    """Find rejections for want of room."""
    count = facts.minute.rejected.get("overloaded", 0)
    if count >= COUNT_MIN and count / RECENT_S >= OVERLOADED_PER_S:
        keys = facts.minute.keys
        most = max(keys, key=lambda key: keys[key]) if keys else "none"
        sentence = (
            f"the gateway rejects requests because a queue or the memory for bodies is full ({count} in a minute; "
            f"most requests come from key {most}, {keys.get(most, 0)})"
        )
        yield Found(sentence, count / RECENT_S)


def busy(facts: Facts) -> Iterator[Found]:
    """Find a gateway that uses almost all of its cores."""
    cores = 1 if facts.workers is None else max(1, facts.workers.ready)
    share = facts.gained.get(("cpu", ""), 0.0) / RECENT_S / cores
    if share > BUSY_SHARE:
        yield Found(f"the gateway uses {percent(share)} of its {cores} {'core' if cores == 1 else 'cores'}", share)


def slow(facts: Facts) -> Iterator[Found]:
    """Find a gateway that delays requests, unless they wait for the cool-down of a quota."""
    minute = facts.minute
    share = minute.slow_starts / max(1, minute.requests)
    cooling = any(quota.cooling_s > 0 for pool in facts.pools for quota in pool.quotas)
    if minute.slow_starts >= COUNT_MIN and share > SLOW_START_SHARE and not cooling:
        counts = f"{minute.slow_starts} of {minute.requests} in a minute"
        yield Found(f"the gateway itself adds more than 0.1 s to {percent(share)} of the requests ({counts})", share)


def share_away(facts: Facts) -> Iterator[Found]:
    """Find an engine of shared limits that is away."""
    share = facts.share
    if share is not None and not share.up:
        sentence = (
            f"the {'server' if share.engine == 'redis' else 'supervisor'} of shared limits does not answer since "
            f"{clock(facts.now_s - share.since_s)} ({share.fault or 'no reply'}); this gateway goes on with "
            f"{percent(share.away_part)} of each limit"
        )
        yield Found(sentence)


def limits_owed(facts: Facts) -> Iterator[Found]:
    """Find limits with a debt, of which nothing more is leased until it is repaid."""
    for lease in () if facts.share is None else facts.share.leases:
        if lease.owed > 0:
            sentence = f"limit {lease.limit} owes {lease.owed:,.0f} to other processes; nothing is leased before"
            yield Found(sentence, lease.owed, {"limit": lease.limit})


def reload_rejected(facts: Facts) -> Iterator[Found]:
    """Find a configuration, or a list of keys, that was rejected."""
    if facts.keys is not None:
        yield Found(
            f"the list of keys was rejected at {clock(facts.keys.at_s)}, the previous keys are in force; a restart "
            f"would fail: {facts.keys.reason.splitlines()[0][:300]}"
        )
    if facts.reload is not None:
        sentence = (
            f"the configuration was rejected at {clock(facts.reload.at_s)}, the previous one is in force: "
            f"{facts.reload.reason.splitlines()[0][:300]}"
        )
        yield Found(sentence)


def workers_end(facts: Facts) -> Iterator[Found]:
    """Find processes that have ended or do not answer."""
    state = facts.workers
    if facts.ended:
        ends = "; ".join(f"{note.subject} at {clock(note.at_s)}: {note.reason}" for note in facts.ended[-3:])
        ready = "" if state is None else f"; {state.ready} of {state.configured} workers serve"
        yield Found(f"a process of the gateway has ended and is replaced ({ends}){ready}", len(facts.ended))
    elif state is not None and (state.late or state.ready < state.configured):
        late = f"worker {', '.join(map(str, state.late))} does not answer" if state.late else "a worker is missing"
        yield Found(f"{late}; {state.ready} of {state.configured} workers serve", state.configured - state.ready or 1)


def log_lines_lost(facts: Facts) -> Iterator[Found]:
    """Find lost log lines."""
    lost = facts.gained.get(("log_lines_lost", ""), 0.0)
    if lost > 0:
        yield Found(f"standard output is not writable: {lost:.0f} log lines were lost in a minute", lost)


def spans_lost(facts: Facts) -> Iterator[Found]:
    """Find lost spans."""
    lost = facts.gained.get(("spans_lost", ""), 0.0)
    if lost > 0:
        yield Found(f"{lost:.0f} spans were lost in a minute: the collector of traces does not take them", lost)


def learned_file_fails(facts: Facts) -> Iterator[Found]:
    """Find a learned file that cannot be used."""
    if facts.up.get("ttft_gateway_learned_file_up") == 0.0:
        reason = "" if facts.file is None else f": {facts.file.reason}"
        yield Found(f"what the gateway has learned cannot be kept{reason}")


def component_fails(facts: Facts) -> Iterator[Found]:
    """Find parts of the gateway that have raised."""
    for (name, component), count in facts.gained.items():
        if name == "component_failures" and count > 0:
            sentence = f"the part {component} of the gateway has failed {count:.0f} times in a minute, and is skipped"
            yield Found(sentence, count, {"component": component})


def state_dropped(facts: Facts) -> Iterator[Found]:
    """Find damaged state."""
    for (name, source), count in facts.gained.items():
        if name == "state_dropped" and count > 0:
            note = facts.lost_state.get(source)
            reason = "" if note is None else f" ({note.subject}: {note.reason})"
            sentence = f"damaged state from {source} was dropped {count:.0f} times in a minute{reason}"
            yield Found(sentence, count, {"source": source})


def key_unusual(facts: Facts) -> Iterator[Found]:
    """Find keys that send much more than they did."""
    for key, mean_per_s in facts.key_means.items():
        per_s = facts.minute.keys.get(key, 0) / RECENT_S
        if per_s > UNUSUAL_PER_S and per_s > UNUSUAL_FACTOR * mean_per_s:
            sentence = f"key {key} sends {per_s:.1f} requests per second, {mean_per_s:.2g} on average before"
            yield Found(sentence, per_s, {"key": key})


def invalid_keys(facts: Facts) -> Iterator[Found]:
    """Find requests without a valid key."""
    per_s = facts.minute.rejected.get("invalid_api_key", 0) / RECENT_S
    if per_s > INVALID_KEYS_PER_S:
        yield Found(f"{per_s:.1f} requests per second have no valid key", per_s)
