"""Durations, sizes, shares, addresses and URLs: what is read, what is refused, and that writing undoes reading."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gateway.config.values import Address, BaseUrl, Delay, Duration, ListenAddress, Secret, Share, Size, with_v1

UNIT_LENGTHS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("15s", 15.0), ("10m", 600.0), ("1h", 3600.0), ("1.5s", 1.5), ("0.5ms", 0.0005), ("0s", 0.0)],
)
def test_a_duration_becomes_seconds(text: str, seconds: float) -> None:
    """A number and a unit is that many seconds."""
    assert TypeAdapter(Delay).validate_python(text) == seconds


@pytest.mark.parametrize(
    "value", [15, 0.5, "15", "15 s", "s", "-1s", "1d", "1m30s", "", "nan", True, "1e3s", "٣s"], ids=repr
)
def test_what_is_no_duration_is_refused(value: object) -> None:
    """A duration without a unit, or with anything but one ASCII number and one unit, is refused."""
    with pytest.raises(ValidationError):
        TypeAdapter(Delay).validate_python(value)


def test_a_wait_of_nothing_is_refused() -> None:
    """A time-out of 0 would fail every request, so it is refused."""
    with pytest.raises(ValidationError, match="more than 0s"):
        TypeAdapter(Duration).validate_python("0s")


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNIT_LENGTHS)))
def test_a_duration_survives_writing_and_reading(count: int, unit: str) -> None:
    """Reading what was written gives the same number of seconds."""
    adapter = TypeAdapter[float](Delay)
    seconds = adapter.validate_python(f"{count}{unit}")
    assert seconds == pytest.approx(count * UNIT_LENGTHS[unit])
    assert adapter.validate_python(adapter.dump_python(seconds)) == seconds


@given(st.integers(0, 10**9), st.sampled_from(["B", "kB", "MB", "GB", "KiB", "MiB", "GiB"]))
def test_a_size_survives_writing_and_reading(count: int, unit: str) -> None:
    """Reading what was written gives the same number of bytes."""
    adapter = TypeAdapter[int](Size)
    size_bytes = adapter.validate_python(f"{count}{unit}")
    assert adapter.validate_python(adapter.dump_python(size_bytes)) == size_bytes


@pytest.mark.parametrize(("text", "size_bytes"), [("256kB", 256_000), ("10MB", 10_000_000), ("1KiB", 1024), ("7B", 7)])
def test_a_size_becomes_bytes(text: str, size_bytes: int) -> None:
    """A kB is 1,000 bytes, a KiB is 1,024."""
    assert TypeAdapter(Size).validate_python(text) == size_bytes


@given(st.integers(0, 10_000))
def test_a_share_survives_writing_and_reading(hundredths: int) -> None:
    """Reading what was written gives the same fraction."""
    adapter = TypeAdapter[float](Share)
    share = adapter.validate_python(f"{hundredths / 100}%")
    assert share == pytest.approx(hundredths / 10_000)
    assert adapter.validate_python(adapter.dump_python(share)) == share


@pytest.mark.parametrize("value", [0.1, 10, "0.1", "101%", "-1%", "%", "ten"], ids=repr)
def test_what_is_no_percentage_is_refused(value: object) -> None:
    """A share is written as a percentage from 0 to 100, so that 1 can be taken neither for 1 % nor for all."""
    with pytest.raises(ValidationError):
        TypeAdapter(Share).validate_python(value)


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080), True),
        ("localhost:0", Address("localhost", 0), True),
        ("[::1]:8080", Address("::1", 8080), True),
        ("127.8.9.1:1", Address("127.8.9.1", 1), True),
        ("0.0.0.0:8080", Address("0.0.0.0", 8080), False),
        ("[::]:8080", Address("::", 8080), False),
        ("gateway.example:65535", Address("gateway.example", 65535), False),
    ],
)
def test_an_address_is_host_and_port(text: str, address: Address, *, loopback: bool) -> None:
    """An address is parsed, reports if it is loopback, and is formatted as it was written."""
    read = TypeAdapter[Address](ListenAddress).validate_python(text)
    assert (read, read.loopback, str(read)) == (address, loopback, text)


@pytest.mark.parametrize(
    "value", [8080, "8080", ":8080", "localhost", "a:65536", "http://a:1", "::1:80", "a b:1", None], ids=repr
)
def test_what_is_no_address_is_refused(value: object) -> None:
    """An address without a host or a port from 0 to 65535 is refused."""
    with pytest.raises(ValidationError):
        TypeAdapter(ListenAddress).validate_python(value)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://10.0.0.1:8000/v1", "http://10.0.0.1:8000/v1"),
        ("https://api.groq.com/openai/v1/", "https://api.groq.com/openai/v1"),
        ("http://localhost:1234/", "http://localhost:1234"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
    ],
)
def test_a_base_url_loses_its_closing_slash(text: str, url: str) -> None:
    """A good base URL stays as it is, without the slash at its end."""
    assert TypeAdapter(BaseUrl).validate_python(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1:8000/v1",
        "http://",
        "http:///v1",
        "http://h",
        "http://h:99999/v1",
        "http://[::1/v1",
        "ftp://h/v1",
        "http://u:p@h/v1",
        "http://h/v1?key=1",
        "http://h/v1#x",
        "http://h/v 1",
        "http://h/v1\n",
        "http://h/v1/chat/completions",
        "http://h/v1/completions/",
    ],
    ids=repr,
)
def test_what_is_no_base_url_is_refused(text: str) -> None:
    """A base URL is http or https with a host and a path, without credentials, query or an API's own path."""
    with pytest.raises(ValidationError):
        TypeAdapter(BaseUrl).validate_python(text)


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("http://h/v1", "http://h/v1"),
        ("http://h/openai/v1", "http://h/openai/v1"),
        ("h:1", "h:1"),
    ],
)
def test_v1_is_added_where_there_is_no_path(url: str, whole: str) -> None:
    """A URL without a path gets /v1, any other stays as it is."""
    assert with_v1(url) == whole


@pytest.mark.parametrize(
    "text", ["", "$KEY", "${KEY}", "$(cat key)", "Bearer abc", "a b", "a\nb", "a\r\nx: y", "é"], ids=repr
)
def test_what_cannot_be_a_secret_is_refused(text: str) -> None:
    """A secret that a header does not allow, or an unreplaced variable, is rejected."""
    with pytest.raises(ValidationError):
        TypeAdapter(Secret).validate_python(text)


def test_a_secret_may_contain_a_dollar() -> None:
    """Only what looks like a variable is taken for one."""
    assert TypeAdapter(Secret).validate_python("$2b$10$abc").get_secret_value() == "$2b$10$abc"
