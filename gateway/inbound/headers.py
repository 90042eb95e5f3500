"""The headers of a client's request that the gateway reads, checks or passes on. Pure.

`by_name` has the headers with names in lower case; of a repeated name the last one. Units: seconds.
"""

import math
import re
from collections.abc import Mapping
from typing import Final

from gateway.inbound import syntax_errors as inbound_syntax
from providers.base import Headers

_USUAL_CONNECTION: Final = (b"keep-alive", b"close")  # no headers
_duration = re.compile(rb"([0-9]{1,7}(?:\.[0-9]{1,6})?)(ms|s)").fullmatch


def passed(headers: Headers, names: frozenset[bytes]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers to pass on, without the white space around values, which the parser of requests keeps.

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
            raise inbound_syntax.content_type(kind)
    coding = by_name.get(b"content-encoding")
    if coding is not None and coding.strip().lower() not in (b"", b"identity"):
        raise inbound_syntax.content_encoding(coding)


def is_on(by_name: Mapping[bytes, bytes], name: bytes) -> bool:
    """Read a header whose value is `on` or `off`."""
    word = by_name[name].strip().lower()
    if word not in (b"on", b"off"):
        raise inbound_syntax.switch_header(name.decode(), word)
    return word == b"on"


def duration_s(by_name: Mapping[bytes, bytes], name: bytes) -> float:
    """Read a header whose value is a duration in milliseconds or seconds."""
    value = by_name[name]
    match = _duration(value.strip().lower())
    seconds = float(match[1]) * (0.001 if match[2] == b"ms" else 1.0) if match is not None else 0.0
    if seconds == 0.0:
        raise inbound_syntax.duration_header(name.decode(), value)
    return seconds


def read_timeout_s(by_name: Mapping[bytes, bytes]) -> float | None:
    """Read the client's read timeout from the header of OpenAI's and Anthropic's SDKs; None if missing or invalid."""
    value = by_name.get(b"x-stainless-read-timeout")
    if value is None:
        return None
    try:
        timeout_s = float(value)
    except ValueError:
        return None
    return timeout_s if 0 < timeout_s < math.inf else None
