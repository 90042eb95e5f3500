"""How one server lets itself be asked: as a stream or as a whole, with `stream_options` or without; from its refusals.

What is learned holds for calls of the same shape, the set of their top-level keys: a server that streams, but not
together with some parameter, goes on streaming for everybody else, and no caller's odd request spoils those of others.
It is forgotten after a while, because servers are updated, and when the other way is refused as well. Pure, bounded.
Units: seconds of whichever clock the caller uses.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from providers.base import Api, Call
from providers.error_reasons import is_stream_refused
from providers.errors import UpstreamError

_REMEMBERED_S: Final = 600.0
_SHAPES_MAX: Final = 64
_SHAPE_KEYS_MAX: Final = 64  # a call with more is of no known shape
_names_options = re.compile(r"\bstream_options\b|\binclude_usage\b").search
_options = msgspec.json.Decoder(Mapping[str, object] | None).decode

_Shape = tuple[Api, frozenset[str]]


class RequestMode(NamedTuple):
    """How a call is sent.

    Attributes:
        stream: as a stream; False: its answer is asked for as a whole, and made a stream here if one is wanted.
        options: `stream_options` may be sent.
    """

    stream: bool = True
    options: bool = True


DEFAULT: Final = RequestMode()
UNSTREAMED: Final = RequestMode(stream=False, options=False)


class StreamSupport:
    """What one server has refused."""

    __slots__ = ("_learned",)

    def __init__(self) -> None:
        self._learned: dict[_Shape, tuple[RequestMode, float]] = {}  # until when; the oldest first

    def __bool__(self) -> bool:
        return bool(self._learned)

    def mode_for(self, call: Call, now_s: float) -> RequestMode:
        """How to ask it for an answer that is wanted in events."""
        mode, until_s = self._learned.get(_shape(call), (DEFAULT, 0.0))
        return mode if now_s < until_s else DEFAULT

    def rejected(self, call: Call, mode: RequestMode, error: UpstreamError, now_s: float) -> bool:
        """A call failed that was sent in this mode; returns whether it would now be sent in another one."""
        shape = _shape(call)
        other = _other(call, mode, error)
        if other is None:
            if error.status in (400, 422) and mode == self._learned.get(shape, (None,))[0]:
                del self._learned[shape]  # what was taken for the reason was none
            return False
        self._learned.pop(shape, None)
        while len(self._learned) >= _SHAPES_MAX:
            del self._learned[next(iter(self._learned))]
        self._learned[shape] = (other, now_s + _REMEMBERED_S)
        return True


def _other(call: Call, mode: RequestMode, error: UpstreamError) -> RequestMode | None:
    """Another mode in which the call may be taken, None where there is none, or where the caller is to blame."""
    if not mode.stream or not is_stream_refused(error) or len(call.spans) > _SHAPE_KEYS_MAX:
        return None
    if not _names_options(f"{error.param} {error.message}"):
        return UNSTREAMED
    return RequestMode(options=False) if mode.options and _has_standard_options(call) else None


def _has_standard_options(call: Call) -> bool:
    """The call has no `stream_options` of its own, or none but those that every server should know."""
    if "stream_options" not in call.spans:
        return True
    start, end = call.spans["stream_options"]
    try:
        options = _options(call.body[start:end]) or {}
    except msgspec.DecodeError:
        return False
    return all(key == "include_usage" and isinstance(value, bool) for key, value in options.items())


def _shape(call: Call) -> _Shape:
    return call.api, frozenset(call.spans)
