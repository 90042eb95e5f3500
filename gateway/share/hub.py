"""The engine of one host: adds up the asks of its workers, in the supervisor, and their connections to it. Pure.

`ShareHub` is a state machine without connections. Everything is bounded, and everything may be lost: where a table is
full, its least recently used entry goes, and the hints in later asks replace it. It does not carry switches, which the
supervisor sends to all workers (gateway/workers/settings_in_force.py).

`HubEngine` and `answers_of` are the two ends of a connection over a message channel, of which they use one method.

Units: seconds of the engine's clock.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Final, Generic, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from gateway.share.debts import OWED_MAX, Segment, absorb, cut, segments_of, waste, waste_given_back
from gateway.share.messages import (
    ASK_LIFE_S,
    BIN_S,
    BINS_MAX,
    FORGET_S_MAX,
    FORGET_WINDOWS,
    NAMES_MAX,
    PROCESSES_MAX,
    ROW_MAX,
    SILENT_S,
    Answer,
    Answered,
    Ask,
    BucketAnswer,
    BucketAsk,
    GaugeAnswer,
    GaugeAsk,
    Lost,
    Reply,
    SliceAnswer,
    SliceAsk,
    SlotsAnswer,
    SlotsAsk,
    keep_silent,
)
from ttft_gateway.pool.learned import Drop

METHOD: Final = "share"  # of the message channel
KEYS_MAX: Final = 20_000  # of each kind
_LOWER_S: Final = 5.0  # without an ask with a lower limit; then a higher one counts
_PAUSE_S: Final = 2.0  # longer than any process is silent
_GONE_MAX: Final = 4  # silent processes removed by one ask, so that no ask takes long

_REPLY_S_MAX: Final = 30.0  # a reply is late much earlier, but its answers are used
_DAMAGES: Final = (ValueError, RecursionError)  # what msgspec raises for any bytes

_LEASES: Final = (BucketAsk, SlotsAsk)
_T = TypeVar("_T")

_decode_asks = msgspec.msgpack.Decoder(tuple[float, list[Ask]]).decode
_decode_raws = msgspec.msgpack.Decoder(tuple[float, list[msgspec.Raw]]).decode
_decode_ask: Callable[[msgspec.Raw], Ask] = msgspec.msgpack.Decoder(Ask).decode
_decode_reply = msgspec.msgpack.Decoder(Reply).decode


class _Table(dict[str, _T], Generic[_T]):
    """Entries by key, least recently used first, at most `KEYS_MAX`."""

    def use(self, key: str) -> _T | None:
        """Return the entry of a key as the most recently used one, None if there is none."""
        entry = self.pop(key, None)
        if entry is not None:
            self[key] = entry
        return entry

    def add(self, key: str, entry: _T) -> _T:
        """Add an entry; the least recently used one makes room."""
        if len(self) >= KEYS_MAX:
            del self[next(iter(self))]
        self[key] = entry
        return entry


@dataclass(slots=True)
class _Lowest:
    """The lowest limit that processes ask with; a higher one counts once no process has asked with the lower one."""

    value: float
    asked_s: float

    def counted(self, value: float, now_s: float) -> float:
        if value <= self.value or now_s >= self.asked_s + _LOWER_S:
            self.value, self.asked_s = value, now_s
        return self.value


@dataclass(slots=True)
class _Bucket:
    """A bucket.

    Attributes:
        created_s: time of its creation.
        base: lowest amount that processes had seen before its creation, and the time at which they had; equal to the
            amount at its creation if there was none.
        left: amount at `now_s`.
        wasted: refill that it has wasted while it was full.
        reports: number of the last report by process.
    """

    amount: _Lowest
    epoch: int
    created_s: float
    base: tuple[float, float]
    left: float
    now_s: float
    wasted: list[Segment] = field(default_factory=list)
    reports: _Table[int] = field(default_factory=_Table)


@dataclass(slots=True)
class _Slots:
    """The slots of one limit.

    Attributes:
        held: slots by process.
        lacking: loop time of the last ask that got less than it wanted, by process.
        unknown: slots of processes that have not asked since the creation, counted until `unknown_s`.
    """

    limit: _Lowest
    unknown: int
    unknown_s: float
    held: dict[str, int] = field(default_factory=dict)
    lacking: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Gauge:
    """The rows of each process, and their sums.

    Attributes:
        rows: rows by process.
        seen_s: time of the last ask by process, longest silent first.
        sums: sums by name.
        counts: number of processes that have a row of the name.
        versions: version with the last change of each sum.
        version: number of the last change of any row.
    """

    rows: dict[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    seen_s: dict[str, float] = field(default_factory=dict)
    sums: dict[str, list[int]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    version: int = 0


class ShareHub:
    """The engine of one host."""

    def __init__(self) -> None:
        self._processes: dict[str, float] = {}  # time of the last ask, longest silent first
        self._asked_s = math.inf  # time of the last ask of all
        self._buckets: _Table[_Bucket] = _Table()
        self._slots: _Table[_Slots] = _Table()
        self._gauges: _Table[_Gauge] = _Table()
        self._slices: _Table[dict[int, dict[str, int]]] = _Table()
        self._epoch = 0

    def answer(self, now_s: float, process: str, asks: Sequence[Ask], until_s: float = math.inf) -> Reply:
        """Execute a batch of a process, and return its answers; after `until_s`, nothing is leased."""
        self._see(process, now_s)
        is_old = now_s > until_s
        answers = [Lost() if is_old and isinstance(ask, _LEASES) else self._answer(now_s, process, ask) for ask in asks]
        return Reply(answers, len(self._processes), now_s)

    def processes(self, now_s: float) -> dict[str, float]:
        """Return the time since the last ask of each process."""
        return {process: now_s - seen_s for process, seen_s in self._processes.items()}

    def gone(self, process: str) -> None:
        """Forget a process after the end of its connection."""
        self._processes.pop(process, None)
        for slots in self._slots.values():
            slots.held.pop(process, None)
            slots.lacking.pop(process, None)
        for gauge in self._gauges.values():
            _replace(gauge, process, None, gauge.version + 1)

    def _see(self, process: str, now_s: float) -> None:
        paused_s = now_s - self._asked_s
        if paused_s > _PAUSE_S:  # the engine has not run: its processes were not silent
            self._processes = {each: seen_s + paused_s for each, seen_s in self._processes.items()}
        self._asked_s = now_s
        self._processes.pop(process, None)
        if len(self._processes) >= PROCESSES_MAX:
            self.gone(next(iter(self._processes)))
        self._processes[process] = now_s
        for silent in _silent(self._processes, now_s):
            self.gone(silent)

    def _answer(self, now_s: float, process: str, ask: Ask) -> Answer:
        if isinstance(ask, BucketAsk):
            return self._bucket(now_s, process, ask)
        if isinstance(ask, GaugeAsk):
            return self._gauge(now_s, process, ask)
        if isinstance(ask, SliceAsk):
            return self._slice(now_s, ask)
        return self._lease_slots(now_s, process, ask) if isinstance(ask, SlotsAsk) else Lost()

    # leases

    def _bucket(self, now_s: float, process: str, ask: BucketAsk) -> BucketAnswer:
        bucket = self._buckets.use(ask.key)
        if bucket is None or now_s >= bucket.now_s + _kept_s(ask.window_s):
            bucket = self._buckets.add(ask.key, self._created(now_s, ask))
        amount = bucket.amount.counted(ask.amount, now_s)
        rate = amount / ask.window_s
        _refill(bucket, amount, rate, ask.window_s, now_s)
        if ask.hint is not None and ask.epoch != bucket.epoch:
            _use_hint(bucket, ask.hint, now_s - ask.hint_age_s, amount, rate)
        if ask.spent and (not ask.report or bucket.reports.use(process) != ask.report):
            bucket.reports.add(process, ask.report)
            owed = absorb(bucket.wasted, segments_of(ask.spent, now_s))
            bucket.left = max(bucket.left - owed, min(bucket.left, -OWED_MAX * amount))
        bucket.left -= ask.beyond
        if bucket.left > amount:
            waste_given_back(bucket.wasted, bucket.left - amount, rate, now_s)
            bucket.left = amount
        if ask.drained:
            bucket.left = min(0.0, bucket.left)
        least = min(ask.least, amount)
        missing = least - bucket.left
        if missing > 1e-9 * amount:
            return BucketAnswer(0.0, bucket.left, missing / rate if rate else math.inf, bucket.epoch, amount)
        granted = min(max(ask.want, least), max(0.0, bucket.left))
        bucket.left -= granted
        return BucketAnswer(granted, bucket.left, 0.0, bucket.epoch, amount)

    def _created(self, now_s: float, ask: BucketAsk) -> _Bucket:
        """Return a bucket without a history but the hint of an ask.

        Without a hint, one that has lost what was spent was full until then: each report is charged at its time.
        """
        self._epoch = max(self._epoch + 1, int(1000 * now_s))
        left, at_s = ask.amount, now_s
        if ask.hint is not None:
            left, at_s = min(ask.hint, ask.amount), now_s - ask.hint_age_s
        elif ask.spent:
            at_s -= _kept_s(ask.window_s)
        return _Bucket(_Lowest(ask.amount, now_s), self._epoch, now_s, (left, at_s), left, at_s)

    def _lease_slots(self, now_s: float, process: str, ask: SlotsAsk) -> SlotsAnswer:
        slots = self._slots.use(ask.key)
        if slots is None:
            slots = self._slots.add(
                ask.key, _Slots(_Lowest(ask.limit, now_s), ask.held + (ask.others or 0), now_s + SILENT_S)
            )
        limit = int(slots.limit.counted(ask.limit, now_s))
        if now_s >= slots.unknown_s:
            slots.unknown = 0
        if slots.held.pop(process, None) is None:
            slots.unknown = max(0, slots.unknown - ask.held)
        others = sum(slots.held.values()) + slots.unknown
        granted = max(0, min(ask.want, limit - others - ask.held))
        if ask.held or granted:
            slots.held[process] = ask.held + granted
        slots.lacking.pop(process, None)
        for lacking in _silent(slots.lacking, now_s, 1.0):
            del slots.lacking[lacking]
        wanted = bool(slots.lacking)
        if granted < ask.want:
            slots.lacking[process] = now_s
        return SlotsAnswer(granted, others, limit, wanted)

    # sums

    def _gauge(self, now_s: float, process: str, ask: GaugeAsk) -> GaugeAnswer | Lost:
        gauge = self._gauges.use(ask.key) or self._gauges.add(ask.key, _Gauge())
        version = max(gauge.version + 1, int(1e6 * now_s))
        for each in _silent(gauge.seen_s, now_s):
            _replace(gauge, each, None, version)
        if ask.is_part and process not in gauge.rows:
            return Lost()
        rows = {**gauge.rows[process], **ask.rows} if ask.is_part else ask.rows
        _replace(gauge, process, rows if _fits(gauge, rows) else None, version)
        own = gauge.rows.get(process, {})
        gauge.seen_s.pop(process, None)
        if process in gauge.rows:
            gauge.seen_s[process] = now_s
        if ask.since == gauge.version:
            return GaugeAnswer(len(gauge.rows), None, gauge.version)
        since = ask.since if ask.since < gauge.version else 0  # a later one is from before a loss
        others: dict[str, list[int]] = {}
        for name, changed in gauge.versions.items():
            if changed > since and name in rows:
                rest = _without(gauge.sums[name], own.get(name))
                is_empty = not any(rest)
                if since or not is_empty:
                    others[name] = [] if is_empty else rest
        return GaugeAnswer(len(gauge.rows), others, gauge.version, since > 0)

    def _slice(self, now_s: float, ask: SliceAsk) -> SliceAnswer:
        bins = self._slices.use(ask.key)
        if bins is None:
            bins = self._slices.add(ask.key, {})
        number = int(now_s / BIN_S)
        for old in [each for each in bins if each <= number - BINS_MAX or each > number]:
            del bins[old]
        if ask.added:
            sums = bins.setdefault(number, {})
            for name, added in ask.added.items():
                if name in sums or len(sums) < NAMES_MAX:
                    sums[name] = sums.get(name, 0) + added
        since = ask.since if ask.since <= number else 0  # a number from before a loss
        return SliceAnswer(number, {each: dict(sums) for each, sums in bins.items() if since <= each < number})


def _kept_s(window_s: float) -> float:
    """Return the time for which a bucket without an ask is kept."""
    return min(FORGET_WINDOWS * window_s, FORGET_S_MAX)


def _refill(bucket: _Bucket, amount: float, rate: float, window_s: float, now_s: float) -> None:
    """Fill a bucket until now, and note what it wastes."""
    refill = max(0.0, now_s - bucket.now_s) * rate
    over = min(refill, bucket.left + refill - amount)
    if over > 0:
        waste(bucket.wasted, (now_s - over / rate, now_s, over), window_s)
    bucket.left, bucket.now_s = min(amount, bucket.left + refill), now_s


def _use_hint(bucket: _Bucket, hint: float, hint_s: float, amount: float, rate: float) -> None:
    """Use the amount that a process has seen, or supposes, in a bucket if the bucket has counted more."""
    if hint_s >= bucket.created_s:  # of a process that has started without the engine
        supposed = hint + (bucket.now_s - hint_s) * rate
        if supposed < bucket.left:
            bucket.left = supposed
            cut(bucket.wasted, hint_s)
        return
    left, at_s = bucket.base
    since_s = max(at_s, hint_s)
    counted = min(amount, left + (since_s - at_s) * rate)
    seen = min(amount, hint + (since_s - hint_s) * rate)
    if seen < counted:
        bucket.base = (seen, since_s)
        bucket.left -= absorb(bucket.wasted, [(since_s, since_s, counted - seen)])


def _silent(seen_s: dict[str, float], now_s: float, silent_s: float = SILENT_S) -> list[str]:
    """Return some of the processes that were not seen for `silent_s`; `seen_s` has the longest silent one first."""
    silent: list[str] = []
    for process, at_s in seen_s.items():
        if len(silent) >= _GONE_MAX or now_s < at_s + silent_s:
            break
        silent.append(process)
    return silent


def _fits(gauge: _Gauge, rows: Mapping[str, Sequence[int]]) -> bool:
    """Return True unless there are too many rows, or too long ones."""
    are_few = len(gauge.sums) + len(rows) <= NAMES_MAX or len(gauge.sums.keys() | rows.keys()) <= NAMES_MAX
    return are_few and max(map(len, rows.values()), default=0) <= ROW_MAX


def _replace(gauge: _Gauge, process: str, rows: Mapping[str, Sequence[int]] | None, version: int) -> None:
    """Replace a process's rows, None for no part in the gauge; what changes has the version."""
    old = gauge.rows.get(process)
    if old == rows:
        return
    before, after = old or {}, rows or {}
    for name, row in after.items():
        if (last := before.get(name)) != row:
            _change(gauge, name, last, row, version)
    for name in before.keys() - after.keys():
        _change(gauge, name, before[name], None, version)
    gauge.version = version
    if rows is None:
        del gauge.rows[process], gauge.seen_s[process]
    else:
        gauge.rows[process] = rows


