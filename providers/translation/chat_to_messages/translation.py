"""Serves clients of chat completions from upstreams of Anthropic's Messages API; translates the requests.

docs/providers.md has the table. Parameters that request the default (`n: 1`, `seed: null`) and parameters without
effect on the answer (cache hints) are dropped; unsupported ones are reported by name. No value is clamped. stream.py
translates the answers. Sans-I/O. Units: tokens.
"""

from collections.abc import Callable, Mapping

from providers.openai.chat import OpenAIChat
from providers.translation.base import CONTINUED, TranslatedRequest
from providers.translation.chat_to_messages.stream import ChatChunksFromMessages
from providers.translation.chat_to_messages.turns import turns_of
from ttft_gateway.apis.base import Api, Assembler, Call
from ttft_gateway.apis.json_fields import FieldReader, compact, invalid_type, require_list, unsupported_field
from ttft_gateway.apis.tolerant_json import loads

Json = dict[str, object]

_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_TIERS = {"auto": "auto", "default": "standard_only"}
_CHOICES: dict[object, Json] = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}
# Parameters of the Messages API itself, which clients may add to a chat completion.
_NATIVE = ("cache_control", "inference_geo", "speed", "thinking", "top_k")
_HINTS = ("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options")
_DEFAULTS: Mapping[str, tuple[object, ...]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "logit_bias": ({},),
    "metadata": ({},),
    "modalities": (["text"],),
    "store": (False,),
    "verbosity": ("medium",),
}


class ChatToMessages:
    """The `providers.translation.base.Translation` from chat completions to the Messages API.

    Args:
        wall_s: the wall time, for `created`.
    """

    client_api, upstream_api = Api.CHAT, Api.MESSAGES

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s

    def request(self, call: Call) -> TranslatedRequest:
        return request_of(loads(call.body))

    def translator(self, call: Call) -> ChatChunksFromMessages:
        return ChatChunksFromMessages(with_usage=call.include_usage or not call.streaming, wall_s=self._wall_s)

    def assembler(self, call: Call) -> Assembler:
        return OpenAIChat().assembler(call)


def request_of(body: object) -> TranslatedRequest:
    """Translate one request; the result has no `max_tokens` if the client sent none.

    Raises:
        Unsupported: the request makes no sense without a field that has no counterpart; names the field.
    """
    unsupported: dict[str, str] = {}
    request = FieldReader(body, "", target="Anthropic's Messages API", unsupported=unsupported)
    system, turns = turns_of(request)
    tools = _tools(request)
    fields: Json = {"system": compact(system) if system else None, "messages": turns}
    native = {key: request.take(key) for key in _NATIVE}
    for key, value in (
        ("max_tokens", _max_tokens(request)),
        ("temperature", _temperature(request)),
        ("top_p", request.take_number("top_p")),
        ("stop_sequences", _stops(request)),
        ("tools", tools),
        ("tool_choice", _tool_choice(request, tools)),
        ("metadata", _user(request)),
        ("service_tier", request.take_mapped("service_tier", _TIERS)),
        *_reasoning(request),
    ):
        fields[key] = value
    _reject_unsupported(request)
    request.ignore(
        "model", "stream", "stream_options", *_HINTS, *CONTINUED
    )  # the API continues every last assistant turn
    for key, values in _DEFAULTS.items():
        request.accept_only(key, *values)
    request.close()
    fields |= {key: value for key, value in native.items() if value is not None}  # native parameters take precedence
    return TranslatedRequest({key: value for key, value in fields.items() if value is not None}, unsupported)


def _max_tokens(request: FieldReader) -> int | None:
    """`max_completion_tokens`, the newer name, takes precedence, as in the gateway's own bounds."""
    newer, older = request.take_as("max_completion_tokens", int), request.take_as("max_tokens", int)
    return newer or older


def _temperature(request: FieldReader) -> float | int | None:
    value = request.take_number("temperature")
    if value is not None and value > 1:
        request.mark_unsupported("temperature", f"{value:g}, above the maximum of 1")
        return None
    return value


