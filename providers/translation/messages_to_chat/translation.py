"""Serves clients of Anthropic's Messages API from OpenAI-compatible upstreams; translates the requests.

For the SDKs of the Messages API, and coding agents. docs/providers.md has the table. Unsupported parameters are
reported by name. Cache marks are dropped: they have no effect on the answer. stream.py translates the answers.
Sans-I/O. Units: tokens.
"""

import hashlib

import msgspec

from providers.anthropic.protocol import MessageAssembler, no_threads
from providers.translation.base import CONTINUED, TranslatedRequest
from providers.translation.messages_to_chat.stream import MessageEventsFromChat
from providers.translation.messages_to_chat.turns import content_of, messages_of
from ttft_gateway.apis.base import Api, Assembler, Call
from ttft_gateway.apis.json_fields import FieldReader, compact, dict_or_empty, unsupported_field
from ttft_gateway.apis.tolerant_json import loads

Json = dict[str, object]

_CHOICES: dict[object, object] = {"auto": "auto", "any": "required", "none": "none"}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
_BUDGETS = ((4_096, "low"), (16_384, "medium"))  # upper bounds of thinking tokens -> effort; above: high
_TIERS = {"auto": "auto", "standard_only": "default"}
_SCHEMA_NAME = "answer"  # chat completions require a name for the schema
_USER_CHARS_MAX = 64  # of `user` at OpenAI
_THINKING_EDITS = "clear_thinking"  # edits of thinking, which is not sent on


class Dialect(msgspec.Struct, frozen=True):
    """Fields of chat completions that only some OpenAI-compatible servers accept.

    Attributes:
        max_tokens: the server's name for the bound on the answer's tokens.
        top_k: the server accepts `top_k`.
        reasoning: the server's field for the reasoning of earlier turns in messages, None if it has none.
        prefills: the server continues the text of a last turn that is the assistant's, as the Messages API does.
    """

    max_tokens: str = "max_tokens"
    top_k: bool = False
    reasoning: str | None = None
    prefills: bool = False


class MessagesToChat:
    """The `providers.translation.base.Translation` from the Messages API to chat completions.

    Args:
        dialect: of the upstream.
    """

    client_api, upstream_api = Api.MESSAGES, Api.CHAT

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def request(self, call: Call) -> TranslatedRequest:
        return request_of(loads(call.body), self._dialect)

    def translator(self, call: Call) -> MessageEventsFromChat:
        thinking = dict_or_empty(_field(call, "thinking"))
        return MessageEventsFromChat(hide_thinking=thinking.get("display") == "omitted")

    def assembler(self, _call: Call) -> Assembler:
        return MessageAssembler()


def request_of(body: object, dialect: Dialect) -> TranslatedRequest:
    """Translate one request.

    Raises:
        Unsupported: the request makes no sense without a field that has no counterpart; names the field.
    """
    unsupported: dict[str, str] = {}
    request = FieldReader(body, "", target="an OpenAI-compatible replica", unsupported=unsupported)
    if request.take("thread") is not None:
        raise no_threads()
    system = request.take("system")
    opening: list[Json] = []
    if system is not None:
        opening = [{"role": "system", "content": compact(content_of(request, "system", system))}]
    messages = [*opening, *messages_of(request, dialect.reasoning)]
    fields: Json = {"messages": messages}
    if dialect.prefills and messages and messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        fields |= CONTINUED
    choice, parallel = _tool_choice(request)
    for key, value in (
        (dialect.max_tokens, _max_tokens(request)),
        ("temperature", request.take_number("temperature")),
        ("top_p", request.take_number("top_p")),
        ("top_k", _top_k(request, dialect)),
        ("stop", request.take_as("stop_sequences", list) or None),
        ("tools", _tools(request)),
        ("tool_choice", choice),
        ("parallel_tool_calls", parallel),
        ("user", _user(request)),
        ("service_tier", request.take_mapped("service_tier", _TIERS)),
        *_reasoning(request),
    ):
        if value is not None:
            fields[key] = value
    request.ignore("model", "stream", "cache_control")
    _context_management(request)
    request.accept_only("speed", "standard")
    request.accept_only("mcp_servers", [])
    request.close()
    return TranslatedRequest(fields, unsupported)


def _max_tokens(request: FieldReader) -> int:
    bound = request.require("max_tokens", int)
    if bound < 1:
        raise unsupported_field("max_tokens", "is below 1, which only Anthropic's own API supports; send 1 or more")
    return bound


