"""A chat completion's request as a request to Anthropic's Messages API: every parameter said, or named as lost.

The table is docs/providers.md. A parameter that only repeats what happens anyway (`n: 1`, `seed: null`) and one without
effect on the answer (cache hints) are left out. Nothing is clamped. Sans-I/O. Units: tokens.
"""

from collections.abc import Mapping

from providers.json_fields import Given, as_list, plain, unsuited, wrong
from providers.translation.base import Request
from providers.translation.chat_to_messages.turns import turns_of

Json = dict[str, object]

_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_TIERS = {"auto": "auto", "default": "standard_only"}
_CHOICES: dict[object, Json] = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}
# Parameters of the Messages API itself, which clients send along with their chat completions.
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


def request_of(body: object) -> Request:
    """Say one request in the other API's words; without `max_tokens` where the client gave none.

    Raises:
        Unsuited: it makes no sense without what cannot be said; names the field.
    """
    lost: dict[str, str] = {}
    given = Given(body, "", target="Anthropic's Messages API", lost=lost)
    system, turns = turns_of(given)
    tools = _tools(given)
    fields: Json = {"system": plain(system) if system else None, "messages": turns}
    native = {key: given.take(key) for key in _NATIVE}
    for key, value in (
        ("max_tokens", _max_tokens(given)),
        ("temperature", _temperature(given)),
        ("top_p", given.number("top_p")),
        ("stop_sequences", _stops(given)),
        ("tools", tools),
        ("tool_choice", _tool_choice(given, tools)),
        ("metadata", _user(given)),
        ("service_tier", _tier(given)),
        *_thought(given),
    ):
        fields[key] = value
    _only_one(given)
    given.ignore("model", "stream", "stream_options", *_HINTS)
    for key, values in _DEFAULTS.items():
        given.allow(key, *values)
    given.close()
    fields |= {key: value for key, value in native.items() if value is not None}  # said in its own words, that counts
    return Request({key: value for key, value in fields.items() if value is not None}, lost)


def _max_tokens(given: Given) -> int | None:
    """`max_completion_tokens` is the newer name and counts, as for the gateway's own bounds."""
    newer, older = given.take_as("max_completion_tokens", int), given.take_as("max_tokens", int)
    return newer or older


def _temperature(given: Given) -> float | int | None:
    value = given.number("temperature")
    if value is not None and value > 1:
        given.lose("temperature", f"above 1 (it is {value:g})")
        return None
    return value


def _stops(given: Given) -> list[object] | None:
    value = given.take("stop")
    if value is None or value == []:
        return None
    stops = [value] if isinstance(value, str) else as_list(value, "stop")
    for number, stop in enumerate(stops):
        if not isinstance(stop, str):
            raise wrong(f"stop[{number}]", "a string", stop)
        if not stop.strip():
            given.lose("stop", "where a stop sequence is nothing but white space")
    return [stop for stop in stops if isinstance(stop, str) and stop.strip()] or None


def _tools(given: Given) -> list[Json] | None:
    tools = given.take_as("tools", list)
    if not tools:
        return None
    made = []
    for number, tool in enumerate(tools):
        place = given.inner(tool, f"tools[{number}]")
        kind = place.need("type", str)
        if kind != "function":
            raise unsuited(place.at("type"), f"a tool of the type {kind[:30]!r} has no counterpart")
        made.append(_tool(place.inner(place.need("function", dict), "function"), place.take("cache_control")))
        place.close()
    return made


def _tool(function: Given, cache: object) -> Json:
    tool: Json = {"name": function.need("name", str)}
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


def _tool_choice(given: Given, tools: object) -> Json | None:
    value, parallel = given.take("tool_choice"), given.take_as("parallel_tool_calls", bool)
    choice: Json
    if value is None:
        choice = {"type": "auto"}
    elif isinstance(value, str) and value in _CHOICES:
        choice = dict(_CHOICES[value])
    elif isinstance(value, dict) and value.get("type") == "function":
        place = given.inner(value, "tool_choice")
        place.ignore("type")
        function = place.inner(place.need("function", dict), "function")
        choice = {"type": "tool", "name": function.need("name", str)}
        function.close()
        place.close()
    else:
        raise unsuited("tool_choice", "it must be auto, none, required or a function")
    if parallel is False and tools and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    return choice if value is not None or len(choice) > 1 else None


def _user(given: Given) -> Json | None:
    """An opaque name of the end user; the newer parameter counts."""
    newer, older = given.take_as("safety_identifier", str), given.take_as("user", str)
    user = newer or older
    return {"user_id": user} if user else None


def _tier(given: Given) -> str | None:
    tier = given.take_as("service_tier", str)
    if tier is not None and tier not in _TIERS:
        given.lose("service_tier", f"with the value {tier[:20]!r}")
        return None
    return _TIERS[tier] if tier else None


def _thought(given: Given) -> list[tuple[str, object]]:
    """`output_config` and `thinking` from reasoning_effort, response_format and an `output_config` sent along."""
    config: Json = dict(given.take_as("output_config", dict) or {})
    form = _format(given)
    if form is not None:
        config["format"] = form
    effort = given.take_as("reasoning_effort", str)
    thinking: Json | None = None
    if effort == "none":
        thinking = {"type": "disabled"}
    elif effort in _EFFORTS:
        config["effort"] = _EFFORTS[effort]
        thinking = {"type": "adaptive"}
    elif effort is not None:
        given.lose("reasoning_effort", f"with the value {effort[:20]!r}")
    return [("output_config", config or None), ("thinking", thinking)]


def _format(given: Given) -> Json | None:
    value = given.take("response_format")
    if value is None:
        return None
    place = given.inner(value, "response_format")
    kind = place.need("type", str)
    if kind == "json_schema":
        schema = place.inner(place.need("json_schema", dict), "json_schema")
        form: Json = {"type": "json_schema", "schema": schema.need("schema", dict)}
        schema.ignore("name", "description", "strict")  # names for people; the schema is always kept to
        schema.close()
        place.close()
        return form
    if kind != "text":
        given.lose("response_format", f"with the type {kind[:20]!r}; it takes json_schema")
        return None
    place.close()
    return None


def _only_one(given: Given) -> None:
    """More than one answer cannot even be dropped: the client would wait for the others."""
    count = given.take("n")
    if count not in (None, 1):
        raise unsuited("n", "the Messages API gives one answer a request")
    for key, instead in (("functions", "tools"), ("function_call", "tool_choice")):
        if given.take(key) not in (None, []):
            raise unsuited(key, f"it is an older form of `{instead}`, which can be honoured")
