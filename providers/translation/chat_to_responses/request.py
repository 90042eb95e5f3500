"""Chat completions in the words of the Responses API: requests, for upstreams that serve a model only there.

`store: false` is said wherever the caller did not ask for more, because that is what chat completions does unasked.
What the Responses API has no words for (stop sequences, seeds, penalties, several choices) is refused by name, or
dropped and told where that is allowed. Fields that nobody here knows are passed on as they are. Pure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from providers.base import Api, Assembler, Call
from providers.errors import Unsupported
from providers.tolerant_json import loads
from providers.translation.base import Request, lost
from providers.translation.chat_to_responses.stream import ChatChunks

Item = Mapping[str, object]

_SAME: Final = (
    *("temperature", "top_p", "parallel_tool_calls", "user", "service_tier", "metadata", "prompt_cache_key"),
    *("prompt_cache_retention", "safety_identifier", "top_logprobs"),
)
_NO_WORDS: Final = (
    *("stop", "seed", "frequency_penalty", "presence_penalty", "logit_bias", "prediction", "web_search_options"),
    *("audio", "functions", "function_call"),
)
_MEANT: Final = (
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
_NOTHING: Final[tuple[object, ...]] = (None, 0, 0.0, {}, [])


class ChatOverResponses:
    """The `providers.translation.base.Translation` for clients of chat completions.

    Args:
        assembler: makes a chat completion of chunks.
    """

    asked, spoken = Api.CHAT, Api.RESPONSES

    def __init__(self, assembler: Callable[[Call], Assembler]) -> None:
        self.assembler = assembler

    def request(self, call: Call) -> Request:
        """See `Translation.request`."""
        given = loads(call.body)
        assert isinstance(given, dict)
        missing = lost(_NO_WORDS, {n: v for n, v in given.items() if v not in _NOTHING}, _no_words)
        if given.get("n") not in (None, 1):
            missing["n"] = "`n` asks for several answers, and this upstream gives one"
        if given.get("modalities") not in (None, ["text"]):
            missing["modalities"] = _no_words("modalities")
        fields: dict[str, object] = {"input": list(_items(given)), "store": given.get("store") is True}
        fields |= {name: given[name] for name in _SAME if given.get(name) is not None}
        most = given.get("max_completion_tokens") or given.get("max_tokens")
        if most is not None:
            fields["max_output_tokens"] = most
        if given.get("logprobs"):
            fields["include"] = ["message.output_text.logprobs"]
        if given.get("reasoning_effort") is not None:
            fields["reasoning"] = {"effort": given["reasoning_effort"]}
        text = _text(given)
        if text:
            fields["text"] = text
        if given.get("tools"):
            fields["tools"] = [_flat(_dict(tool)) for tool in _list(given["tools"])]
        if given.get("tool_choice") is not None:
            fields["tool_choice"] = _choice(given["tool_choice"])
        fields |= {name: value for name, value in given.items() if name not in {*_SAME, *_NO_WORDS, *_MEANT}}
        return Request(fields, missing)

    def translator(self, call: Call) -> ChatChunks:
        """See `Translation.translator`."""
        return ChatChunks(usage_wanted=call.include_usage or not call.streaming)


def _items(given: Item) -> Iterator[dict[str, object]]:
    """The conversation as input items.

    Raises:
        Unsuited: a message or a part of one has no form there.
    """
    for index, each in enumerate(_list(given.get("messages"))):
        message, at = _dict(each), f"messages[{index}]"
        role, content = message.get("role"), message.get("content")
        if message.get("name") or message.get("audio") or message.get("function_call") or role == "function":
            raise Unsupported(
                f"`{at}` has a name, audio or a legacy function call, which this upstream cannot take", param=at
            )
        if role == "tool":
            output = content if isinstance(content, str) else [_part(part, at) for part in _list(content)]
            yield {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output}
        elif role == "assistant":
            yield from _assistant(message, at)
        else:
            said = content if isinstance(content, str) else [_part(part, at) for part in _list(content)]
            yield {"type": "message", "role": role, "content": said}


def _assistant(message: Item, at: str) -> Iterator[dict[str, object]]:
    content = message.get("content")
    parts: list[object] = [{"type": "text", "text": content}] if isinstance(content, str) else list(_list(content))
    if message.get("refusal"):
        parts.append({"type": "refusal", "refusal": message["refusal"]})
    said = [_said_before(part, at) for part in parts if part != {"type": "text", "text": ""}]
    if said:
        yield {"type": "message", "role": "assistant", "content": said}
    for call in map(_dict, _list(message.get("tool_calls"))):
        if call.get("type") == "custom":
            custom = _dict(call.get("custom"))
            named = {"call_id": call.get("id"), "name": custom.get("name")}
            yield {"type": "custom_tool_call", **named, "input": custom.get("input")}
        else:
            function = _dict(call.get("function"))
            named = {"call_id": call.get("id"), "name": function.get("name")}
            yield {"type": "function_call", **named, "arguments": function.get("arguments")}


def _said_before(value: object, at: str) -> dict[str, object]:
    """One part of what the model said before."""
    part = _dict(value)
    if part.get("type") == "refusal":
        return {"type": "refusal", "refusal": part.get("refusal")}
    if part.get("type") == "text":
        return {"type": "output_text", "text": part.get("text"), "annotations": []}
    raise Unsupported(
        f"`{at}.content` has a part of type {part.get('type')!r}, which an answer cannot have here", param=at
    )


def _part(value: object, at: str) -> dict[str, object]:
    """One part of what a user says or a tool gives back."""
    part = _dict(value)
    kind = part.get("type")
    if kind == "text":
        return {"type": "input_text", "text": part.get("text")}
    if kind == "image_url":
        image = _dict(part.get("image_url"))
        return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail") or "auto"}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    if kind == "file":
        return {"type": "input_file", **_dict(part.get("file"))}
    raise Unsupported(f"`{at}.content` has a part of type {kind!r}, which this upstream has no words for", param=at)


def _text(given: Item) -> dict[str, object]:
    """The format and verbosity of the answer."""
    text: dict[str, object] = {}
    form = _dict(given.get("response_format"))
    if form.get("type") == "json_schema":
        text["format"] = {"type": "json_schema", **_dict(form.get("json_schema"))}
    elif form:
        text["format"] = form
    if given.get("verbosity") is not None:
        text["verbosity"] = given["verbosity"]
    return text


def _flat(tool: Item) -> dict[str, object]:
    """A tool without the nesting; a function is not strict unless it says so, as in chat completions."""
    kind = str(tool.get("type"))
    inner = _dict(tool.get(kind))
    if kind == "function":
        return {"type": kind, "parameters": None, "strict": False, **inner}
    form = _dict(inner.get("format"))
    if form.get("type") == "grammar":
        inner = {**inner, "format": {"type": "grammar", **_dict(form.get("grammar"))}}
    return {"type": kind, **inner}


def _choice(choice: object) -> object:
    """Which tool to call, without the nesting."""
    if not isinstance(choice, dict):
        return choice
    kind = str(choice.get("type"))
    inner = _dict(choice.get(kind))
    if kind == "allowed_tools":
        return {"type": kind, "mode": inner.get("mode"), "tools": [_choice(tool) for tool in _list(inner.get("tools"))]}
    return {"type": kind, **inner}


def _no_words(name: str) -> str:
    return f"`{name}` is given, and this upstream has no words for it"


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()
