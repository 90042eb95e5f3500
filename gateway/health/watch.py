"""Judges the gateway every five seconds, and keeps the verdict and the history. One process of a gateway does it.

With workers it is the supervisor, which collects the parts of all; otherwise the only process. A change of the verdict
is an event, which the log and the live feed have. Units: seconds of the loop's clock, unless a name has `unix`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from gateway.events import Event
from gateway.health.conditions import is_down, is_slow
from gateway.health.facts import RECENT_S, Collected, Facts, Note
from gateway.health.finding import Severity, Trouble, Verdict
from gateway.health.history import History, ModelHistory, SwitchUse
from gateway.health.verdict import Key, Presence, presences, values, verdict
from gateway.health.windows import LastAttempt
from gateway.observe.process import ProcessValue
from gateway.observe.state import ReplicaState, free, usage_by_others
from gateway.process_events import (
    AcceptingChanged,
    ConfigReloaded,
    HealthChanged,
    HedgingSwitched,
    KeysChanged,
    LearnedFileFailed,
    ReplicaSwitched,
    StateDropped,
    WorkerChanged,
)

LOOK_S: Final = 5.0
_ENDED_S: Final = 75.0  # for which the end of a process is a trouble
_NOTES_MAX: Final = 20
_SLICE: Final = 200  # small objects between two turns of the event loop, less than 1 ms
_TOTALS: Final[Mapping[str, str]] = {
    "ttft_gateway_log_lines_lost": "log_lines_lost",
    "ttft_gateway_spans_lost": "spans_lost",
    "ttft_gateway_state_dropped": "state_dropped",
    "process_cpu_seconds": "cpu",
}

_FOLLOWED: Final = frozenset(
    (
        AcceptingChanged,
        ConfigReloaded,
        HedgingSwitched,
        KeysChanged,
        LearnedFileFailed,
        ReplicaSwitched,
        StateDropped,
        WorkerChanged,
    )
)

Totals = dict[tuple[str, str], float]


def totals_of(process: Iterable[ProcessValue]) -> list[tuple[str, str, float]]:
    """Return the values of a process that only rise and that the rules need."""
    named = ((_TOTALS.get(each.name), each) for each in process)
    return [(name, each.labels.get("source", ""), each.value) for name, each in named if name is not None]


class Watch:
    """The verdict and the history of one gateway.

    Args:
        collect: returns the parts of all processes, with the slots that were not collected before.
        emit: receives an event for each change of the verdict.
        now_s: returns the time of events.
        epoch_s: returns the Unix time at which the clock of the events was 0.
    """

    def __init__(
        self,
        collect: Callable[[], Awaitable[Collected]],
        emit: Callable[[Event], object],
        now_s: Callable[[], float],
        epoch_s: Callable[[], float],
    ) -> None:
        self._collect = collect
        self._emit = emit
        self._now_s = now_s
        self._epoch_s = epoch_s
        self._history = History(self._unix_s())
        self._looking = asyncio.Lock()
        self._present: dict[Key, Presence] = {}
        self._verdict: Verdict | None = None
        self._shown: frozenset[tuple[str, tuple[tuple[str, str], ...]]] = frozenset()
        self._replicas: dict[tuple[str, str], dict[str, object]] = {}
        self._totals: deque[tuple[float, Totals]] = deque()
        self._ended: deque[Note] = deque(maxlen=_NOTES_MAX)
        self._reload: Note | None = None
        self._keys: Note | None = None
        self._file: Note | None = None
        self._lost_state: dict[str, Note] = {}
        self._unaccepted: dict[str, tuple[Note, bool]] = {}  # by address; True while it lasts

    async def run(self) -> None:
        """Judge until it is cancelled; a bug costs one judgement."""
        failed = False
        while True:
            try:
                await self.look()
                failed = False
            except Exception:
                if not failed:
                    logging.getLogger(__name__).exception("the verdict could not be made")
                failed = True
            await asyncio.sleep(LOOK_S)

    def note_end(self, subject: str, reason: str) -> None:
        """Report that a process has ended just now, and was replaced."""
        self._ended.append(self._note(self._now_s(), subject, reason))

    async def look(self) -> Verdict:
        """Collect, and judge; one look at a time, because each one takes slots that are collected once."""
        async with self._looking:
            return await self._look()

    async def _look(self) -> Verdict:
        collected = await self._collect()
        facts = await self._facts(collected)
        held = _held(collected, facts)
        del collected
        slices = presences(facts, self._present)
        while (present := next(slices, None)) is not None:
            self._present = present
            await asyncio.sleep(0)
        judged = self._verdict = verdict(self._present, facts.now_s, self._verdict)
        await self._remember(facts)
        del facts, slices
        await free(held)
        shown = frozenset(
            (each.alert, tuple(each.labels.items())) for each in judged.findings if each.severity is not Severity.NOTE
        )
        if shown != self._shown:
            self._shown = shown
            alerts = tuple(sorted({alert for alert, _ in shown}))
            self._emit(HealthChanged(self._now_s(), judged.state.value, judged.sentence, alerts))
        return judged

    # what readers get

    async def health(self) -> dict[str, object]:
        """Return the verdict with the last failure of each replica, JSON-ready."""
        judged = self._verdict or await self.look()
        return {
            "state": judged.state.value,
            "since": _time(judged.since_s),
            "at": _time(judged.at_s),
            "sentence": judged.sentence,
            "findings": [_described(each) for each in judged.findings],
            "more": judged.more,
            "replicas": list(self._replicas.values()),
        }

    async def history(self, model: str) -> ModelHistory:
        """Return the last 24 hours of a model."""
        return await self._history.of_model(model, self._unix_s())

    def values(self) -> Iterator[ProcessValue]:
        """Yield the metrics."""
        return values(self._verdict)

    # what it follows

    def on_events(self, events: Iterable[Event]) -> None:
        """Follow the rare events of this process (a `gateway.observe.hub.Collector`)."""
        for event in events:
            if type(event) in _FOLLOWED:
                self._on_event(event)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, HedgingSwitched):
            self._history.add_switch(SwitchUse(self._unix_of(event.at_s), event.model, None, event.on))
        elif isinstance(event, ReplicaSwitched):
            self._history.add_switch(SwitchUse(self._unix_of(event.at_s), event.model, event.replica, not event.out))
        elif isinstance(event, ConfigReloaded):
            self._reload = None if event.error is None else self._note(event.at_s, "reload", event.error)
        elif isinstance(event, KeysChanged):
            self._keys = None if event.error is None else self._note(event.at_s, "keys", event.error)
        elif isinstance(event, WorkerChanged) and not event.ready:
            self._ended.append(self._note(event.at_s, f"worker {event.worker}", event.reason or "no reason is known"))
        elif isinstance(event, LearnedFileFailed):
            self._file = self._note(event.at_s, event.file, event.error)
        elif isinstance(event, StateDropped):
            self._lost_state[event.source] = self._note(event.at_s, event.name, event.reason)
        elif isinstance(event, AcceptingChanged):
            before = self._unaccepted.get(event.address)
            note = self._note(event.at_s, event.address, event.error or (before[0].reason if before else ""))
            self._unaccepted[event.address] = note, not event.accepting

    def _note(self, at_s: float, subject: str, reason: str) -> Note:
        return Note(self._unix_of(at_s), subject, reason)

    def _unix_of(self, at_s: float) -> float:
        return self._epoch_s() + at_s

    def _unix_s(self) -> float:
        return self._epoch_s() + self._now_s()

    # facts

    async def _facts(self, collected: Collected) -> Facts:
        unix_s, history = self._unix_s(), self._history
        for part in collected.processes:
            await history.add(part.slots)
        minute = await history.last(RECENT_S, unix_s)
        return Facts(
            unix_s,
            minute,
            history.half_hour(unix_s),
            history.mean_of_keys(unix_s, minute, RECENT_S),
            collected.pools,
            await _newest(each for part in collected.processes for each in part.last),
            self._gained(_summed(collected)),
            {each.name: each.value for each in collected.values},
            collected.share,
            collected.discovery,
            collected.workers,
            [note for note in self._ended if unix_s - note.at_s < _ENDED_S],
            self._reload,
            self._keys,
            [note for note, lasts in self._unaccepted.values() if lasts or unix_s - note.at_s < RECENT_S],
            self._lost_state,
            self._file,
        )

    def _gained(self, totals: Totals) -> Totals:
        """Return the increase in the last minute of each total."""
        now_s, kept = self._now_s(), self._totals
        while len(kept) > 1 and kept[1][0] <= now_s - RECENT_S:
            kept.popleft()
        kept.append((now_s, totals))
        before = kept[0][1]
        return {key: max(0.0, value - before.get(key, 0.0)) for key, value in totals.items()}

    async def _remember(self, facts: Facts) -> None:
        """Keep the states of the replicas for the page."""
        rows, before = self._replicas, len(self._replicas)
        named: dict[tuple[str, str], None] = {}
        for part in facts.parts():
            for model, replicas in part.models().items():
                slots, late = part.model(model).replicas, part.late(model)
                for each in replicas:
                    letter, word = state_of(each, slow=is_slow(each, replicas, slots, late))
                    self._history.set_state(model, each.replica, letter, part.now_s)
                    key = model, each.replica
                    rows[key] = _row(model, each, word, part.last_of(*key))
                    named[key] = None
            await asyncio.sleep(0)
        if len(rows) != before or len(rows) != len(named):
            self._replicas = {key: rows[key] for key in named}
            self._history.keep_replicas(set(named))


def _held(collected: Collected, facts: Facts) -> list[object]:
    """Return the parts of a judgement of which there are many."""
    of_processes = ((*part.slots, *part.last, *part.pools) for part in collected.processes)
    return [*collected.pools, *facts.minute.models.values(), *(each for part in of_processes for each in part)]


def state_of(replica: ReplicaState, *, slow: bool) -> tuple[str, str]:
    """Return the letter and the words of a replica's state."""
    if replica.out:
        return "o", "taken out"
    if is_down(replica):
        return "b", "failing"
    if slow:
        return "s", "slow"
    return ".", "backup only" if replica.backup_only else "in use"


