"""Finds and checks the messages of a large request body, apart from the rest of the body. Pure. Units: bytes.

The messages are nearly all of a large body. They are decoded where they are, without a copy of their texts; the caller
reads the rest of the body with a stub in their place. If both are valid and the stub is at the top level of the rest,
the messages are one value of the body, and the body is valid.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from gateway.inbound.field_errors import MESSAGES_MAX
from providers.base import Api

SIZE_MIN: Final = 4 * 1024
STUB: Final = b'[{"role":"","content":""}]'
"""A short value that is valid in place of the messages of any API."""


class Large(NamedTuple):
    """A body in two parts.

    Attributes:
        key: key of the messages.
        span: their supposed position in the body.
        rest: the body with the stub in their place.
    """

    key: str
    span: tuple[int, int]
    rest: bytes


class _Message(msgspec.Struct, gc=False):
    """A message whose content is not decoded: a text would be a copy."""

    role: str
    content: msgspec.Raw


class _ChatMessage(_Message, gc=False):
    """A message that may have no content."""

    content: msgspec.Raw = msgspec.Raw(b"null")


class _Kind(NamedTuple):
    """The messages of one API: their key, their decoder, and the first bytes that their contents may have."""

    key: str
    decoder: msgspec.json.Decoder[list[_Message]] | msgspec.json.Decoder[list[_ChatMessage]]
    starts: bytes


_KINDS: Final[Mapping[Api, _Kind]] = {
    Api.CHAT: _Kind("messages", msgspec.json.Decoder(list[_ChatMessage]), b'"[n'),
    Api.MESSAGES: _Kind("messages", msgspec.json.Decoder(list[_Message]), b'"['),
}
_colon = re.compile(rb"\s*+:\s*+(?=\[)").match
_trailing = re.compile(r"JSON is malformed: trailing characters \(byte (\d+)\)").fullmatch


def find(api: Api, body: bytes, before: int) -> Large | None:
    """Return the parts of a body, None if its messages are not most of it.

    Args:
        api: the API that the client called.
        body: the body.
        before: end of the search for the closing bracket of the messages.
    """
    kind = _KINDS.get(api)
    if kind is None:
        return None
    key = b'"%b"' % kind.key.encode()
    colon = _colon(body, body.find(key) + len(key))
    if colon is None:
        return None
    begin, end = colon.end(), body.rfind(b"]", 0, before) + 1
    if 2 * (end - begin) < len(body):
        return None
    return Large(kind.key, (begin, end), body[:begin] + STUB + body[end:])


def end_of_messages(api: Api, body: bytes, span: tuple[int, int]) -> int | None:
    """Check the messages that begin at a span.

    Returns:
        The end of the span if it has one valid array; if more follows the array, a position between; None if the
        messages are invalid.
    """
    begin, end = span
    kind = _KINDS[api]
    try:
        messages = kind.decoder.decode(memoryview(body)[begin:end])
    except RecursionError:
        return None
    except msgspec.DecodeError as error:
        trailing = _trailing(str(error))
        return None if trailing is None else begin + int(trailing[1]) - 1
    starts = {memoryview(message.content)[0] for message in messages}
    return end if 1 <= len(messages) <= MESSAGES_MAX and starts.issubset(kind.starts) else None
