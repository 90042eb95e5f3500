"""Finds and checks the messages of a large request body, apart from its other fields. Pure. Units: bytes.

The messages are nearly all of a large body. They are decoded where they are, without a copy of their texts; the caller
reads the body with a stub in their place. If both are valid and the stub is at the top level of that body, the messages
are one value of the body, and the body is valid.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ttft_gateway.apis.base import Api
from ttft_gateway.requests.field_errors import MESSAGES_MAX

SIZE_MIN: Final = 4 * 1024
AGAIN_MAX: Final = 1024 * 1024
"""Size of a body whose messages may be decoded again, if their end was not where it was expected."""

STUB: Final = b'[{"role":"","content":""}]'
"""A short value that is valid in place of the messages of any API."""


class Large(NamedTuple):
    """A body in two parts.

    Attributes:
        key: key of the messages.
        span: their supposed position in the body.
        stubbed: the body with the stub in their place.
    """

    key: str
    span: tuple[int, int]
    stubbed: bytes


class _Message(msgspec.Struct, gc=False):
    """A message with undecoded content: a decoded text would be a copy."""

    role: str
    content: msgspec.Raw


class _ChatMessage(_Message, gc=False):
    """A message that may have no content."""

    content: msgspec.Raw = msgspec.Raw(b"null")


class _Item(msgspec.Struct, gc=False):
    """A message or another item, of which only the type is read, as of a tool."""

    type: str | None = None
    content: msgspec.Raw = msgspec.Raw(b"null")


class _Kind(NamedTuple):
    """The messages of one API.

    Attributes:
        key: their key.
        decode: decodes them.
        starts: the first bytes that their contents may have.
        least: bytes of the shortest message and its comma.
    """

    key: str
    decode: Callable[[memoryview], Sequence[_Message | _Item]]
    starts: bytes
    least: int


_KINDS: Final[Mapping[Api, _Kind]] = {
    Api.CHAT: _Kind("messages", msgspec.json.Decoder(list[_ChatMessage]).decode, b'"[n', len(b'{"role":""},')),
    Api.MESSAGES: _Kind(
        "messages", msgspec.json.Decoder(list[_Message]).decode, b'"[', len(b'{"role":"","content":""},')
    ),
    Api.RESPONSES: _Kind("input", msgspec.json.Decoder(list[_Item]).decode, bytes(range(256)), len(b"{},")),
}
_TAIL: Final = 64 * 1024  # bytes at the end in which tools are looked for: they often follow the messages
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
    at = body.find(key)
    colon = _colon(body, at + len(key)) if at >= 0 else None
    if colon is None:
        return None
    begin = colon.end()
    tools = body.rfind(b'"tools"', max(begin, before - _TAIL), before)
    end = body.rfind(b"]", begin, before if tools < 0 else tools) + 1
    if 2 * (end - begin) < len(body):
        return None
    if end - begin > MESSAGES_MAX * kind.least and body.count(b"{", begin, end) > MESSAGES_MAX:
        return None  # too many messages to build, perhaps
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
        messages = kind.decode(memoryview(body)[begin:end])
    except RecursionError:
        return None
    except msgspec.DecodeError as error:
        trailing = _trailing(str(error))
        return None if trailing is None else begin + int(trailing[1]) - 1
    starts = {memoryview(message.content)[0] for message in messages}
    return end if 1 <= len(messages) <= MESSAGES_MAX and starts.issubset(kind.starts) else None