def _top_k(request: FieldReader, dialect: Dialect) -> int | None:
    value = request.take_as("top_k", int)
    if value is not None and not dialect.top_k:
        request.mark_unsupported("top_k")
        return None
    return value


def _tools(request: FieldReader) -> list[Json] | None:
    tools = request.take_as("tools", list)
    return [_tool(request.nested(tool, f"tools[{number}]")) for number, tool in enumerate(tools)] if tools else None


def _tool(tool: FieldReader) -> Json:
    kind = tool.take_as("type", str) or "custom"
    if kind != "custom":
        raise unsupported_field(tool.path_of("type"), f"is {kind[:40]!r}, a tool of Anthropic's; send your own tools")
    function: Json = {"name": tool.require("name", str)}
    description = tool.take_as("description", str)
    if description:
        function["description"] = description
    function["parameters"] = tool.require("input_schema", dict)
    if tool.take_as("strict", bool):
        function["strict"] = True
    tool.ignore("cache_control", "eager_input_streaming")  # affects the pace of the arguments, not their value
    tool.accept_only("defer_loading", False)
    tool.accept_only("allowed_callers", ["direct"])
    tool.close()
    return {"type": "function", "function": function}


def _tool_choice(request: FieldReader) -> tuple[object, bool | None]:
    value = request.take("tool_choice")
    if value is None:
        return None, None
    item = request.nested(value, "tool_choice")
    kind = item.require("type", str)
    choice = _CHOICES.get(kind)
    if kind == "tool":
        choice = {"type": "function", "function": {"name": item.require("name", str)}}
    elif choice is None:
        raise unsupported_field(item.path_of("type"), "is invalid; send auto, any, tool or none")
    alone = item.take_as("disable_parallel_tool_use", bool)
    item.close()
    return choice, False if alone else None


def _user(request: FieldReader) -> str | None:
    """The opaque name of the end user; a name over OpenAI's bound is replaced by its digest."""
    value = request.take("metadata")
    if value is None:
        return None
    item = request.nested(value, "metadata")
    user = item.take_as("user_id", str)
    item.close()
    if user and len(user) > _USER_CHARS_MAX:
        return hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()
    return user or None


def _reasoning(request: FieldReader) -> list[tuple[str, object]]:
    """`reasoning_effort` and `response_format` from `thinking` and `output_config`.

    An effort takes precedence over a budget. `adaptive` and `disabled` without an effort send none, so that the replica
    chooses: a model that cannot reason rejects any effort, even the lowest.
    """
    effort = form = None
    config = request.take("output_config")
    if config is not None:
        item = request.nested(config, "output_config")
        effort, form = item.take_mapped("effort", _EFFORTS), _format(item)
        item.close()
    thinking = request.take("thinking")
    if thinking is not None:
        item = request.nested(thinking, "thinking")
        kind = item.require("type", str)
        item.ignore("display")  # applied by the translator of the answer
        if kind == "enabled":
            budget = item.require("budget_tokens", int)
            effort = effort or next((name for limit, name in _BUDGETS if budget < limit), "high")
        elif kind not in ("adaptive", "disabled"):
            request.mark_unsupported("thinking", f"type {kind[:20]!r}")
        item.close()
    return [("reasoning_effort", effort), ("response_format", form)]


def _format(config: FieldReader) -> Json | None:
    value = config.take("format")
    if value is None:
        return None
    item = config.nested(value, "format")
    kind = item.require("type", str)
    if kind != "json_schema":
        raise unsupported_field(item.path_of("type"), "is invalid; send json_schema")
    schema = item.require("schema", dict)
    item.close()
    return {"type": "json_schema", "json_schema": {"name": _SCHEMA_NAME, "schema": schema, "strict": True}}


def _context_management(request: FieldReader) -> None:
    """Drop edits that only remove old thinking from the context, which is not sent; others are unsupported."""
    value = request.take("context_management")
    edits = value.get("edits") if isinstance(value, dict) else None
    if value is None or (
        isinstance(value, dict)
        and not value.keys() - {"edits"}
        and isinstance(edits, list | None)
        and all(isinstance(edit, dict) and str(edit.get("type")).startswith(_THINKING_EDITS) for edit in edits or ())
    ):
        return
    request.mark_unsupported("context_management")


def _field(call: Call, key: str) -> object:
    start, end = call.spans.get(key, (0, 0))
    return loads(call.body[start:end])
