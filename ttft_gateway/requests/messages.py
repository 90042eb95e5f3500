"""Reads the fields of Anthropic's Messages API in one typed decode. Pure. Units: tokens."""

from typing import Final

import msgspec

from ttft_gateway.apis.base import Api
from ttft_gateway.requests import field_errors as inbound_fields
from ttft_gateway.requests.errors import InvalidRequest
from ttft_gateway.requests.parsed import AnyArray, NumberLimits, ParsedFields, RawFields, without_effect


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | AnyArray


class _Tool(msgspec.Struct, gc=False):
    type: str | None = None


class _Thread(msgspec.Struct, gc=False):
    previous_message_id: str | None = None


class _Fields(msgspec.Struct, gc=False):
    model: str | None = None
    stream: bool | None = None
    max_tokens: int | float | None = None
    messages: list[_Message] | None = None
    tools: list[_Tool] | None = None
    thread: _Thread | None = None  # a conversation that Anthropic stores; each answer may be continued once


_decode = msgspec.json.Decoder(_Fields).decode

PROMPT: Final = ("tools", "system", "messages")  # keys of the prompt, in the order in which the model reads them
# Tools that the client runs; Anthropic runs all other tools, which must not happen twice.
_CLIENT_TOOLS: Final = ("custom", "bash_", "text_editor_", "computer_", "memory_")
_NOT_REPEATABLE: Final = frozenset({"container", "mcp_servers"})


def read(body: bytes, raws: RawFields, bounds: NumberLimits) -> ParsedFields:
    """Read the fields of a messages body.

    Raises:
        InvalidRequest: the fields are invalid.
    """
    reason = "its fields are inconsistent"
    try:
        fields = _decode(body)
        inbound_fields.check_length("messages", fields.messages, inbound_fields.MESSAGES_MAX)
        inbound_fields.check_length("tools", fields.tools, inbound_fields.TOOLS_MAX)
        if fields.max_tokens is None and fields.model and (fields.messages or _previous_id(fields)):
            raise InvalidRequest(
                "`max_tokens` is missing; write the maximum number of tokens of the answer",
                param="max_tokens",
                code="missing_required_parameter",
            )
        if _within(fields, bounds):
            return _parsed(fields, raws)
    except msgspec.ValidationError as error:
        reason = str(error)
    raise inbound_fields.wrong_field(Api.MESSAGES, raws, {"max_tokens": bounds.max_tokens_max}, reason)


def read_count(body: bytes, raws: RawFields) -> str:
    """Return the model of a body for a count of tokens; such a body needs no `max_tokens`.

    Raises:
        InvalidRequest: the body has no model or no messages.
    """
    reason = "its fields are inconsistent"
    try:
        fields = _decode(body)
        inbound_fields.check_length("messages", fields.messages, inbound_fields.MESSAGES_MAX)
        if fields.model and fields.messages:
            return fields.model
    except msgspec.ValidationError as error:
        reason = str(error)
    raise inbound_fields.wrong_field(Api.MESSAGES, raws, {}, reason)


def _within(fields: _Fields, bounds: NumberLimits) -> bool:
    """Return True if all fields are present and within their limits; `max_tokens: 0` only fills a prompt cache.

    A thread goes on without a new message if its last answer has not ended.
    """
    return (
        bool(fields.model)
        and fields.messages is not None
        and (len(fields.messages) >= 1 or _previous_id(fields) is not None)
        and 0 <= (fields.max_tokens or 0) <= bounds.max_tokens_max
        and (fields.max_tokens or 0) % 1 == 0
    )


def _parsed(fields: _Fields, raws: RawFields) -> ParsedFields:
    tools = fields.tools or ()
    return ParsedFields(
        model=fields.model or "",
        streaming=fields.stream is True,
        prompt=tuple(key for key in PROMPT if key in raws),
        max_tokens=int(fields.max_tokens or 0) or None,
        hedgeable=bool(fields.max_tokens)
        and fields.thread is None
        and without_effect(raws, _NOT_REPEATABLE)
        and all(tool.type is None or tool.type.startswith(_CLIENT_TOOLS) for tool in tools),
        previous_id=_previous_id(fields),
    )


def _previous_id(fields: _Fields) -> str | None:
    return None if fields.thread is None else fields.thread.previous_message_id
