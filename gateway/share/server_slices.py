"""The slices of one process in a server: sends additions, and keeps the bins that the next answers have. Pure.

A bin does not change after its end. The server sends each bin once, with the first message after its end, and all bins
of a slice that this process begins to read. The form is in `ttft3.lua`.

Units: seconds of the clock that the caller passes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from msgspec import Meta, Raw, convert
from msgspec.msgpack import Decoder

from gateway.share.messages import BINS_MAX, NAMES_MAX, Integer, Lost, Name, SliceAnswer, SliceAsk, Sums
from ttft_gateway.pool.learned import Drop

READS_MAX: Final = 16  # slices of which one message begins to read all bins, so that no call takes long
_VALUE_MAX: Final = 2**53  # up to which the numbers of Lua are exact
_READ, _GO_ON, _END = 1, 0, -1  # the server sends the bins of a slice from now on, as before, or no more
_UNUSED_S: Final = 60.0  # without an ask, after which a slice is read no more; more than any time between two asks
_PLACES: Final = 2  # of a packed bin, before its sums: the number of its slice, and its own
_DAMAGES: Final = (ValueError, RecursionError)  # what msgspec raises for any bytes

_Count = Annotated[int, Meta(ge=0, le=2**53)]
_decode_raws = Decoder(list[Raw]).decode
_decode_parts = Decoder(Annotated[list[Raw], Meta(min_length=_PLACES, max_length=_PLACES + 2 * NAMES_MAX)]).decode
_decode_flat = Decoder(list[Name | Integer]).decode
_decode_count = Decoder(_Count).decode


@dataclass(slots=True)
class _Slice:
    """A slice that this process uses.

    Attributes:
        key: its name.
        number: its number at the server; None before the first answer, 0 if the server has too many.
        asked_s: time of the last ask.
        is_read: True if the server sends its bins.
        first: first bin that is kept.
        bins: sums by name, by number of the bin.
    """

    key: str
    number: int | None = None
    asked_s: float = 0.0
    is_read: bool = False
    first: int = 0
    bins: dict[int, dict[str, int]] = field(default_factory=dict)


class ServerSlices:
    """The slices of one process."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Read all with the next message; no answer to an earlier one will come."""
        self._slices: dict[str, _Slice] = {}
        self._numbered: dict[int, _Slice] = {}
        self._bin = 0  # the present one, in the last answer
        self._unnumbered: list[_Slice] = []  # slices that the last message names
        self._begun: list[_Slice] = []  # slices that it begins to read

    def pack(self, asks: Sequence[SliceAsk], now_s: float) -> list[int | str]:
        """Return the additions, for a message."""
        added: list[int | str] = []
        self._unnumbered, self._begun = [], []
        for ask in asks:
            found = self._slices.get(ask.key) or self._slices.setdefault(ask.key, _Slice(ask.key))
            found.asked_s = now_s
            self._keep(found, ask.since if ask.since <= self._bin else 0)  # a number from before a loss
            mode = _GO_ON
            if not found.is_read and len(self._begun) < READS_MAX:
                self._begun.append(found)
                mode = _READ
            if found.number is None:
                self._unnumbered.append(found)
            elif not ask.added and mode == _GO_ON:
                continue
            added += (f"+{ask.key}" if found.number is None else found.number, mode, len(ask.added))
            for name, value in ask.added.items():
                added += (name, max(-_VALUE_MAX, min(value, _VALUE_MAX)))
        for found in [each for each in self._slices.values() if now_s >= each.asked_s + _UNUSED_S]:
            del self._slices[found.key]
            if found.number:
                del self._numbered[found.number]
                added += (found.number, _END, 0)
        return added

    @staticmethod
    def _keep(found: _Slice, since: int) -> None:
        """Keep the bins of a slice from one on."""
        if since < found.first:
            found.is_read, found.bins = False, {}
        elif since > found.first and found.bins:
            found.bins = {number: sums for number, sums in found.bins.items() if number >= since}
        found.first = since

    @property
    def unnumbered(self) -> int:
        """Number of slices that the last message names."""
        return len(self._unnumbered)

    def unpack(
        self, asks: Sequence[SliceAsk], numbers: Sequence[int], present: int, packed: bytes, drop: Drop
    ) -> list[SliceAnswer | Lost]:
        """Return the answers.

        Args:
            numbers: numbers of the slices that the message names.
            present: number of the present bin.
            packed: array of bins that have ended.
            drop: receives each damaged bin.
        """
        for found, number in zip(self._unnumbered, numbers, strict=True):
            found.number = number
            if number:
                self._numbered[number] = found
        for found in self._begun:
            found.is_read = bool(found.number)
        self._bin = present
        for raw in _decode_raws(packed):
            self._use(raw, drop)
        return [self._answer(ask) for ask in asks]

    def _answer(self, ask: SliceAsk) -> SliceAnswer | Lost:
        found = self._slices[ask.key]
        since = ask.since if ask.since <= self._bin else 0
        if not found.is_read or since < found.first:
            return Lost()
        oldest = max(since, self._bin - BINS_MAX + 1)
        return SliceAnswer(
            self._bin, {number: dict(sums) for number, sums in found.bins.items() if oldest <= number < self._bin}
        )

    def _use(self, packed: Raw, drop: Drop) -> None:
        """Take in a bin; a damaged one is dropped."""
        name = "slices"
        try:
            slice_, number, *_ = _decode_parts(packed)
            found = self._numbered.get(_decode_count(slice_))
            if found is None:  # it is not read any more
                return
            name = f"{found.key} bin"
            place = _decode_count(number)
            if not max(found.first, self._bin - BINS_MAX + 1) <= place < self._bin:
                return
            flat = _decode_flat(packed)[_PLACES:]
            found.bins[place] = convert(dict(zip(flat[::2], flat[1::2], strict=True)), Sums)
        except _DAMAGES as error:
            drop(name, str(error))
