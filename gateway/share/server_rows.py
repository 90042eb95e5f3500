"""The rows of one process in a server: sends changes only, and keeps the sums of the others. Pure.

The server gives a number to each name of a row. A message has the changes of rows since the last one; the answer has
the sums that have changed since the last answer. Messages have numbers: after a lost one, or after the server has lost
the rows, the next message has all rows, with their names. The others may have to send their rows again as well, so
gauges have no answer for a second. Additions to slices travel in the same message (server_slices.py). The form of
messages and answers is in `ttft3.lua`.

Units: seconds of the clock that the caller passes.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import sub
from typing import Annotated, Final

from msgspec import Meta, Raw
from msgspec.msgpack import Decoder, Encoder

from gateway.share.messages import (
    NAMES_MAX,
    PROCESSES_MAX,
    ROW_MAX,
    SILENT_S,
    GaugeAnswer,
    GaugeAsk,
    Integer,
    Lost,
    SliceAnswer,
    SliceAsk,
)
from gateway.share.server_slices import ServerSlices
from ttft_gateway.pool.learned import Drop

ROWS_MAX: Final = 32_768  # of all gauges
_VALUE_MAX: Final = 2**53  # up to which the numbers of Lua are exact
_SETTLE_S: Final = 1.0  # after a loss: all have sent their rows again, and counts since a start do not seem to go back
_FIRST_PLACE: Final = 2  # of a value in a row, after the number of the row
_DAMAGES: Final = (ValueError, RecursionError)  # what msgspec raises for any bytes
_ARRAY: Final = b"\xdd"  # in msgpack, before the number of items in four bytes

_Count = Annotated[int, Meta(ge=0, le=2**53)]
_RowNumber = Annotated[int, Meta(ge=0, le=ROWS_MAX)]
_Sum = Annotated[list[Integer], Meta(min_length=1, max_length=ROW_MAX + 1)]  # number of the row, then values

_encode = Encoder().encode
_decode = Decoder(tuple[_Count, _Count, list[_RowNumber], _RowNumber, _Count, _Count]).decode
_decode_sums = Decoder(list[_Sum]).decode
_decode_raws = Decoder(list[Raw]).decode
_decode_sum = Decoder(_Sum).decode
_decode_number = Decoder(int).decode


@dataclass(slots=True)
class _Gauge:
    """A gauge that this process has.

    Attributes:
        key: name of the gauge.
        asked_s: time of the last ask.
        version: number that changes with the sums.
        rows: rows of the last ask.
        sent: rows that were sent, by name; None is the name of the row that counts the processes.
        numbers: numbers of the rows at the server, 0 if it has too many.
        others: sums over the other processes; replaced at each change.
        processes: number of processes with the gauge.
    """

    key: str
    asked_s: float
    version: int
    rows: Mapping[str, Sequence[int]] | None = None
    sent: dict[str | None, Sequence[int]] = field(default_factory=dict)
    numbers: dict[str | None, int] = field(default_factory=dict)
    others: dict[str, list[int]] = field(default_factory=dict)
    processes: int = 1


class ServerRows:
    """The rows of one process.

    Args:
        database: number of the database; each has its own rows.
    """

    def __init__(self, database: int = 0) -> None:
        self._database = database
        self._number = 0  # of the last message
        self._version = 0  # of the last change of any gauge; never goes back
        self._slices = ServerSlices()
        self._epoch = 0
        self._is_lost = False
        self._settled_s = -math.inf
        self.begin()

    def begin(self) -> None:
        """Send all rows with the next message; no answer to an earlier one will come."""
        self._is_lost = self._is_lost or self._epoch > 0
        self._epoch = self._since = 0
        self._asked_s = 0.0
        self._waits = 0  # messages without an answer
        self._unnumbered: list[tuple[_Gauge, str | None]] = []  # rows that the last message names
        self._gauges: dict[str, _Gauge] = {}
        self._rows: dict[int, tuple[_Gauge, str | None]] = {}  # by number
        self._slices.begin()

    def pack(self, asks: Sequence[GaugeAsk | SliceAsk], now_s: float) -> bytes:
        """Return the message with the changes."""
        waits = self._waits
        if waits or now_s >= self._asked_s + SILENT_S:
            is_lost = self._is_lost or waits > 0
            self.begin()
            self._is_lost = is_lost
        if self._is_lost:
            self._is_lost, self._settled_s = False, now_s + _SETTLE_S
        self._asked_s, self._waits = now_s, waits + 1
        self._number += 1
        changes: list[int | str] = []
        later: list[int] = []
        for ask in asks:
            if isinstance(ask, SliceAsk):
                continue
            gauge = self._gauges.get(ask.key)
            if gauge is None:
                self._version += 1
                gauge = self._gauges[ask.key] = _Gauge(ask.key, now_s, self._version)
            gauge.asked_s = now_s
            if gauge.rows is not ask.rows:
                gauge.rows = ask.rows
                self._put(gauge, ask.rows, changes)
                later += [number for name in ask.later if (number := gauge.numbers.get(name))]
        for key in [key for key, gauge in self._gauges.items() if now_s >= gauge.asked_s + SILENT_S]:
            self._remove(self._gauges.pop(key), (), changes)
        added = self._slices.pack(_slices(asks), now_s)
        return _encode((self._database, self._number, self._epoch, self._since, changes, added, later))

    def unpack(
        self, asks: Sequence[GaugeAsk | SliceAsk], about: bytes, sums: bytes, bins: bytes, drop: Drop
    ) -> Sequence[GaugeAnswer | SliceAnswer | Lost]:
        """Return the answers; all are lost after a later message, or if the server has lost the rows.

        Args:
            about: answer to the last message without an answer.
            sums: sums of rows that have changed.
            bins: bins of slices that have ended.
            drop: receives what is damaged.
        """
        self._waits -= 1
        if self._waits:
            return [Lost()] * len(asks)
        try:
            slices = self._read(_slices(asks), about, sums, bins, drop)
        except _DAMAGES as error:
            drop("rows", str(error))
            slices = None
        if slices is None:
            self.begin()
            return [Lost()] * len(asks)
        rest = iter(slices)
        return [next(rest) if isinstance(ask, SliceAsk) else self._gauge(ask) for ask in asks]

    def _gauge(self, ask: GaugeAsk) -> GaugeAnswer | Lost:
        if self._asked_s < self._settled_s:
            return Lost()
        gauge = self._gauges[ask.key]
        return GaugeAnswer(gauge.processes, None if ask.since == gauge.version else gauge.others, gauge.version)

    # messages

    def _put(self, gauge: _Gauge, rows: Mapping[str, Sequence[int]], changes: list[int | str]) -> None:
        """Add the changes of a gauge; a gauge with too many or too long rows has none."""
        if len(rows) > NAMES_MAX or any(len(row) > ROW_MAX for row in rows.values()):
            self._remove(gauge, (), changes)
            return
        if None not in gauge.sent:
            self._put_row(gauge, None, (1,), changes)
        for name, row in rows.items():
            old = gauge.sent.get(name)
            if old is not row and old != row:
                self._put_row(gauge, name, row, changes)
        if len(gauge.sent) > len(rows) + 1:
            self._remove(gauge, {None, *rows}, changes)

    def _put_row(self, gauge: _Gauge, name: str | None, row: Sequence[int], changes: list[int | str]) -> None:
        if max(row, default=0) > _VALUE_MAX or min(row, default=0) < -_VALUE_MAX:
            row = [max(-_VALUE_MAX, min(value, _VALUE_MAX)) for value in row]
        row, old = row or (0,), gauge.sent.get(name, ())  # a row without values counts nothing
        change = [
            part
            for place, (new, before) in enumerate(zip_longest(row, old, fillvalue=0), _FIRST_PLACE)
            if new != before or place >= len(old) + _FIRST_PLACE
            for part in (place, new - before)
        ]
        gauge.sent[name] = row
        number = gauge.numbers.get(name)
        if number is None:
            changes += (self._name(gauge, name), len(change) // 2, *change)
        elif number and change:
            changes += (number, len(change) // 2, *change)

    def _remove(self, gauge: _Gauge, kept: Collection[str | None], changes: list[int | str]) -> None:
        """Remove the rows of other names."""
        for name in [name for name in gauge.sent if name not in kept]:
            number = gauge.numbers.get(name)
            changes += (self._name(gauge, name) if number is None else number, 0)
            del gauge.sent[name]
        self._replace(gauge, {name: sums for name, sums in gauge.others.items() if name in kept})

    def _name(self, gauge: _Gauge, name: str | None) -> str:
        """Return the name of a row that has no number yet."""
        self._unnumbered.append((gauge, name))
        return f"-{gauge.key}" if name is None else f"{len(gauge.key)}:{gauge.key}{name}"

    # answers

    def _read(
        self, slices: Sequence[SliceAsk], about: bytes, sums: bytes, bins: bytes, drop: Drop
    ) -> Sequence[SliceAnswer | Lost] | None:
        """Use an answer, and return the answers about slices; None if the server has lost all."""
        epoch, version, numbers, count, present, bins_count = _decode(about)
        if not epoch:
            return None
        rows = len(self._unnumbered)
        if len(numbers) != rows + self._slices.unnumbered:
            raise ValueError(f"the answer has {len(numbers)} of {rows + self._slices.unnumbered} numbers")
        for (gauge, name), number in zip(self._unnumbered, numbers, strict=False):
            gauge.numbers[name] = number
            self._rows[number] = (gauge, name)
        self._epoch, self._since, self._unnumbered = epoch, version, []
        self._use(self._changed(_array(count, sums), drop), drop)
        return self._slices.unpack(slices, numbers[rows:], present, _array(bins_count, bins), drop)

    def _changed(self, packed: bytes, drop: Drop) -> list[list[int]]:
        """Return the sums, without damaged ones."""
        try:
            return _decode_sums(packed)
        except _DAMAGES:
            found = []
            for raw in _decode_raws(packed):
                try:
                    found.append(_decode_sum(raw))
                except _DAMAGES as error:
                    gauge, name = self._rows.get(_decode_number(_decode_raws(raw)[0]), (None, None))
                    drop("rows" if gauge is None else f"{gauge.key} {name or ''}".rstrip(), str(error))
            return found

    def _use(self, changed: Sequence[list[int]], drop: Drop) -> None:
        """Replace the sums over the others by sums over all, minus the rows of this process."""
        replaced: dict[str, dict[str, list[int]]] = {}
        for number, *total in changed:
            gauge, name = self._rows.get(number, (None, None))
            if gauge is None or name not in gauge.sent:
                continue
            if name is None:
                gauge.processes = min(max(1, *total), PROCESSES_MAX)
                continue
            own, others = gauge.sent[name], replaced.setdefault(gauge.key, dict(gauge.others))
            others.pop(name, None)
            total.extend([0] * (len(own) - len(total)))  # zeros at the end are not sent
            if any(sums := [*map(sub, total, own), *total[len(own) :]]):
                others[name] = sums
        for key, others in replaced.items():
            self._replace(self._gauges[key], others)

    def _replace(self, gauge: _Gauge, others: dict[str, list[int]]) -> None:
        if others != gauge.others:
            self._version += 1
            gauge.version, gauge.others = self._version, others


def _array(count: int, items: bytes) -> bytes:
    """Return an array of msgpack with these items; with a count out of range, it is damaged."""
    return _ARRAY + (count & 0xFFFF_FFFF).to_bytes(4) + items


def _slices(asks: Sequence[GaugeAsk | SliceAsk]) -> list[SliceAsk]:
    return [ask for ask in asks if isinstance(ask, SliceAsk)]
