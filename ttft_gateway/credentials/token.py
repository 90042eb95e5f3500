"""A token that ends, and the forms in which programs and files contain one. Pure.

A program prints an ExecCredential of Kubernetes (client.authentication.k8s.io/v1, kubernetes.io/docs/reference/
access-authn-authz/authentication, "client-go credential plugins", read on 28 November 2026): the token and the time of
its end. A file contains the same, or the bare token. No text of a program or a file is quoted in an error: it may be
the token. Units: seconds.
"""

import re
from datetime import UTC, datetime
from typing import Final

import msgspec

TEXT_BYTES_MAX: Final = 64 * 1024  # Google's tokens have 2 kB; tokens of Entra with many groups have some more
_BARE = re.compile(r"[!-~]+")
_FORM: Final = '{"kind": "ExecCredential", "status": {"token": "...", "expirationTimestamp": "2026-11-28T12:00:00Z"}}'


class Token(msgspec.Struct, frozen=True):
    """A token.

    Attributes:
        value: text that is sent.
        lifetime_s: time until its end, from the moment of the fetch; None if it has none.
    """

    value: str
    lifetime_s: float | None = None

    def __repr__(self) -> str:
        return f"Token(****, {self.lifetime_s})"


class NotAToken(Exception):
    """A text contains no token; the message has the reason, and no part of the text."""


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    expiration_timestamp: str | None = None


class _ExecCredential(msgspec.Struct):
    kind: str
    status: _Status


_decode = msgspec.json.Decoder(_ExecCredential).decode


def read_exec_credential(text: bytes, now: datetime) -> Token:
    """Read the output of a program.

    Raises:
        NotAToken: it is no ExecCredential with a token and the time of its end.
    """
    token = _exec_credential(text, now)
    if token.lifetime_s is None:
        raise NotAToken(f"the ExecCredential has no `expirationTimestamp`; print {_FORM}")
    return token


def read_token_file(text: bytes, now: datetime) -> Token:
    """Read the content of a file: an ExecCredential, or the bare token.

    Raises:
        NotAToken: it is neither.
    """
    if text.lstrip()[:1] == b"{":
        return _exec_credential(text, now)
    try:
        value = text.decode("ascii").strip()
    except UnicodeDecodeError:
        value = ""
    if not value:
        raise NotAToken("the file has no token, or is not ASCII text")
    return Token(_checked(value))


def ends_at(end: datetime, now: datetime) -> float:
    """Return the time until an end.

    Raises:
        NotAToken: the end is in the past.
    """
    left_s = (end - now).total_seconds()
    if left_s <= 0:
        raise NotAToken(f"the token ended {-left_s:.0f} s ago; check the clock, and the program or file with the token")
    return left_s


def _exec_credential(text: bytes, now: datetime) -> Token:
    try:
        found = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotAToken(f"the text is no ExecCredential; print {_FORM}") from None
    if found.kind != "ExecCredential" or not found.status.token:
        raise NotAToken(f"the ExecCredential has no token; print {_FORM}")
    value, end = _checked(found.status.token), found.status.expiration_timestamp
    if end is None:
        return Token(value)
    try:
        parsed = datetime.fromisoformat(end)
    except ValueError:
        raise NotAToken("the `expirationTimestamp` is no time, such as 2026-11-28T12:00:00Z") from None
    aware = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
    return Token(value, ends_at(aware, now))


def _checked(value: str) -> str:
    """Return a token that HTTP headers allow: anything else would break or forge a request."""
    if not _BARE.fullmatch(value):
        raise NotAToken("the token contains a space, a line break or another character that HTTP headers do not allow")
    return value
