"""A request to Anthropic's Messages API as a chat completion's request: every parameter said, or named as lost.

For clients of the Messages API (its SDKs, coding agents) whose model is served by OpenAI-compatible replicas. The table
is docs/providers.md. Cache marks are left out: they have no effect on the answer. Sans-I/O. Units: tokens.
"""

import hashlib
from dataclasses import dataclass

from providers.json_fields import Given, plain, unsuited
from providers.translation.base import Request
from providers.translation.messages_to_chat.turns import content_of, messages_of

Json = dict[str, object]

_CHOICES: dict[object, object] = {"auto": "auto", "any": "required", "none": "none"}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
_BUDGETS = ((4_096, "low"), (16_384, "medium"))  # thinking tokens below which an effort is meant; above: high
_TIERS = {"auto": "auto", "standard_only": "default"}
_SCHEMA_NAME = "answer"  # a chat completion's schema needs a name
_USER_CHARS_MAX = 64  # of `user` at OpenAI
_THINKING_EDITS = "clear_thinking"  # edits of what is not sent on


@dataclass(frozen=True, slots=True)
class Dialect:
    """What an OpenAI-compatible server takes beyond what all of them do.

    Attributes:
        max_tokens: its name for the bound on the answer's tokens.
        top_k: it takes `top_k`.
        reasoning: its name for the reasoning of earlier turns in messages, None where there is none.
    """

    max_tokens: str = "max_tokens"
    top_k: bool = False
    reasoning: str | None = None


def request_of(body: object, dialect: Dialect) -> Request:
    """Say one request in the other API's words.

    Raises:
        Unsuited: it makes no sense without what cannot be said; names the field.
    """
    lost: dict[str, str] = {}
    given = Given(body, "", target="an OpenAI-compatible replica", lost=lost)
    system = given.take("system")
    opening: list[Json] = []
    if system is not None:
        opening = [{"role": "system", "content": plain(content_of(given, "system", system))}]
    fields: Json = {"messages": [*opening, *messages_of(given, dialect.reasoning)]}
    choice, parallel = _tool_choice(given)
    for key, value in (
        (dialect.max_tokens, _max_tokens(given)),
        ("temperature", given.number("temperature")),
        ("top_p", given.number("top_p")),
        ("top_k", _top_k(given, dialect)),
        ("stop", given.take_as("stop_sequences", list) or None),
        ("tools", _tools(given)),
        ("tool_choice", choice),
        ("parallel_tool_calls", parallel),
        ("user", _user(given)),
        ("service_tier", _tier(given)),
        *_thought(given),
    ):
        if value is not None:
            fields[key] = value
    given.ignore("model", "stream", "cache_control")
    _context_management(given)
    given.allow("speed", "standard")
    given.allow("mcp_servers", [])
    given.close()
    return Request(fields, lost)


def _max_tokens(given: Given) -> int:
    bound = given.need("max_tokens", int)
    if bound < 1:
        raise unsuited("max_tokens", "only Anthropic's own API fills a cache without an answer")
    return bound


def _top_k(given: Given, dialect: Dialect) -> int | None:
    value = given.take_as("top_k", int)
    if value is not None and not dialect.top_k:
        given.lose("top_k")
        return None
    return value


def _tools(given: Given) -> list[Json] | None:
    tools = given.take_as("tools", list)
    return [_tool(given.inner(tool, f"tools[{number}]")) for number, tool in enumerate(tools)] if tools else None


def _tool(tool: Given) -> Json:
    kind = tool.take_as("type", str) or "custom"
    if kind != "custom":
        raise unsuited(tool.at("type"), f"{kind[:40]!r} is a tool of Anthropic's own")
    function: Json = {"name": tool.need("name", str)}
    description = tool.take_as("description", str)
    if description:
        function["description"] = description
    function["parameters"] = tool.need("input_schema", dict)
    if tool.take_as("strict", bool):
        function["strict"] = True
    tool.ignore("cache_control", "eager_input_streaming")  # how fast the arguments come, not what they are
    tool.allow("defer_loading", False)
    tool.allow("allowed_callers", ["direct"])
    tool.close()
    return {"type": "function", "function": function}


def _tool_choice(given: Given) -> tuple[object, bool | None]:
    """`tool_choice` and `parallel_tool_calls`."""
    value = given.take("tool_choice")
    if value is None:
        return None, None
    place = given.inner(value, "tool_choice")
    kind = place.need("type", str)
    choice = _CHOICES.get(kind)
    if kind == "tool":
        choice = {"type": "function", "function": {"name": place.need("name", str)}}
    elif choice is None:
        raise unsuited(place.at("type"), "it must be auto, any, tool or none")
    alone = place.take_as("disable_parallel_tool_use", bool)
    place.close()
    return choice, False if alone else None


def _user(given: Given) -> str | None:
    """The opaque name of the end user; one too long for OpenAI's bound goes on as its digest."""
    value = given.take("metadata")
    if value is None:
        return None
    place = given.inner(value, "metadata")
    user = place.take_as("user_id", str)
    place.close()
    if user and len(user) > _USER_CHARS_MAX:
        return hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()
    return user or None


def _tier(given: Given) -> str | None:
    tier = given.take_as("service_tier", str)
    if tier is not None and tier not in _TIERS:
        given.lose("service_tier", f"with the value {tier[:20]!r}")
        return None
    return _TIERS[tier] if tier else None


def _thought(given: Given) -> list[tuple[str, object]]:
    """`reasoning_effort` and `response_format` from `thinking` and `output_config`.

    An effort counts more than a budget. `adaptive` and `disabled` without an effort leave the choice to the replica: a
    model that cannot reason refuses any effort, also the lowest.
    """
    effort = form = None
    config = given.take("output_config")
    if config is not None:
        place = given.inner(config, "output_config")
        effort, form = _effort(place), _format(place)
        place.close()
    thinking = given.take("thinking")
    if thinking is not None:
        place = given.inner(thinking, "thinking")
        kind = place.need("type", str)
        place.ignore("display")  # the answer's reader keeps to it
        if kind == "enabled":
            budget = place.need("budget_tokens", int)
            effort = effort or next((name for limit, name in _BUDGETS if budget < limit), "high")
        elif kind not in ("adaptive", "disabled"):
            given.lose("thinking", f"with the type {kind[:20]!r}")
        place.close()
    return [("reasoning_effort", effort), ("response_format", form)]


def _effort(config: Given) -> str | None:
    effort = config.take_as("effort", str)
    if effort is not None and effort not in _EFFORTS:
        config.lose("effort", f"with the value {effort[:20]!r}")
        return None
    return _EFFORTS[effort] if effort else None


def _format(config: Given) -> Json | None:
    value = config.take("format")
    if value is None:
        return None
    place = config.inner(value, "format")
    kind = place.need("type", str)
    if kind != "json_schema":
        raise unsuited(place.at("type"), "it must be json_schema")
    schema = place.need("schema", dict)
    place.close()
    return {"type": "json_schema", "json_schema": {"name": _SCHEMA_NAME, "schema": schema, "strict": True}}


def _context_management(given: Given) -> None:
    """Edits that only take old thinking out of the context: it is not in there."""
    value = given.take("context_management")
    edits = value.get("edits") if isinstance(value, dict) else None
    if value is None or (
        isinstance(value, dict)
        and not value.keys() - {"edits"}
        and isinstance(edits, list | None)
        and all(isinstance(edit, dict) and str(edit.get("type")).startswith(_THINKING_EDITS) for edit in edits or ())
    ):
        return
    given.lose("context_management")
