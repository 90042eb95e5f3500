"""Collects the values of fields that an answer's chunks repeat, and joins them. Pure.

A long answer has a hundred thousand chunks: what can be joined as it arrives is, so that neither memory nor the end of
the answer depends on their number.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ttft_gateway.apis.errors import ProtocolError
from ttft_gateway.apis.json_values import ITEMS_MAX

Values = dict[str, list[object]]
"""Field name -> its values in order, without nulls: an empty list means that every value was null."""

_PIECEWISE: Final = frozenset({"arguments", "input", "data", "transcript"})  # of functions, custom tools and audio
_NAMED: Final = ("function", "custom")  # fields of a tool call that arrive in pieces


def gather(into: Values, values: Mapping[str, object]) -> None:
    """Record one more value of each field."""
    for key, value in values.items():
        seen = into.setdefault(key, [])
        if value is not None:
            seen.append(value)


def gather_delta(into: Values, delta: dict[str, object]) -> None:
    """Record one more delta of a choice; the value of `tool_calls` is one `ToolCalls`."""
    calls = delta.get("tool_calls")
    if isinstance(calls, list):
        seen = into.setdefault("tool_calls", [])
        if not seen:
            seen.append(ToolCalls())
        if isinstance(seen[0], ToolCalls):
            seen[0].add(calls)
        del delta["tool_calls"]
    gather(into, delta)


def joined(values: Sequence[object]) -> object:
    """Join pieces of one value: strings are concatenated; for other types see `latest`."""
    if values and all(isinstance(value, str) for value in values):
        return "".join(map(str, values))
    return latest(values)


def latest(values: Sequence[object]) -> object:
    """Merge states of one value: lists are extended, objects updated; otherwise the last one that is not empty."""
    if not values:
        return None
    if all(isinstance(value, list) for value in values):
        return [item for value in values if isinstance(value, list) for item in value]
    if all(isinstance(value, dict) for value in values):
        return {key: item for value in values if isinstance(value, dict) for key, item in value.items()}
    return next((value for value in reversed(values) if value), values[-1])


class ToolCalls:
    """The tool calls of one choice, from their pieces.

    Pieces with equal `index` form one call. Some servers send no index, or 0 for every call: their pieces extend the
    last call, unless a piece has a function name and a new id.
    """

    __slots__ = ("_calls", "_open")

    def __init__(self) -> None:
        self._calls: list[tuple[int, _ToolCall]] = []
        self._open: dict[int, _ToolCall] = {}

    def add(self, pieces: Sequence[object]) -> None:
        """Take the pieces of one chunk.

        Raises:
            ProtocolError: there are over `ITEMS_MAX` calls.
        """
        for piece in pieces:
            if not isinstance(piece, dict):
                continue
            index = piece.pop("index", None)
            if isinstance(index, int):
                call = self._open.get(index)
            else:
                index, call = len(self._calls), self._calls[-1][1] if self._calls else None
            if call is None or call.is_other(piece):
                if len(self._calls) == ITEMS_MAX:
                    raise ProtocolError(f"the upstream's answer has over {ITEMS_MAX} tool calls")
                call = _ToolCall()
                self._calls.append((index, call))
                self._open[index] = call
            call.add(piece)

    def made(self) -> list[dict[str, object]]:
        """Return the calls in the order of their indexes."""
        return [call.made() for _, call in sorted(self._calls, key=lambda numbered: numbered[0])]


class _ToolCall:
    """One call: its first id and type, and the joined pieces of its function or custom tool."""

    __slots__ = ("_id", "_parts", "_seen")

    def __init__(self) -> None:
        self._seen: Values = {}
        self._parts: dict[str, Values] = {}  # of its function or custom tool
        self._id: object = None  # the first one that is not empty

    def is_other(self, piece: Mapping[str, object]) -> bool:
        """Return True if a piece begins another call."""
        function = piece.get("function")
        names = isinstance(function, dict) and bool(function.get("name"))
        return names and bool(self._id) and bool(piece.get("id")) and self._id != piece["id"]

    def add(self, piece: dict[str, object]) -> None:
        """Take a piece."""
        for key in _NAMED:
            part = piece.get(key)
            if isinstance(part, dict):
                self._seen.setdefault(key, [])
                gather(self._parts.setdefault(key, {}), part)
                del piece[key]
        gather(self._seen, piece)
        self._id = self._id or piece.get("id")

    def made(self) -> dict[str, object]:
        """Return the whole call."""
        made: dict[str, object] = {}
        for key, values in self._seen.items():
            if key in _NAMED:
                made[key] = _from_parts(self._parts.get(key, {}))
            else:
                made[key] = latest(values) if key not in ("id", "type") else _first(values)
        return made


def by_pieces(values: Sequence[object]) -> dict[str, object] | None:
    """Build an object from its pieces: some fields come in pieces, the others once."""
    seen: Values = {}
    for value in values:
        if isinstance(value, dict):
            gather(seen, value)
    return _from_parts(seen)


def _from_parts(parts: Values) -> dict[str, object] | None:
    return {key: joined(each) if key in _PIECEWISE else _first(each) for key, each in parts.items()} or None


def _first(values: Sequence[object]) -> object:
    return next((value for value in values if value), values[-1] if values else None)
