"""The check of hosts: a table."""

import pytest

from gateway.api.auth import HostCheck, Keyring
from gateway.errors import Unauthorized, UnknownHost
from ttft_gateway.apis.base import Headers

_NAMES = ("gateway.internal", "Upper.Example")
ACCEPTED = [
    "127.0.0.1",
    "127.0.0.1:8080",
    "10.1.2.3:80",
    "[::1]",
    "[::1]:8080",
    "localhost",
    "localhost:8080",
    "LOCALHOST",
    "app.localhost:8080",
    "gateway.internal",
    "gateway.internal:8080",
    "gateway.internal.:8080",
    "GATEWAY.internal",
    "upper.example",
]
REJECTED = [
    "evil.example",
    "evil.example:8080",
    "127.0.0.1.evil.example",
    "evil.example:127.0.0.1",
    "localhost.evil.example",
    "notlocalhost",
    "gateway.internal.evil.example",
    "x-gateway.internal",
    "[::1].evil.example",
    "127.0.0.1@evil.example",
    "0x7f.evil.example",
    "gateway",
    "",
    "\xff",
]


@pytest.mark.parametrize("host", ACCEPTED)
def test_own_hosts(host: str) -> None:
    """IP addresses, localhost and configured names are accepted, with or without a port, again and again."""
    check = HostCheck(_NAMES)
    for _ in range(2):
        check.check([(b"accept", b"*/*"), (b"host", host.encode())])


@pytest.mark.parametrize("host", REJECTED)
def test_foreign_hosts(host: str) -> None:
    """All other names are rejected, also as the second of two headers."""
    check = HostCheck(_NAMES)
    for headers in ([(b"host", host.encode("latin-1"))], [(b"host", b"localhost"), (b"host", host.encode("latin-1"))]):
        with pytest.raises(UnknownHost, match="`hosts` in the configuration"):
            check.check(headers)


def test_callers_without_a_key() -> None:
    """The public address checks hosts only if no keys are configured; HTTP/1.0 needs none."""
    foreign = [(b"host", b"evil.example")]
    with pytest.raises(UnknownHost):
        Keyring({}, {}).name(foreign)
    assert Keyring({}, {}).name([]) == "anonymous"
    assert Keyring({"secret": "team"}, {}).name([*foreign, (b"x-api-key", b"secret")]) == "team"


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([], "the API key is missing"),
        ([(b"authorization", b"Bearer ")], "the API key is missing"),
        ([(b"authorization", b"secret")], "the header `Authorization` has no `Bearer`"),
        ([(b"authorization", b"Basic c2VjcmV0")], "the header `Authorization` has no `Bearer`"),
        ([(b"authorization", b"Bearer other")], "the API key is unknown"),
    ],
)
def test_a_request_without_a_valid_key(headers: Headers, found: str) -> None:
    """The error states what was found in the headers, and contains nothing of their values."""
    with pytest.raises(Unauthorized) as caught:
        Keyring({"secret": "team"}, {}).name(headers)
    assert str(caught.value).startswith(f"{found}; send ")
    assert not any(value.split()[-1].decode() in str(caught.value) for _, value in headers if value != b"Bearer ")