def _change(gauge: _Gauge, name: str, old: Sequence[int] | None, new: Sequence[int] | None, version: int) -> None:
    """Replace the row of one process in a sum; None for no row."""
    sums = gauge.sums.setdefault(name, [])
    _add(sums, old or (), -1)
    _add(sums, new or (), 1)
    gauge.versions[name] = version
    gauge.counts[name] = gauge.counts.get(name, 0) + (new is not None) - (old is not None)
    if not gauge.counts[name]:
        del gauge.sums[name], gauge.counts[name], gauge.versions[name]


def _without(sums: list[int], row: Sequence[int] | None) -> list[int]:
    if row is None:
        return list(sums)
    return [*map(sub, sums, row), *sums[len(row) :]]


def _add(sums: list[int], row: Sequence[int], sign: int) -> None:
    """Add a row to sums, which grow to its length."""
    sums.extend([0] * (len(row) - len(sums)))
    for place, value in enumerate(row):
        sums[place] += sign * value


class Calls(Protocol):
    """The channel to the process with the hub."""

    def call(self, method: str, payload: object, on_reply: Callable[[bytes | None], object], deadline_s: float) -> None:
        """Call a method; `on_reply` is called once, later, with the encoded answer, or None if there is none."""


class HubEngine:
    """The connection of one process; it ends with the channel. Rows that have not changed are not sent again.

    Args:
        channel: the channel.
        now: returns the time of a clock that all processes of the host have in common.

    Attributes: see `gateway.share.messages.NamedEngine`.
    """

    kind = "hub"
    fault = ""  # without the channel, the process ends
    is_rejected = False
    carries_switches = False
    batch_exchanges = 20  # about 0.5 ms of the supervisor

    def __init__(self, channel: Calls, now: Callable[[], float]) -> None:
        self.drop: Drop = keep_silent
        self._channel = channel
        self._now = now
        self._last: dict[str, GaugeAsk] = {}  # by key
        self._answered: dict[str, GaugeAsk] = {}  # of these, those that have an answer

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        """Send a batch."""

        def on_reply(packed: bytes | None) -> None:
            answered(None if packed is None else self._read(asks, packed))

        sent = [self._changes(ask) if isinstance(ask, GaugeAsk) else ask for ask in asks]
        self._channel.call(METHOD, (self._now() + ASK_LIFE_S, sent), on_reply, _REPLY_S_MAX)

    def _changes(self, ask: GaugeAsk) -> GaugeAsk:
        """Return an ask without the rows that the last ask had, if that has an answer."""
        if len(self._last) >= KEYS_MAX:
            self._last.clear()
            self._answered.clear()
        self._last[ask.key], last = ask, self._answered.pop(ask.key, None)
        if last is None or not ask.since or last.rows.keys() != ask.rows.keys():
            return ask
        changed = {name: row for name, row in ask.rows.items() if row is not last.rows[name] and row != last.rows[name]}
        return replace(ask, rows=changed, is_part=True)

    def _read(self, asks: Sequence[Ask], packed: bytes) -> Reply | None:
        try:
            reply = _decode_reply(packed)
        except _DAMAGES as error:
            self.drop("reply", str(error))
            return None
        for ask, answer in zip(asks, reply.answers, strict=False):
            if isinstance(ask, GaugeAsk) and isinstance(answer, GaugeAnswer) and self._last.get(ask.key) is ask:
                self._answered[ask.key] = ask
        return reply

    def close(self) -> None:
        """Do nothing: the channel serves the whole process."""


def answers_of(
    hub: ShareHub, process: str, now: Callable[[], float], drop: Drop = keep_silent
) -> Callable[[bytes], Reply]:
    """Return the method that answers the batches of one process.

    Args:
        now: returns the time of the common clock.
        drop: receives damaged asks; their answers are lost.
    """

    def answer(packed: bytes) -> Reply:
        until_s, asks = _undamaged(packed, drop)
        reply = hub.answer(now(), process, [ask for ask in asks if ask is not None], until_s)
        answers = iter(reply.answers)
        return Reply([Lost() if ask is None else next(answers) for ask in asks], reply.processes, reply.now_s)

    return answer


def _undamaged(packed: bytes, drop: Drop) -> tuple[float, Sequence[Ask | None]]:
    """Return the end and the asks of a batch; None for a damaged ask."""
    try:
        return _decode_asks(packed)
    except _DAMAGES:
        until_s, raws = _decode_raws(packed)
        return until_s, [_ask(raw, drop) for raw in raws]


def _ask(raw: msgspec.Raw, drop: Drop) -> Ask | None:
    try:
        return _decode_ask(raw)
    except _DAMAGES as error:
        drop("ask", str(error))
        return None
