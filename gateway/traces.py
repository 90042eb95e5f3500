"""The place of a request in a trace: W3C Trace Context, read from a caller and written for each attempt. Pure.

The ids of a request's spans are one random number and the numbers after it, so that the finished record needs one of
them: attempt n has the id of the request plus n + 1. No units.
"""

import re
from collections.abc import Callable
from typing import Final

import msgspec

from ttft_gateway.apis.base import Call

_read_parent = re.compile(  # version 00 has four fields; a later one may have more
    rb"(?!ff)(?:00(?=-.{52}$)|(?!00)[0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
).fullmatch
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16
_HALF: Final = 2**64  # the lower half of a trace id, which is random also where the upper half is a time
_SPAN_BITS: Final = 62  # ids of attempts are larger, and have 64 bits too


class Trace(msgspec.Struct, frozen=True, gc=False):
    """The place of one request in a trace.

    Attributes:
        trace_id: id of the trace, 32 hexadecimal digits.
        span_id: id of the request's span, 16 hexadecimal digits.
        parent_id: id of the caller's span; None if the trace begins here.
        sampled: True if the spans are exported.
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    sampled: bool

    def traceparent(self, attempt: int) -> bytes:
        """Return the header of an attempt: the replica's spans become children of the attempt's span."""
        return f"00-{self.trace_id}-{attempt_id(self.span_id, attempt)}-0{self.sampled:d}".encode()

    def carried_by(self, call: Call, attempt: int) -> Call:
        """Return the call of an attempt with its `traceparent`; a `tracestate` needs the caller's."""
        own = (b"traceparent", self.traceparent(attempt))
        others = call.headers
        if others and self.parent_id is None:
            others = tuple(header for header in others if header[0] != b"tracestate")
        return msgspec.structs.replace(call, headers=(*others, own))


class TraceStart:
    """Finds the place of each request.

    Args:
        share: share of the traces that begin here and are sampled.
        random_bits: returns a random number with this number of bits.
    """

    def __init__(self, share: float, random_bits: Callable[[int], int]) -> None:
        self._sampled_below = round(share * _HALF)
        self._random_bits = random_bits

    def begin(self, traceparent: bytes | None) -> Trace:
        """Return the place of a request; `traceparent`: header of the caller, None if it sent none.

        A caller's trace is sampled as the caller has decided: a part of a trace would have lost its parents.
        """
        span = self._random_bits(_SPAN_BITS) + 1
        found = None if traceparent is None else _read_parent(traceparent.strip(b" \t"))
        if found is not None and found[1] != _NO_TRACE and found[2] != _NO_SPAN:
            return Trace(found[1].decode(), f"{span:016x}", found[2].decode(), bool(int(found[3], 16) & 1))
        trace = self._random_bits(128) or 1  # 0 is no id
        return Trace(f"{trace:032x}", f"{span:016x}", None, trace % _HALF < self._sampled_below)


def attempt_id(span_id: str, attempt: int) -> str:
    """Return the id of an attempt's span, from the id of its request's span."""
    return f"{int(span_id, 16) + attempt + 1:016x}"
