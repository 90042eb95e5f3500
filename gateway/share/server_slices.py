"""The slices of one process in a server: sends additions, and keeps the sums that the next answer may change. Pure.

The server numbers the additions to a slice; an answer has the sums that were changed since the last one. The form is in
`ttft2.lua`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from msgspec import Meta, Raw, convert
from msgspec.msgpack import Decoder

from gateway.share.messages import BINS_MAX, NAMES_MAX, Integer, Lost, Name, SliceAnswer, SliceAsk, Sums
from ttft_gateway.pool.learned import Drop

READS_MAX: Final = 16  # slices of which one message reads all bins, so that no call takes long
_VALUE_MAX: Final = 2**53  # up to which the numbers of Lua are exact
_ADD_ONLY: Final = -1  # in place of a version
_DAMAGES: Final = (ValueError, RecursionError)  # what msgspec raises for any bytes

_NOTHING: Final = Raw(b"\x00")  # the version of a slice that is not read

_Count = Annotated[int, Meta(ge=0, le=2**53)]
_decode_raws = Decoder(Annotated[list[Raw], Meta(max_length=2 * BINS_MAX + 1)]).decode
_decode_count = Decoder(_Count).decode
_decode_flat = Decoder(Annotated[list[Name | Integer], Meta(max_length=2 * NAMES_MAX)]).decode


@dataclass(slots=True)
class _Slice:
    """A slice that this process reads.

    Attributes:
        number: its number at the server; None before the first answer.
        version: version of the last answer; 0 to read all.
        first: first bin that is kept.
        bins: sums by name, by number of the bin.
    """

    number: int | None = None
    version: int = 0
    first: int = 0
    bins: dict[int, dict[str, int]] = field(default_factory=dict)


class ServerSlices:
    """The slices of one process."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Read all with the next message; no answer to an earlier one will come."""
        self._slices: dict[str, _Slice] = {}
        self._bin = 0  # the present one, in the last answer
        self._unnumbered: list[_Slice] = []  # slices that the last message names
        self._unread: set[str] = set()  # keys of slices that the last message does not read

    def pack(self, asks: Sequence[SliceAsk]) -> list[int | str]:
        """Return the additions, for a message."""
        added: list[int | str] = []
        self._unnumbered, self._unread, reads = [], set(), 0
        for ask in asks:
            found = self._slices.setdefault(ask.key, _Slice())
            since = ask.since if ask.since <= self._bin else 0  # a number from before a loss
            if since < found.first:
                found.version, found.bins = 0, {}
            found.first = since
            found.bins = {number: sums for number, sums in found.bins.items() if number >= since}
            reads += not found.version
            version = found.version
            if reads > READS_MAX and not version:
                self._unread.add(ask.key)
                version = _ADD_ONLY
            if found.number is None:
                self._unnumbered.append(found)
            place = f"+{ask.key}" if found.number is None else found.number
            added += (place, version, len(ask.added))
            for name, value in ask.added.items():
                added += (name, max(-_VALUE_MAX, min(value, _VALUE_MAX)))
        return added

    @property
    def unnumbered(self) -> int:
        """Number of slices that the last message names."""
        return len(self._unnumbered)

    def unpack(
        self, asks: Sequence[SliceAsk], numbers: Sequence[int], present: int, changed: Sequence[Raw], drop: Drop
    ) -> list[SliceAnswer | Lost]:
        """Return the answers.

        Args:
            numbers: numbers of the slices that the message names.
            present: number of the present bin.
            changed: sums of each slice that have changed.
            drop: receives each damaged bin.
        """
        for slice_, number in zip(self._unnumbered, numbers, strict=True):
            slice_.number = number
        self._bin = present
        return [self._answer(ask, raw, drop) for ask, raw in zip(asks, changed, strict=True)]

    def _answer(self, ask: SliceAsk, raw: Raw, drop: Drop) -> SliceAnswer | Lost:
        found = self._slices[ask.key]
        since = ask.since if ask.since <= self._bin else 0
        try:
            version, *bins = _decode_raws(raw) or (_NOTHING,)
            found.version = _decode_count(version)
            for number, sums in zip(bins[::2], bins[1::2], strict=True):
                self._use(found, _decode_count(number), sums, f"{ask.key} bin", drop)
        except _DAMAGES as error:
            drop(ask.key, str(error))
            found.version = 0
        if ask.key in self._unread or since < found.first:
            found.version = 0
        if not found.version:
            return Lost()
        oldest = max(since, self._bin - BINS_MAX + 1)
        return SliceAnswer(self._bin, {number: dict(sums) for number, sums in found.bins.items() if number >= oldest})

    def _use(self, found: _Slice, number: int, packed: Raw, name: str, drop: Drop) -> None:
        """Replace the sums of a bin that have changed; a damaged bin is dropped."""
        try:
            flat = _decode_flat(packed)
            sums = convert(dict(zip(flat[::2], flat[1::2], strict=True)), Sums)
        except _DAMAGES as error:
            drop(name, str(error))
        else:
            found.bins.setdefault(number, {}).update(sums)
