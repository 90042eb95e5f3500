"""The headers of a client's request that the gateway reads, checks or passes on. Pure.

`by_name` has the headers with names in lower case; of a repeated name the last one. The ids that a caller gives its
request reach the log and the headers of the answer, so an id of another form is dropped, as if there were none. Units:
seconds.
"""

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from ttft_gateway.apis.base import HOPS, Headers
from ttft_gateway.requests import errors as inbound_errors

_USUAL_CONNECTION: Final = (b"keep-alive", b"close")  # no headers
_request_id = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,128}").fullmatch  # UUIDs, `Root=1-...` of load balancers, base64
_trace = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?").fullmatch  # W3C Trace Context
_NO_TRACE: Final = b"0" * 32
_duration = re.compile(rb"([0-9]{1,7}(?:\.[0-9]{1,6})?)(ms|s)").fullmatch
_count = re.compile(rb"[0-9]{1,4}").fullmatch
_milliseconds = re.compile(rb"[0-9]{1,7}(?:\.[0-9]{1,6})?").fullmatch


class CallerIds(NamedTuple):
    """The ids of one request, each None if the caller sent none or an invalid one."""

    request_id: str | None
    trace_id: str | None


class CallerTimes(NamedTuple):
    """The limits and the target of a caller for the times of its answer, in seconds from its request on.

    Attributes:
        deadline_s: for the first content, or for an answer in one piece; the shortest limit, None if there is none.
        read_timeout_s: for bytes of any kind, the read timeout of its SDK; None if it is unknown.
        silence_s: for each silence of content in a stream, or for a whole answer that is not streamed.
        total_s: for the end of the answer.
        ttft_target_s: for the first content, as a target of hedging; None if there is none.
    """

    deadline_s: float | None = None
    read_timeout_s: float | None = None
    silence_s: float = math.inf
    total_s: float = math.inf
    ttft_target_s: float | None = None


TIMES: Final = frozenset(
    [
        b"x-ttft-deadline",
        b"x-ttft-max",
        b"x-ttft-target",
        b"x-ttft-total",
        b"x-llm-d-slo-ttft-ms",
        b"x-stainless-read-timeout",
    ]
)
NO_TIMES: Final = CallerTimes()
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


def hops(by_name: Mapping[bytes, bytes]) -> int:
    """Return the number of gateways that a request has gone through; 0 without a valid number."""
    match = _count(by_name.get(HOPS, b"").strip(b" \t"))
    return 0 if match is None else int(match[0])


def passed(headers: Headers, names: frozenset[bytes]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers to pass on, without the white space around values, which the parser of requests leaves there.

    It is no part of a value (RFC 9110, 5.5), and a client library that rejects it would blame the replica.
    """
    hidden = listed_in_connection(headers)
    return tuple((name, value.strip(b" \t")) for name, value in headers if name in names and name not in hidden)


def listed_in_connection(headers: Headers) -> set[bytes]:
    """Return the names in `Connection`, in lower case: no proxy passes these headers on (RFC 9110, 7.6.1)."""
    return {
        option.strip(b" \t").lower()
        for name, value in headers
        if name == b"connection" and value not in _USUAL_CONNECTION
        for option in value.split(b",")
    }


def check_content_headers(by_name: Mapping[bytes, bytes]) -> None:
    """Reject a body that is declared as compressed or as another media type than JSON."""
    media = by_name.get(b"content-type")
    if media is not None and media != b"application/json":
        kind = media.partition(b";")[0].strip().lower()
        if kind not in (b"", b"application/json") and not kind.endswith(b"+json"):
            raise inbound_errors.content_type(kind)
    coding = by_name.get(b"content-encoding")
    if coding is not None and coding.strip().lower() not in (b"", b"identity"):
        raise inbound_errors.content_encoding(coding)


def is_on(by_name: Mapping[bytes, bytes], name: bytes) -> bool:
    """Read a header with the value `on` or `off`."""
    word = by_name[name].strip().lower()
    if word not in (b"on", b"off"):
        raise inbound_errors.switch_header(name.decode(), word)
    return word == b"on"


def duration_s(by_name: Mapping[bytes, bytes], name: bytes) -> float:
    """Read a header with a duration in milliseconds or seconds."""
    value = by_name[name]
    match = _duration(value.strip().lower())
    seconds = float(match[1]) * (0.001 if match[2] == b"ms" else 1.0) if match is not None else 0.0
    if seconds == 0.0:
        raise inbound_errors.duration_header(name.decode(), value)
    return seconds


def caller_times(by_name: Mapping[bytes, bytes]) -> CallerTimes:
    """Read the headers of `TIMES`; a missing one is no limit.

    Raises:
        InvalidRequest: a header of the gateway's own is no duration.
    """
    read_s = _read_timeout_s(by_name)
    silence_s = duration_s(by_name, b"x-ttft-deadline") if b"x-ttft-deadline" in by_name else read_s or math.inf
    ttft_s = duration_s(by_name, b"x-ttft-max") if b"x-ttft-max" in by_name else math.inf
    total_s = duration_s(by_name, b"x-ttft-total") if b"x-ttft-total" in by_name else math.inf
    target_s = None
    if b"x-ttft-target" in by_name:
        target_s = duration_s(by_name, b"x-ttft-target")
    elif b"x-llm-d-slo-ttft-ms" in by_name:
        target_s = _slo_s(by_name[b"x-llm-d-slo-ttft-ms"])
    deadline_s = min(silence_s, ttft_s, total_s)
    return CallerTimes(deadline_s if deadline_s < math.inf else None, read_s, silence_s, total_s, target_s)


def _slo_s(value: bytes) -> float | None:
    """Read llm-d's TTFT objective in milliseconds; None if it is zero or no number, which llm-d ignores, too."""
    match = _milliseconds(value.strip(b" \t"))
    return None if match is None else float(match[0]) / 1000 or None


def _read_timeout_s(by_name: Mapping[bytes, bytes]) -> float | None:
    """Read the client's read timeout from the header of OpenAI's and Anthropic's SDKs; None if missing or invalid."""
    value = by_name.get(b"x-stainless-read-timeout")
    if value is None:
        return None
    try:
        timeout_s = float(value)
    except ValueError:
        return None
    return timeout_s if 0 < timeout_s < math.inf else None
