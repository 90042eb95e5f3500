"""Reads the ids that a caller gives its request: `x-request-id`, and the trace id of `traceparent`. Pure.

Both reach the log and the headers of the answer, so an id of another form is dropped, as if the caller had sent none.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_request_id = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,128}").fullmatch  # UUIDs, `Root=1-...` of load balancers, base64
_trace = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?").fullmatch  # W3C Trace Context


class CallerIds(NamedTuple):
    """The ids of one request, each None if the caller sent none or an invalid one."""

    request_id: str | None
    trace_id: str | None


_NO_TRACE: Final = b"0" * 32
_NO_IDS: Final = CallerIds(None, None)


def caller_ids(by_name: Mapping[bytes, bytes]) -> CallerIds:
    """Return the caller's ids of a request from its headers, by names in lower case."""
    if b"x-request-id" not in by_name and b"traceparent" not in by_name:
        return _NO_IDS
    named, parent = by_name.get(b"x-request-id"), by_name.get(b"traceparent")
    request_id = trace_id = None
    if named is not None and _request_id(named := named.strip(b" \t")):
        request_id = named.decode()
    if parent is not None and (found := _trace(parent.strip(b" \t"))) and found[1] != _NO_TRACE:
        trace_id = found[1].decode()
    return CallerIds(request_id, trace_id)
