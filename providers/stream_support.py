"""Remembers the request modes that a server has rejected (`stream`, `stream_options`), and returns the mode to try.

A learned mode holds for calls of the same shape, the set of their top-level keys: a server that cannot stream with some
parameter still streams all other requests, so one unusual request does not affect other callers. A mode is forgotten
after 10 minutes, because servers are updated, and if the server rejects it too. Pure, bounded. Units: seconds of the
caller's clock.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from ttft_gateway.apis.base import Api, Call
from ttft_gateway.apis.error_reasons import is_stream_refused
from ttft_gateway.apis.errors import UpstreamError

_REMEMBERED_S: Final = 600.0
_SHAPES_MAX: Final = 64
_SHAPE_KEYS_MAX: Final = 64  # a call with more keys has no shape, and nothing is learned from it
_names_options = re.compile(r"\bstream_options\b|\binclude_usage\b").search
_options = msgspec.json.Decoder(Mapping[str, object] | None).decode

_Shape = tuple[Api, frozenset[str]]


class RequestMode(NamedTuple):
    """The form in which a call is sent.

    Attributes:
        stream: request a stream; False: request one body, converted to a stream if the client needs one.
        options: `stream_options` may be sent.
    """

    stream: bool = True
    options: bool = True


DEFAULT: Final = RequestMode()
UNSTREAMED: Final = RequestMode(stream=False, options=False)


class StreamSupport:
    """The request modes that one server supports.

    Attributes:
        learned: mode and its expiry time by the shape of calls, the oldest first.
    """

    __slots__ = ("learned",)

    def __init__(self) -> None:
        self.learned: dict[_Shape, tuple[RequestMode, float]] = {}

    def mode_for(self, call: Call, now_s: float) -> RequestMode:
        """Return the mode for a call with an answer that is needed as events."""
        mode, until_s = self.learned.get(_shape(call), (DEFAULT, 0.0))
        return mode if now_s < until_s else DEFAULT

    def rejected(self, call: Call, mode: RequestMode, error: UpstreamError, now_s: float) -> bool:
        """Learn from a failed call that was sent in this mode; return True if the call now has another mode."""
        shape = _shape(call)
        other = _other(call, mode, error)
        if other is None:
            if error.status in (400, 422) and mode == self.learned.get(shape, (None,))[0]:
                del self.learned[shape]  # the rejection had another reason
            return False
        self.learned.pop(shape, None)
        while len(self.learned) >= _SHAPES_MAX:
            del self.learned[next(iter(self.learned))]
        self.learned[shape] = (other, now_s + _REMEMBERED_S)
        return True


def _other(call: Call, mode: RequestMode, error: UpstreamError) -> RequestMode | None:
    """Return another mode to try, None if there is none or the caller's own options caused the rejection."""
    if not mode.stream or not is_stream_refused(error) or len(call.spans) > _SHAPE_KEYS_MAX:
        return None
    if not _names_options(f"{error.param} {error.message}"):
        return UNSTREAMED
    return RequestMode(options=False) if mode.options and _has_standard_options(call) else None


def _has_standard_options(call: Call) -> bool:
    """Return True if the call has no `stream_options` except `include_usage`, which every server should support."""
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
