"""Reads the fields of the Responses API in one typed decode. Pure. Units: tokens.

`store` is true by default, so an upstream that stores answers would store the answer of a request without `store`, and
the answer of its hedge, too. `ParsedFields.stored` reports such requests, as the upstreams are not known here. A
request that continues a stored answer, or adds to a stored conversation, is never hedged.
"""

from typing import Final

import msgspec

from ttft_gateway.apis.base import Api
from ttft_gateway.requests import arrays as inbound_arrays
from ttft_gateway.requests import field_errors as inbound_fields
from ttft_gateway.requests.openai import Tool
from ttft_gateway.requests.parsed import AnyObject, NumberLimits, ParsedFields, RawFields, without_effect


class _Tool(Tool, gc=False):
    """A tool, or a group of tools."""

    execution: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")


class _Responses(msgspec.Struct, gc=False):
    """The fields that are read; null counts as absent."""

    model: str | None = None
    input: str | list[Tool] | None = None  # only the type of an item is read, as of a tool
    instructions: str | None = None
    prompt: AnyObject | None = None
    stream: bool | None = None
    max_output_tokens: int | float | None = None
    tools: list[_Tool] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None


_decode = msgspec.json.Decoder(_Responses).decode
_decode_group = msgspec.json.Decoder(list[Tool]).decode

_NOT_REPEATABLE: Final = frozenset({"conversation", "context_management"})  # state that the provider stores and extends
# Tools that the client runs; the provider runs all other tools, once for each attempt.
_CLIENT_TOOLS: Final = frozenset({"function", "custom", "local_shell", "apply_patch", None})
_PROMPT: Final = ("instructions", "input")


def read(body: bytes, raws: RawFields, bounds: NumberLimits) -> ParsedFields:
    """Read the fields of a body.

    Raises:
        InvalidRequest: the fields are invalid.
    """
    reason = "its fields are inconsistent"
    try:
        fields = _decode(body)
        if not isinstance(fields.input, str):
            inbound_fields.check_length("input", fields.input, inbound_fields.MESSAGES_MAX)
        inbound_fields.check_length("tools", fields.tools, inbound_fields.TOOLS_MAX)
        if _within(fields, bounds):
            return _parsed(fields, raws)
    except msgspec.ValidationError as error:
        reason = str(error)
    raise inbound_fields.wrong_field(Api.RESPONSES, raws, {"max_output_tokens": bounds.max_tokens_max}, reason)


def _within(fields: _Responses, bounds: NumberLimits) -> bool:
    tokens, items = fields.max_output_tokens, fields.input
    return (
        bool(fields.model)
        and (items is not None or fields.prompt is not None)
        and (not isinstance(items, list) or len(items) >= 1)
        and (tokens is None or (1 <= tokens <= bounds.max_tokens_max and tokens % 1 == 0))
        and fields.background is not True
    )


def _parsed(fields: _Responses, raws: RawFields) -> ParsedFields:
    return ParsedFields(
        model=fields.model or "",
        streaming=fields.stream is True,
        prompt=tuple(key for key in _PROMPT if key in raws),
        max_tokens=None if fields.max_output_tokens is None else int(fields.max_output_tokens),
        hedgeable=fields.store is not True
        and fields.previous_response_id is None
        and without_effect(raws, _NOT_REPEATABLE)
        and (fields.tools is None or all(tool.type in _CLIENT_TOOLS or _runs_at_client(tool) for tool in fields.tools)),
        stored=fields.store is not False,
        previous_id=fields.previous_response_id,
    )


def _runs_at_client(tool: _Tool) -> bool:
    """Return True for a search of the client, and for a group of the client's tools, such as an MCP server."""
    if tool.type == "tool_search":
        return bytes(tool.execution) == b'"client"'
    if tool.type != "namespace" or not inbound_arrays.has_objects(tool.tools, inbound_fields.TOOLS_MAX):
        return False
    try:
        return all(each.type in _CLIENT_TOOLS for each in _decode_group(tool.tools))
    except msgspec.ValidationError:
        return False