def _stops(request: FieldReader) -> list[object] | None:
    value = request.take("stop")
    if value is None or value == []:
        return None
    stops = [value] if isinstance(value, str) else require_list(value, "stop")
    for number, stop in enumerate(stops):
        if not isinstance(stop, str):
            raise invalid_type(f"stop[{number}]", "a string", stop)
        if not stop.strip():
            request.mark_unsupported("stop", "a sequence of white space only")
    return [stop for stop in stops if isinstance(stop, str) and stop.strip()] or None


def _tools(request: FieldReader) -> list[Json] | None:
    tools = request.take_as("tools", list)
    if not tools:
        return None
    made = []
    for number, tool in enumerate(tools):
        item = request.nested(tool, f"tools[{number}]")
        kind = item.require("type", str)
        if kind != "function":
            raise unsupported_field(
                item.path_of("type"), f"is {kind[:30]!r}, which is not supported; send function tools"
            )
        made.append(_tool(item.nested(item.require("function", dict), "function"), item.take("cache_control")))
        item.close()
    return made


def _tool(function: FieldReader, cache: object) -> Json:
    tool: Json = {"name": function.require("name", str)}
    description = function.take_as("description", str)
    if description:
        tool["description"] = description
    tool["input_schema"] = function.take_as("parameters", dict) or {"type": "object", "properties": {}}
    if function.take_as("strict", bool):
        tool["strict"] = True
    if cache is not None:
        tool["cache_control"] = cache
    function.close()
    return tool


def _tool_choice(request: FieldReader, tools: object) -> Json | None:
    value, parallel = request.take("tool_choice"), request.take_as("parallel_tool_calls", bool)
    choice: Json
    if value is None:
        choice = {"type": "auto"}
    elif isinstance(value, str) and value in _CHOICES:
        choice = dict(_CHOICES[value])
    elif isinstance(value, dict) and value.get("type") == "function":
        item = request.nested(value, "tool_choice")
        item.ignore("type")
        function = item.nested(item.require("function", dict), "function")
        choice = {"type": "tool", "name": function.require("name", str)}
        function.close()
        item.close()
    else:
        raise unsupported_field("tool_choice", "is invalid; send auto, none, required or a function")
    if parallel is False and tools and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    return choice if value is not None or len(choice) > 1 else None


def _user(request: FieldReader) -> Json | None:
    """An opaque name of the end user; the newer parameter takes precedence."""
    newer, older = request.take_as("safety_identifier", str), request.take_as("user", str)
    user = newer or older
    return {"user_id": user} if user else None


def _reasoning(request: FieldReader) -> list[tuple[str, object]]:
    """`output_config` and `thinking` from `reasoning_effort`, `response_format` and a native `output_config`."""
    config: Json = dict(request.take_as("output_config", dict) or {})
    form = _format(request)
    if form is not None:
        config["format"] = form
    effort = request.take_as("reasoning_effort", str)
    thinking: Json | None = None
    if effort == "none":
        thinking = {"type": "disabled"}
    elif effort in _EFFORTS:
        config["effort"] = _EFFORTS[effort]
        thinking = {"type": "adaptive"}
    elif effort is not None:
        request.mark_unsupported("reasoning_effort", f"value {effort[:20]!r}")
    return [("output_config", config or None), ("thinking", thinking)]


def _format(request: FieldReader) -> Json | None:
    value = request.take("response_format")
    if value is None:
        return None
    item = request.nested(value, "response_format")
    kind = item.require("type", str)
    if kind == "json_schema":
        schema = item.nested(item.require("json_schema", dict), "json_schema")
        form: Json = {"type": "json_schema", "schema": schema.require("schema", dict)}
        schema.ignore("name", "description", "strict")  # labels for people; the API always enforces the schema
        schema.close()
        item.close()
        return form
    if kind != "text":
        request.mark_unsupported("response_format", f"type {kind[:20]!r}, not json_schema")
        return None
    item.close()
    return None


def _reject_unsupported(request: FieldReader) -> None:
    """`n` above 1 is never dropped: the client would wait for the other answers."""
    count = request.take("n")
    if count not in (None, 1):
        raise unsupported_field("n", "is above 1, and the Messages API gives one answer per request; send n: 1")
    for key, instead in (("functions", "tools"), ("function_call", "tool_choice")):
        if request.take(key) not in (None, []):
            raise unsupported_field(key, f"is deprecated and not supported; send `{instead}`")
