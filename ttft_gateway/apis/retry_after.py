"""Reads wait times in response headers and error bodies, in every form that providers use.

Absolute times are relative to a reference from the caller, which should be the response's own `Date`, so that a wrong
local clock has no effect; without a reference they are unknown. Invalid values are unknown too, never zero. Units:
seconds, epoch seconds.
"""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from ttft_gateway.apis.base import Headers

_WAIT_S_MAX = 31 * 86400.0  # the longest window of any quota is a month; longer waits are invalid
_EPOCH_S_MIN = 1e9  # a bare number from here on is a time (2001), not a wait (32 years)
_EPOCH_MS_MIN = 1e11  # a bare number from here on is a time in milliseconds (1973; in seconds: the year 5138)
_TEXT_MAX = 64

# compiled at the first use, because the time to import counts
_NUMBER = r"\d+(\.\d*)?|\.\d+"
_DURATION = r"((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+"
_PARTS = r"([\d.]+)(ns|us|µs|μs|ms|s|m|h)"
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def wait_s(text: str, reference_s: float | None = None) -> float | None:
    """Read a wait time.

    Args:
        text: seconds (`20`, `7.66`), a Go duration (`6m0s`, `12ms`), an RFC 3339 time, an HTTP date, or an epoch time
            in seconds or milliseconds.
        reference_s: the server's time when it wrote the text, None if unknown.

    Returns:
        Seconds, 0.0 for a time that has passed; None if the text is unusable.
    """
    text = text.strip()
    if len(text) > _TEXT_MAX:
        return None
    if re.fullmatch(_NUMBER, text):
        value = float(text)
        if value < _EPOCH_S_MIN:
            return _sane(value)
        return _until(value / 1000 if value >= _EPOCH_MS_MIN else value, reference_s)
    if re.fullmatch(_DURATION, text):
        return _sane(sum(float(number) * _UNIT_S[unit] for number, unit in re.findall(_PARTS, text)))
    return _until(epoch_s(text), reference_s)


def epoch_s(text: str) -> float | None:
    """Read an RFC 3339 time or an HTTP date, None if the text is neither."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            time = parse(text)
            return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        except (ValueError, TypeError, OverflowError):
            continue
    return None


def retry_after_s(headers: Headers) -> float | None:
    """Return the wait that a response requests: the first usable of the millisecond headers and `retry-after`."""
    texts = {name: value.decode("latin-1") for name, value in headers}
    for name in (b"retry-after-ms", b"x-ms-retry-after-ms"):
        text = texts.get(name, "").strip()
        if len(text) <= _TEXT_MAX and re.fullmatch(_NUMBER, text) and (wait := _sane(float(text) / 1000)) is not None:
            return wait
    text = texts.get(b"retry-after") or texts.get(b"llm_provider-retry-after", "")  # LiteLLM's proxy renames headers
    return wait_s(text, epoch_s(texts.get(b"date", "")))


def _until(time_s: float | None, reference_s: float | None) -> float | None:
    if time_s is None or reference_s is None:
        return None
    return _sane(max(0.0, time_s - reference_s))


def _sane(wait: float) -> float | None:
    return wait if wait <= _WAIT_S_MAX else None
