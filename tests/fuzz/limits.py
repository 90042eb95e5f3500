"""Any response headers: limits and waits that are sane numbers, or unknown."""

import math
from typing import Final

from ttft_gateway.apis.rate_limit_headers import RateLimitFormat
from ttft_gateway.apis.retry_after import epoch_s, retry_after_s, wait_s

WORDS: Final = (
    b"\nretry-after: ",
    b"\nretry-after-ms: ",
    b"\nx-ratelimit-limit-requests: ",
    b"\nx-ratelimit-remaining-tokens: ",
    b"\nx-ratelimit-reset-tokens: ",
    b"\nanthropic-ratelimit-input-tokens-reset: ",
    b"\ndate: Mon, 06 Oct 2025 10:00:00 GMT",
    b"6m0s",
    b"12ms",
    b"2m59.56s",
    b"1e9",
    b"2025-10-06T10:00:00Z",
    b"1759744800",
    b"1759744800000",
    b"nan",
    b"inf",
    b"-1",
    b"\xb2",
)
_WAIT_S_MAX: Final = 31 * 86_400.0
_FORMS: Final = (RateLimitFormat(), RateLimitFormat(None, None), RateLimitFormat(86_400.0, 60.0, zero_is_unknown=True))


def check(data: bytes) -> None:
    """Each line is a header, and each value is a time, too."""
    headers = []
    for line in data.split(b"\n"):
        name, _, value = line.partition(b":")
        headers.append((name.strip().lower(), value.strip()))
    _sane(retry_after_s(headers))
    for _, value in headers:
        text = value.decode("latin-1")
        _sane(wait_s(text))
        _sane(wait_s(text, 1.76e9))
        time_s = epoch_s(text)
        assert time_s is None or math.isfinite(time_s)
    for form in _FORMS:
        for limit in form.read(headers):
            assert limit.window_s > 0
            assert limit.limit is None or 0 < limit.limit < math.inf
            assert limit.remaining is None or 0 <= limit.remaining < math.inf
            _sane(limit.reset_s)


def _sane(wait: float | None) -> None:
    assert wait is None or 0 <= wait <= _WAIT_S_MAX
