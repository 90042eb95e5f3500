"""Waits and times in every form that providers write them."""

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.apis.retry_after import epoch_s, retry_after_s, wait_s

NOW = 1_753_000_000.0  # Sun, 20 Jul 2025 08:26:40 GMT
DATE = (b"date", b"Sun, 20 Jul 2025 08:26:40 GMT")


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("0", 0.0),
        ("20", 20.0),
        (" 7.66 ", 7.66),
        (".5", 0.5),
        ("12ms", 0.012),
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("2m59.56s", 179.56),
        ("1h2m3s", 3723.0),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("40ns", 4e-8),
        ("52s", 52.0),
        ("1753000060", 60.0),
        ("1753000060.5", 60.5),
        ("1753000060500", 60.5),
        ("1752999999", 0.0),
        ("2025-07-20T08:27:40Z", 60.0),
        ("2025-07-20T10:27:40.5+02:00", 60.5),
        ("Sun, 20 Jul 2025 08:27:40 GMT", 60.0),
        ("Sun, 20 Jul 2025 08:00:00 GMT", 0.0),
        ("", None),
        ("-1", None),
        ("-5s", None),
        ("nan", None),
        ("inf", None),
        ("1e3", None),
        ("soon", None),
        ("1 s", None),
        ("5d", None),
        ("s", None),
        ("1.2.3s", None),
        ("99999999", None),  # three years
        ("9" * 60, None),
        ("9" * 500, None),
        ("2099-01-01T00:00:00Z", None),
        ("Sun, 99 Jul 2025 08:27:40 GMT", None),
    ],
)
def test_wait(text: str, wait: float | None) -> None:
    """A wait is seconds from the reference on, and nonsense is unknown, never zero."""
    assert wait_s(text, NOW) == (wait if wait is None else pytest.approx(wait))


@pytest.mark.parametrize(
    "text", ["1753000060", "1753000060500", "2025-07-20T08:27:40Z", "Sun, 20 Jul 2025 08:27:40 GMT"]
)
def test_a_time_without_a_reference_is_unknown(text: str) -> None:
    """The local clock never replaces the response's own."""
    assert wait_s(text) is None


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ([], None),
        ([DATE], None),
        ([(b"retry-after", b"20")], 20.0),
        ([(b"llm_provider-retry-after", b"7")], 7.0),
        ([(b"llm_provider-retry-after", b"7"), (b"retry-after", b"2")], 2.0),
        ([(b"retry-after", b"1"), (b"retry-after-ms", b"250")], 0.25),
        ([(b"retry-after-ms", b"x"), (b"x-ms-retry-after-ms", b"1500")], 1.5),
        ([(b"retry-after-ms", b"-1"), (b"retry-after", b"2")], 2.0),
        ([(b"x-ms-retry-after-ms", b"1500"), (b"retry-after", b"2")], 1.5),
        ([(b"retry-after", b"Sun, 20 Jul 2025 08:27:10 GMT"), DATE], 30.0),
        ([(b"retry-after", b"Sun, 20 Jul 2025 08:27:10 GMT")], None),
        ([(b"retry-after", b"Sun, 20 Jul 2025 08:27:10 GMT"), (b"date", b"yesterday")], None),
        ([(b"retry-after", b"\xff\xfe")], None),
    ],
)
def test_retry_after(headers: list[tuple[bytes, bytes]], wait: float | None) -> None:
    """Milliseconds come before seconds, and a date counts from the response's own."""
    assert wait == retry_after_s(headers)


@given(
    st.integers(631152000, 4102444800).map(lambda epoch: datetime.fromtimestamp(epoch, UTC)),  # 1990 to 2100
    st.integers(-12, 12).map(lambda hours: timezone(timedelta(hours=hours))),
)
def test_both_ways_to_write_a_time_agree(time: datetime, zone: timezone) -> None:
    """RFC 3339 and HTTP dates of the same moment are the same time, in any zone."""
    assert (
        time.timestamp()
        == epoch_s(time.astimezone(zone).isoformat())
        == epoch_s(format_datetime(time.astimezone(zone)))
    )
    assert time.timestamp() == epoch_s(format_datetime(time, usegmt=True))


@given(st.text(max_size=20), st.none() | st.just(NOW))
def test_any_text_is_a_sane_wait_or_none(text: str, reference_s: float | None) -> None:
    """No text raises, and no wait is negative or longer than any quota's window."""
    wait = wait_s(text, reference_s)
    assert wait is None or 0 <= wait <= 31 * 86400
