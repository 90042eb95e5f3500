"""Serves clients of chat completions from upstreams of the Responses API; translates the requests.

For upstreams that serve a model only there. `store: false` is sent unless the client sends `store: true`, because that
is the default of chat completions. Parameters without a counterpart (stop sequences, seeds, penalties, several choices)
are reported as unsupported. Unknown fields are passed on unchanged. stream.py translates the answers. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from providers.openai.chat import OpenAIChat
from providers.translation.base import UNSUPPORTED, TranslatedRequest, unknown_fields, unsupported_fields
from providers.translation.chat_to_responses.stream import ChatChunksFromResponses
from ttft_gateway.apis.base import Api, Assembler, Call
from ttft_gateway.apis.errors import Unsupported
from ttft_gateway.apis.json_fields import dict_or_empty, list_or_empty
from ttft_gateway.apis.tolerant_json import loads

Item = Mapping[str, object]

_UNCHANGED: Final = (
    *("temperature", "top_p", "parallel_tool_calls", "user", "service_tier", "metadata", "prompt_cache_key"),
    *("prompt_cache_retention", "safety_identifier", "top_logprobs"),
)
_UNSUPPORTED: Final = (
    *("stop", "seed", "frequency_penalty", "presence_penalty", "logit_bias", "prediction", "web_search_options"),
    *("audio", "functions", "function_call"),
)
_TRANSLATED: Final = (
    *(
        "model",
        "stream",
        "stream_options",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "store",
        "modalities",
    ),
    *("tools", "tool_choice", "logprobs", "response_format", "reasoning_effort", "verbosity"),
)
_PART: Final = ("type", "text", "image_url", "input_audio", "file", "cache_control", "prompt_cache_breakpoint")
_EMPTY: Final[tuple[object, ...]] = (None, 0, 0.0, {}, [])


class ChatToResponses:
    """The `providers.translation.base.Translation` from chat completions to the Responses API."""

    client_api, upstream_api = Api.CHAT, Api.RESPONSES

    def request(self, call: Call) -> TranslatedRequest:
        body = loads(call.body)
        assert isinstance(body, dict)
        return request_of(body)

    def translator(self, call: Call) -> ChatChunksFromResponses:
        return ChatChunksFromResponses(with_usage=call.include_usage or not call.streaming)

    def assembler(self, call: Call) -> Assembler:
        return OpenAIChat().assembler(call)


def request_of(request: Mapping[str, object]) -> TranslatedRequest:
    """Translate a request.

    Raises:
        Unsupported: a message, an item or a part of one has no counterpart.
    """
    unsupported = unsupported_fields(
        _UNSUPPORTED, {n: v for n, v in request.items() if v not in _EMPTY or n == "web_search_options"}
    )
    unsupported |= _unknown(request)
    if request.get("n") not in (None, 1):
        unsupported["n"] = "`n` is above 1, and this upstream gives one answer per request; send n: 1"
    if request.get("modalities") not in (None, ["text"]):
        unsupported["modalities"] = UNSUPPORTED.format("modalities")
    fields: dict[str, object] = {"input": list(_items(request)), "store": request.get("store") is True}
    fields |= {name: request[name] for name in _UNCHANGED if request.get(name) is not None}
    max_tokens = request.get("max_completion_tokens") or request.get("max_tokens")
    if max_tokens is not None:
        fields["max_output_tokens"] = max_tokens
    if request.get("logprobs"):
        fields["include"] = ["message.output_text.logprobs"]
    if request.get("reasoning_effort") is not None:
        fields["reasoning"] = {"effort": request["reasoning_effort"]}
    text = _text(request)
    if text:
        fields["text"] = text
    if request.get("tools"):
        fields["tools"] = [_flat_tool(dict_or_empty(tool)) for tool in list_or_empty(request["tools"])]
    if request.get("tool_choice") is not None:
        fields["tool_choice"] = _choice(request["tool_choice"])
    fields |= {name: value for name, value in request.items() if name not in {*_UNCHANGED, *_UNSUPPORTED, *_TRANSLATED}}
    return TranslatedRequest(fields, unsupported)


def _unknown(request: Item) -> dict[str, str]:
    """Return name -> message of fields of tools and messages that the Responses API has no place for.

    Messages of the assistant are not searched: the server that gave them has added their further fields.
    """
    found: dict[str, str] = {}
    for index, tool in enumerate(map(dict_or_empty, list_or_empty(request.get("tools")))):
        found |= unknown_fields(tool, f"tools[{index}]", ("type", str(tool.get("type")), "cache_control"))
    for index, message in enumerate(map(dict_or_empty, list_or_empty(request.get("messages")))):
        if message.get("role") == "assistant":
            continue
        at = f"messages[{index}]"
        found |= unknown_fields(message, at, ("role", "content", "name", "tool_call_id", "cache_control"))
        for number, part in enumerate(map(dict_or_empty, list_or_empty(message.get("content")))):
            found |= unknown_fields(part, f"{at}.content[{number}]", _PART)
            image = dict_or_empty(part.get("image_url"))
            found |= unknown_fields(image, f"{at}.content[{number}].image_url", ("url", "detail"))
    return found


def _items(request: Item) -> Iterator[dict[str, object]]:
    """Translate the conversation to input items.

    Raises:
        Unsupported: a message or a part of one has no counterpart.
    """
    for index, each in enumerate(list_or_empty(request.get("messages"))):
        message, at = dict_or_empty(each), f"messages[{index}]"
        role, content = message.get("role"), message.get("content")
        named = message.get("name") and role != "tool"  # a result's call has the name of the tool, too
        if named or message.get("audio") or message.get("function_call") or role == "function":
            raise Unsupported(
                f"`{at}` has a name, audio or a legacy function call, which this upstream does not support", param=at
            )
        if role == "tool":
            output = content if isinstance(content, str) else [_part(part, at) for part in list_or_empty(content)]
            yield {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output}
        elif role == "assistant":
            yield from _assistant(message, at)
        else:
            said = content if isinstance(content, str) else [_part(part, at) for part in list_or_empty(content)]
            yield {"type": "message", "role": role, "content": said}


def _assistant(message: Item, at: str) -> Iterator[dict[str, object]]:
    content = message.get("content")
    parts: list[object] = (
        [{"type": "text", "text": content}] if isinstance(content, str) else list(list_or_empty(content))
    )
    if message.get("refusal"):
        parts.append({"type": "refusal", "refusal": message["refusal"]})
    said = [_assistant_part(part, at) for part in parts if part != {"type": "text", "text": ""}]
    if said:
        yield {"type": "message", "role": "assistant", "content": said}
    for call in map(dict_or_empty, list_or_empty(message.get("tool_calls"))):
        if call.get("type") == "custom":
            custom = dict_or_empty(call.get("custom"))
            named = {"call_id": call.get("id"), "name": custom.get("name")}
            yield {"type": "custom_tool_call", **named, "input": custom.get("input")}
        else:
            function = dict_or_empty(call.get("function"))
            named = {"call_id": call.get("id"), "name": function.get("name")}
            yield {"type": "function_call", **named, "arguments": function.get("arguments")}


def _assistant_part(value: object, at: str) -> dict[str, object]:
    part = dict_or_empty(value)
    if part.get("type") == "refusal":
        return {"type": "refusal", "refusal": part.get("refusal")}
    if part.get("type") == "text":
        return {"type": "output_text", "text": part.get("text"), "annotations": []}
    raise Unsupported(
        f"`{at}.content` has a part of type {part.get('type')!r}, which is invalid in an answer", param=at
    )


def _part(value: object, at: str) -> dict[str, object]:
    """Translate one part of a user's message or a tool's result."""
    part = dict_or_empty(value)
    kind = part.get("type")
    if kind == "text":
        return {"type": "input_text", "text": part.get("text")}
    if kind == "image_url":
        image = dict_or_empty(part.get("image_url"))
        return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail") or "auto"}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    if kind == "file":
        return {"type": "input_file", **dict_or_empty(part.get("file"))}
    raise Unsupported(f"`{at}.content` has a part of type {kind!r}, which this upstream does not support", param=at)


def _text(request: Item) -> dict[str, object]:
    text: dict[str, object] = {}
    form = dict_or_empty(request.get("response_format"))
    if form.get("type") == "json_schema":
        text["format"] = {"type": "json_schema", **dict_or_empty(form.get("json_schema"))}
    elif form:
        text["format"] = form
    if request.get("verbosity") is not None:
        text["verbosity"] = request["verbosity"]
    return text


def _flat_tool(tool: Item) -> dict[str, object]:
    """A tool without the nesting; a function is strict only if the client sets that, as in chat completions."""
    kind = str(tool.get("type"))
    inner = dict_or_empty(tool.get(kind))
    if kind == "function":
        return {"type": kind, "parameters": None, "strict": False, **inner}
    form = dict_or_empty(inner.get("format"))
    if form.get("type") == "grammar":
        inner = {**inner, "format": {"type": "grammar", **dict_or_empty(form.get("grammar"))}}
    return {"type": kind, **inner}


def _choice(choice: object) -> object:
    if not isinstance(choice, dict):
        return choice
    kind = str(choice.get("type"))
    inner = dict_or_empty(choice.get(kind))
    if kind == "allowed_tools":
        return {
            "type": kind,
            "mode": inner.get("mode"),
            "tools": [_choice(tool) for tool in list_or_empty(inner.get("tools"))],
        }
    return {"type": kind, **inner}
