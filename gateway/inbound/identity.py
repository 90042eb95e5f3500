"""Reads the ids that a caller gives its request: `x-request-id`, and the trace id of `traceparent`. Pure.

Both reach the log and the headers of the answer, so an id of another form is dropped, as if the caller had sent none.
"""

import re
from typing import Final, NamedTuple

from providers.base import Headers

_request_id = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,128}").fullmatch  # UUIDs, `Root=1-...` of load balancers, base64
_trace = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?").fullmatch  # W3C Trace Context


class CallerIds(NamedTuple):
    """The ids of one request, each None if the caller sent none or an invalid one."""

    request_id: str | None
    trace_id: str | None


_NO_TRACE: Final = b"0" * 32
_NO_IDS: Final = CallerIds(None, None)


def caller_ids(headers: Headers) -> CallerIds:
    """Return the caller's ids of a request; of a repeated header, the last one counts."""
    named = parent = None
    for name, value in headers:
        if name == b"x-request-id":
            named = value
        elif name == b"traceparent":
            parent = value
    if named is None and parent is None:
        return _NO_IDS
    request_id = trace_id = None
    if named is not None and _request_id(named := named.strip(b" \t")):
        request_id = named.decode()
    if parent is not None and (found := _trace(parent.strip(b" \t"))) and found[1] != _NO_TRACE:
        trace_id = found[1].decode()
    return CallerIds(request_id, trace_id)
