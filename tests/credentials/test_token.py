"""Tokens in the output of programs and in files; no error contains a part of the text."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.credentials.token import NotAToken, Token, read_exec_credential, read_token_file

NOW = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC)


def _printed(**status: object) -> bytes:
    return json.dumps(
        {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status}
    ).encode()


@pytest.mark.parametrize(
    ("end", "lifetime_s"),
    [
        ("2026-11-28T12:10:00Z", 600.0),
        ("2026-11-28T13:00:00.5Z", 3600.5),
        ("2026-11-28T13:10:00+01:00", 600.0),
        ("2026-11-28T12:00:01", 1.0),
    ],
)
def test_a_printed_token_has_its_lifetime(end: str, lifetime_s: float) -> None:
    """The end of an ExecCredential is a time with or without fractions and zone."""
    assert read_exec_credential(_printed(token="t", expirationTimestamp=end), NOW) == Token("t", lifetime_s)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "no ExecCredential"),
        (b"ya29.secret", "no ExecCredential"),
        (b"[1]", "no ExecCredential"),
        (b'{"kind":"Pod","status":{"token":"secret"}}', "has no token"),
        (_printed(expirationTimestamp="2026-11-28T13:00:00Z"), "has no token"),
        (_printed(token="secret"), "no `expirationTimestamp`"),
        (_printed(token="secret", expirationTimestamp="tomorrow"), "is no time"),
        (_printed(token="secret", expirationTimestamp="2026-11-28T11:59:00Z"), "ended 60 s ago"),
        (_printed(token="sec\r\nret", expirationTimestamp="2026-11-28T13:00:00Z"), "a line break"),
    ],
)
def test_another_output_is_rejected(text: bytes, reason: str) -> None:
    """An output without a usable token is an error with the reason, and without the text."""
    with pytest.raises(NotAToken, match=reason) as caught:
        read_exec_credential(text, NOW)
    assert "secret" not in str(caught.value)


@given(st.binary(max_size=300))
def test_any_output_is_a_token_or_an_error(text: bytes) -> None:
    """No output raises anything else."""
    for read in (read_exec_credential, read_token_file):
        try:
            token = read(text, NOW)
        except NotAToken:
            continue
        assert token.value.isascii()


def test_a_file_has_a_bare_token_or_an_exec_credential() -> None:
    """A bare token has no end."""
    assert read_token_file(b" abc.def\n", NOW) == Token("abc.def")
    assert read_token_file(_printed(token="t"), NOW) == Token("t")
    with pytest.raises(NotAToken, match="a line break"):
        read_token_file(b"one\ntwo", NOW)


def test_no_description_shows_a_token() -> None:
    """A token in a traceback or a log is masked."""
    assert repr(Token("sk-secret", 5.0)) == "Token(****, 5.0)"