def _row(model: str, replica: ReplicaState, word: str, last: LastAttempt) -> dict[str, object]:
    failure = None
    if last.failed_s:
        at = _time(last.failed_s)
        failure = {"at": at, "outcome": last.outcome, "error": last.error, "status": last.status}
    return {"model": model, "replica": replica.replica, "state": word, "last_failure": failure}


def _described(finding: Trouble) -> dict[str, object]:
    return {
        "alert": finding.alert,
        "severity": finding.severity.value,
        "sentence": finding.sentence,
        "since": _time(finding.since_s),
        "value": round(finding.value, 4),
        "labels": finding.labels,
        "runbook": finding.runbook,
        "command": finding.command,
    }


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")


async def _newest(attempts: Iterable[LastAttempt]) -> dict[tuple[str, str], LastAttempt]:
    """Return the last attempts of all processes together."""
    found: dict[tuple[str, str], LastAttempt] = {}
    for number, each in enumerate(attempts):
        if number % _SLICE == 0:
            await asyncio.sleep(0)
        key = each.model, each.replica
        before = found.get(key)
        if before is None:
            found[key] = each
            continue
        newest = max(before, each, key=lambda last: last.failed_s)
        answered_s = max(before.answered_s, each.answered_s)
        found[key] = replace(newest, answered_s=answered_s, late=before.late + each.late)
    return found


def _summed(collected: Collected) -> Totals:
    """Return the totals of all processes; usage of quotas by others is seen by each of them."""
    totals: Totals = {}
    parts = [*(part.totals for part in collected.processes), totals_of(collected.values)]
    for name, label, value in (each for part in parts for each in part):
        totals[name, label] = totals.get((name, label), 0.0) + value
    for quota, resource, others_s in usage_by_others(collected.pools):
        totals["others", f"{quota} {resource}"] = others_s
    return totals
