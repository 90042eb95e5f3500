"""Counts of events in slots of 5 s: the memory from which the verdict and the history of the page are made.

Each process counts its own events, and keeps closed slots for two minutes; the process that judges (watch.py) collects
the slots of all and adds them up. Names of models, replicas and keys are bounded; further ones are counted as `_OTHER`.

Units: seconds of the Unix clock; times to first token in bins, 12 for each power of ten.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

import msgspec

from gateway.events import (
    AttemptFailed,
    AttemptReport,
    Event,
    HedgeFired,
    RequestEnded,
    RequestPassed,
    RequestRejected,
    Result,
)
from gateway.observe.instruments import OTHER
from ttft_gateway.hedging.charges import Disposition
from ttft_gateway.hedging.outcomes import Outcome

SLOT_S: Final = 5.0
LATE_S: Final = 5.0  # a first token after this time is late
SLOW_START_S: Final = 0.1  # of the gateway itself
_LATE_FACTOR: Final = 2.0  # of the predicted time
_SLOTS_KEPT: Final = 24
_NAMES_MAX: Final = 1_000  # of models, replicas of a model, keys and error codes in a slot
_LAST_MAX: Final = 50_000  # replicas with a last attempt, of 0.2 kB
_SLICE: Final = 32  # models that are added between two turns of the event loop, about 0.5 ms
_BINS_PER_DECADE: Final = 12
_BIN_MIN: Final = -36  # 1 ms
_BOUNDS_S: Final = [10 ** (number / _BINS_PER_DECADE) for number in range(_BIN_MIN, 36)]  # up to 825 s

_K = TypeVar("_K")
_T = TypeVar("_T")

Bins = dict[int, int]
"""Number of times by bin; a bin ends at 10 ** (bin / 12) s."""


class ReplicaSlot(msgspec.Struct, gc=False):
    """Counts of one replica.

    Attributes:
        attempts: ended attempts.
        answered: attempts with a first token.
        cancelled: attempts that lost a race and had no first token.
        failed: attempts by which the replica is judged to fail.
        empty: complete answers without content.
        limited: attempts with a 429.
        misconfigured: attempts by which the replica is judged to reject the gateway.
        hedged: hedges that were sent because this replica was late.
        answered_s, cancelled_s: sums of the waits of the attempts with a first token, and of the others that lost.
    """

    attempts: int = 0
    answered: int = 0
    cancelled: int = 0
    failed: int = 0
    empty: int = 0
    limited: int = 0
    misconfigured: int = 0
    hedged: int = 0
    answered_s: float = 0.0
    cancelled_s: float = 0.0


class ModelSlot(msgspec.Struct, gc=False):
    """Counts of one model.

    Attributes:
        requests: ended requests.
        failed: requests with status 5xx.
        limited: requests with status 429.
        answered: requests with a first token.
        late: requests with a first token after `LATE_S`.
        hedged: requests with more than one attempt at a time.
        won: requests that a hedge has won.
        winner_tokens, loser_tokens: billed tokens of answers and of hedges that lost.
        errors: failed requests by the label of their error.
        limits: requests with 429 by the owner of the limit.
        denials: requests by reasons against a hedge.
        ttft: times to first token.
        primary: times to first token of first attempts.
        given_up: waits of first attempts that ended without a first token, because a hedge won.
        replicas: counts by replica.
    """

    requests: int = 0
    failed: int = 0
    limited: int = 0
    answered: int = 0
    late: int = 0
    hedged: int = 0
    won: int = 0
    winner_tokens: int = 0
    loser_tokens: int = 0
    errors: dict[str, int] = {}
    limits: dict[str, int] = {}
    denials: dict[str, int] = {}
    ttft: Bins = {}
    primary: Bins = {}
    given_up: Bins = {}
    replicas: dict[str, ReplicaSlot] = {}


class CountSlot(msgspec.Struct, gc=False):
    """Counts of all events in one slot of time.

    Attributes:
        number: Unix time of the begin, in units of the length of the slot.
        requests: requests that reached a replica.
        slow_starts: requests to which the gateway has added more than `SLOW_START_S` before the first attempt.
        models: counts by model.
        keys: requests by key.
        rejected: rejected requests by error code.
    """

    number: int
    requests: int = 0
    slow_starts: int = 0
    models: dict[str, ModelSlot] = {}
    keys: dict[str, int] = {}
    rejected: dict[str, int] = {}


class LastAttempt(msgspec.Struct, gc=False):
    """The last failure of a replica, and its last answer.

    Attributes:
        answered_s: time of the end of the last complete answer; 0 before the first.
        failed_s: time of the last failure; 0 before the first.
        outcome: classification of the failure; "" before the first.
        error: label of the failure.
        status: HTTP status of the failure; None if none arrived.
        late: attempts in a row that were late: their first token took twice the predicted time, or a hedge won before.
    """

    model: str
    replica: str
    answered_s: float = 0.0
    failed_s: float = 0.0
    outcome: str = ""
    error: str = ""
    status: int | None = None
    late: int = 0


def add_slot(total: CountSlot, slot: CountSlot) -> Iterator[None]:
    """Add the counts of a closed slot to another one; yields after each slice, so that the event loop can go on."""
    total.requests += slot.requests
    total.slow_starts += slot.slow_starts
    _add_counts(total.keys, slot.keys)
    _add_counts(total.rejected, slot.rejected)
    for number, (name, model) in enumerate(slot.models.items(), 1):
        _add_model(_at(total.models, name, ModelSlot), model)
        if number % _SLICE == 0:
            yield


def _add_model(total: ModelSlot, model: ModelSlot) -> None:
    for field in _PLAIN_FIELDS:
        setattr(total, field, getattr(total, field) + getattr(model, field))
    for field in _COUNT_FIELDS:
        _add_counts(getattr(total, field), getattr(model, field))
    for name, replica in model.replicas.items():
        found = _at(total.replicas, name, ReplicaSlot)
        for field in ReplicaSlot.__struct_fields__:
            setattr(found, field, getattr(found, field) + getattr(replica, field))


_COUNT_FIELDS: Final = ("errors", "limits", "denials", "ttft", "primary", "given_up")
_PLAIN_FIELDS: Final = tuple({*ModelSlot.__struct_fields__} - {*_COUNT_FIELDS, "replicas"})


def _add_counts(total: dict[_K, int], counts: dict[_K, int]) -> None:
    for name, count in counts.items():
        total[name] = total.get(name, 0) + count


def _at(found: dict[str, _T], name: str, make: Callable[[], _T]) -> _T:
    """Return the counts of a name; above the bound, of all further names together."""
    value = found.get(name)
    if value is None:
        if len(found) >= _NAMES_MAX:
            name = OTHER
        value = found.setdefault(name, make())
    return value


def bin_of(time_s: float) -> int:
    """Return the bin of a time to first token."""
    return bisect_left(_BOUNDS_S, time_s) + _BIN_MIN


def seconds_of(number: int) -> float:
    """Return the middle of a bin, on the scale of logarithms."""
    return float(10 ** ((number - 0.5) / _BINS_PER_DECADE))


class WindowCounts:
    """Counts the events of one process.

    Args:
        epoch_s: returns the Unix time at which the clock of the events was 0.
        now_s: returns the time on the clock of the events.
    """

    def __init__(self, epoch_s: Callable[[], float], now_s: Callable[[], float]) -> None:
        self._epoch_s = epoch_s
        self._now_s = now_s
        self._epoch = 0.0  # of the newest slot: it changes when the wall clock is set
        self._end_s = 0.0  # of the newest slot
        self._slots: list[CountSlot] = []
        self._last: dict[tuple[str, str], LastAttempt] = {}

    def on_events(self, events: Iterable[Event]) -> None:
        """Count the events of a batch (a `gateway.observe.hub.Collector`)."""
        for event in events:
            kind = type(event)
            if kind is RequestEnded:
                self._on_request(event)  # type: ignore[arg-type] # it is its type
            elif kind in _RARE:
                self._on_rare(event)

    def closed_after(self, number: int) -> list[CountSlot]:
        """Return the slots after a number that get no further counts."""
        current = int((self._epoch_s() + self._now_s()) // SLOT_S)
        return [slot for slot in self._slots if number < slot.number < current]

    def last_attempts(self) -> list[LastAttempt]:
        """Return the last failure and the last answer of each replica."""
        return list(self._last.values())

    def forget(self, model: str, replica: str) -> None:
        """Forget a replica that was removed."""
        self._last.pop((model, replica), None)

    def _slot(self, at_s: float) -> CountSlot:
        """Return the slot of a time; an event before the newest slot is counted in the newest one."""
        if at_s >= self._end_s or not self._slots:
            self._epoch = self._epoch_s()
            number = int((self._epoch + at_s) // SLOT_S)
            if not self._slots or number > self._slots[-1].number:
                self._slots.append(CountSlot(number))
                del self._slots[:-_SLOTS_KEPT]
            self._end_s = (number + 1) * SLOT_S - self._epoch
        return self._slots[-1]

    def _on_request(self, event: RequestEnded) -> None:
        """Count a request; without calls for names that the slot has, because each request pays for them."""
        slot = self._slots[-1] if event.at_s < self._end_s else self._slot(event.at_s)
        try:
            model = slot.models[event.model]
        except KeyError:
            model = _at(slot.models, event.model, ModelSlot)
        try:
            slot.keys[event.key_name] += 1
        except KeyError:
            _count(slot.keys, event.key_name)
        slot.requests += 1
        slot.slow_starts += event.gateway_s > SLOW_START_S
        model.requests += 1
        if event.status >= 429:
            _on_status(model, event)
        if event.denials:
            for reason in event.denials:
                _count(model.denials, reason.value)
        ttft_s, attempts = event.ttft_s, event.attempts
        number = _BIN_MIN
        if ttft_s is not None:
            number += bisect_left(_BOUNDS_S, ttft_s)
            model.answered += 1
            model.late += ttft_s > LATE_S
            try:
                model.ttft[number] += 1
            except KeyError:
                model.ttft[number] = 1
        if event.result is not Result.PRIMARY or attempts[1:]:
            _on_primary(model, event)
        elif ttft_s is not None:
            try:
                model.primary[number] += 1
            except KeyError:
                model.primary[number] = 1
        for attempt in attempts:
            self._on_attempt(model, event, attempt)

    def _on_attempt(self, model: ModelSlot, event: RequestEnded, attempt: AttemptReport) -> None:
        name, outcome, charge = attempt.replica, attempt.outcome, attempt.charge
        replicas, named = model.replicas, (event.model, name)
        if name in replicas:
            replica = replicas[name]
        elif len(replicas) < _NAMES_MAX:
            replica = replicas[name] = ReplicaSlot()
        else:
            replica = _at(replicas, name, ReplicaSlot)
        last = self._last[named] if named in self._last else self._remember(event.model, name)
        replica.attempts += 1
        if attempt.content_s is not None:
            replica.answered += 1
            replica.answered_s += attempt.content_s
            is_late = attempt.predicted_s is not None and attempt.content_s > _LATE_FACTOR * attempt.predicted_s
            last.late = last.late + 1 if is_late else 0
        if charge.disposition is Disposition.WINNER:
            model.winner_tokens += charge.prompt_tokens + charge.completion_tokens
        elif charge.disposition is Disposition.LOSER:
            model.loser_tokens += charge.prompt_tokens + charge.completion_tokens
        if outcome is Outcome.FINISHED:
            last.answered_s = self._epoch + event.at_s
        elif outcome is Outcome.EMPTY:
            last.answered_s = self._epoch + event.at_s
            replica.empty += 1
        elif outcome is Outcome.LOST and attempt.content_s is None:
            replica.cancelled += 1
            replica.cancelled_s += attempt.end_s
            last.late += 1
        elif outcome is Outcome.RATE_LIMITED:
            replica.limited += 1
        elif outcome is Outcome.MISCONFIGURED:
            replica.misconfigured += 1
        elif outcome in _FAILURES:
            replica.failed += 1

    def _on_rare(self, event: Event) -> None:
        slot = self._slot(event.at_s)
        if isinstance(event, HedgeFired):
            model = _at(slot.models, event.model, ModelSlot)
            _at(model.replicas, event.primary, ReplicaSlot).hedged += 1
        elif isinstance(event, AttemptFailed):
            last = self._remember(event.model, event.replica)
            last.failed_s, last.outcome = self._epoch + event.at_s, event.outcome.value
            last.error, last.status = event.error, event.status
        elif isinstance(event, RequestRejected):
            _count(slot.rejected, event.code or "")
            if event.key_name is not None:
                _count(slot.keys, event.key_name)
        elif isinstance(event, RequestPassed):
            _count(slot.keys, event.key_name)

    def _remember(self, model: str, replica: str) -> LastAttempt:
        found = self._last.get((model, replica))
        if found is None:
            while len(self._last) >= _LAST_MAX:
                del self._last[next(iter(self._last))]
            found = self._last[(model, replica)] = LastAttempt(model, replica)
        return found


_RARE: Final = frozenset((HedgeFired, AttemptFailed, RequestRejected, RequestPassed))
_FAILURES: Final = frozenset((Outcome.FAILED, Outcome.TTFT_TIMEOUT, Outcome.CUT, Outcome.WRONG_4XX))


def _count(counts: dict[str, int], name: str) -> None:
    if name not in counts and len(counts) >= _NAMES_MAX:
        name = OTHER
    counts[name] = counts.get(name, 0) + 1


def _on_status(model: ModelSlot, event: RequestEnded) -> None:
    if event.status == 429:
        model.limited += 1
        _count(model.limits, event.limit or "provider")
    elif event.status >= 500:
        model.failed += 1
        _count(model.errors, event.error or "")


def _on_primary(model: ModelSlot, event: RequestEnded) -> None:
    """Count a request with several attempts, and the wait of its first attempt."""
    if not event.attempts:
        return
    first = event.attempts[0]
    if event.result in (Result.BACKUP_WON, Result.BACKUP_LOST):
        model.hedged += 1
        model.won += event.result is Result.BACKUP_WON
    wait_s = event.queued_s + event.gateway_s + first.start_s
    if first.content_s is not None:
        number = bin_of(wait_s + first.content_s)
        model.primary[number] = model.primary.get(number, 0) + 1
    elif first.outcome is Outcome.LOST:
        number = bin_of(wait_s + first.end_s)
        model.given_up[number] = model.given_up.get(number, 0) + 1
