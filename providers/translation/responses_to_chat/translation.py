"""Serves clients of the Responses API from OpenAI-compatible upstreams; translates the requests.

Fields without a counterpart are reported as unsupported. Dropped, because they change no answer: hints for OpenAI's
own caches (`prompt_cache_*`), `safety_identifier`, `client_metadata`, `metadata` (repeated in the answer instead), and
the reasoning of earlier turns, for which chat completions has no field. Tools in a group get the group's name as a
prefix. Unknown fields are passed on unchanged. stream.py translates the answers. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from providers.responses.protocol import ResponseAssembler
from providers.responses.transcript import ENCRYPTED, LOGPROBS
from providers.translation.base import CONTINUED, UNSUPPORTED, TranslatedRequest, unknown_fields, unsupported_fields
from providers.translation.responses_to_chat.stream import READ_FIELDS, ResponseEventsFromChat
from providers.translation.responses_to_chat.tool_groups import first_groups, joined, tools_of
from ttft_gateway.apis.base import Api, Call
from ttft_gateway.apis.errors import Unsupported
from ttft_gateway.apis.json_fields import dict_or_empty, list_or_empty
from ttft_gateway.apis.tolerant_json import loads

Item = Mapping[str, object]

_UNCHANGED: Final = ("temperature", "top_p", "parallel_tool_calls", "user", "top_logprobs")
_TRANSLATED: Final = frozenset(  # translated, or without effect on the answer
    {
        *("model", "stream", "stream_options", "input", "instructions", "max_output_tokens", "text", "reasoning"),
        *("tools", "tool_choice", "include", "service_tier", "truncation", "store", "background", "max_tool_calls"),
        *(
            "metadata",
            "client_metadata",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_retention",
            "prompt_cache_options",
        ),
    }
)
_STATEFUL: Final = ("previous_response_id", "conversation", "prompt")
_IS_STATEFUL: Final = (
    "`{}` refers to stored data, and this upstream stores none; send the whole conversation as `input`"
)
_UNSUPPORTED: Final = ("context_management", "moderation", "access_programs", "image")
_NESTED: Final = {"reasoning": ("effort", "context"), "text": ("format", "verbosity")}  # translated, or without effect
_DEFAULTS: Final = (None, "auto", "none", "standard")  # of `summary` and `mode` of the reasoning
# Fields that are translated, or change no answer, by the type of a tool, an item or a part.
_TEXT: Final = ("type", "text", "annotations", "logprobs", "prompt_cache_breakpoint")
_OUTPUT: Final = ("type", "id", "status", "call_id", "output", "name", "namespace", "caller")
_KNOWN: Final[Mapping[object, Sequence[str]]] = {
    "function": ("type", "name", "description", "parameters", "strict"),
    "custom": ("type", "name", "description", "format"),
    "message": ("type", "id", "status", "role", "content", "phase"),
    "function_call_output": _OUTPUT,
    "custom_tool_call_output": _OUTPUT,
    **dict.fromkeys(("input_text", "output_text", "text"), _TEXT),
    "input_image": ("type", "image_url", "detail", "prompt_cache_breakpoint"),
    "input_audio": ("type", "input_audio", "prompt_cache_breakpoint"),
    "input_file": ("type", "file_data", "filename", "file_id", "prompt_cache_breakpoint"),
}
_INCLUDED: Final = (ENCRYPTED, LOGPROBS)  # the answers have no reasoning items to include


class ResponsesToChat:
    """The `providers.translation.base.Translation` from the Responses API to chat completions.

    Args:
        prefills: the upstream continues a last message of the assistant that is in progress.
    """

    client_api, upstream_api = Api.RESPONSES, Api.CHAT

    def __init__(self, *, prefills: bool = False) -> None:
        self._prefills = prefills

    def request(self, call: Call) -> TranslatedRequest:
        body = loads(call.body)
        assert isinstance(body, dict)
        request = request_of(body)
        if self._prefills and _is_in_progress(body.get("input")):
            return TranslatedRequest({**request.fields, **CONTINUED}, request.unsupported)
        return request

    def translator(self, call: Call) -> ResponseEventsFromChat:
        spans = {key: span for key, span in call.spans.items() if key in READ_FIELDS}  # not the prompt, which is large
        return ResponseEventsFromChat({key: loads(call.body[start:end]) for key, (start, end) in spans.items()})

    def assembler(self, _call: Call) -> ResponseAssembler:
        return ResponseAssembler()


def request_of(request: Mapping[str, object]) -> TranslatedRequest:
    """Translate a request.

    Raises:
        Unsupported: a message, an item or a part of one has no counterpart.
    """
    unsupported = {
        **unsupported_fields(_STATEFUL, request, _IS_STATEFUL),
        **unsupported_fields(_UNSUPPORTED, request),
        **_unsupported_values(request),
        **_unknown(request),
    }
    fields: dict[str, object] = {"messages": messages_of(request)}
    fields |= {name: request[name] for name in _UNCHANGED if request.get(name) is not None}
    if request.get("max_output_tokens") is not None:
        fields["max_tokens"] = request["max_output_tokens"]
    if request.get("service_tier") not in (None, "auto"):
        fields["service_tier"] = request["service_tier"]
    if LOGPROBS in list_or_empty(request.get("include")) or request.get("top_logprobs"):
        fields["logprobs"] = True
    _add_text_options(dict_or_empty(request.get("text")), fields)
    effort = dict_or_empty(request.get("reasoning")).get("effort")
    if effort is not None:
        fields["reasoning_effort"] = effort
    _add_tools(request, fields, unsupported)
    known = _TRANSLATED.union(_UNCHANGED, _STATEFUL, _UNSUPPORTED)
    fields |= {name: value for name, value in request.items() if name not in known}
    return TranslatedRequest(fields, unsupported)


def _is_in_progress(conversation: object) -> bool:
    """Return True if the last item of a conversation is a message of the assistant that has not ended."""
    items = list_or_empty(conversation)
    last = dict_or_empty(items[-1]) if items else {}
    return last.get("role") == "assistant" and last.get("status") == "in_progress"


def messages_of(request: Mapping[str, object]) -> list[dict[str, object]]:
    """Translate the conversation to messages.

    Raises:
        Unsupported: an item or a part of one has no counterpart.
    """
    messages: list[dict[str, object]] = []
    if request.get("instructions"):
        messages.append({"role": "system", "content": request["instructions"]})
    conversation = request.get("input")
    if isinstance(conversation, str):
        return [*messages, {"role": "user", "content": conversation}]
    for index, item in enumerate(list_or_empty(conversation)):
        at = f"input[{index}]"
        if not isinstance(item, dict):
            raise Unsupported(f"`{at}` is not an object", param=at)
        kind = str(item.get("type") or "message")
        if kind == "reasoning":
            continue  # reasoning of an earlier turn, which chat completions has no field for
        if kind in _CALLS:
            _add_call(messages, item, kind)
        elif kind in _OUTPUTS:
            content = _text_parts(item.get("output"), f"{at}.output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        elif kind == "message":
            _add_message(messages, _message(item, at))
        else:
            raise Unsupported(f"`{at}` is of type {kind!r}, which this upstream does not support", param=at)
    return messages


_CALLS: Final = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}
_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})


def _add_call(messages: list[dict[str, object]], item: Item, kind: str) -> None:
    """Add a tool call to the assistant's message before it; parallel calls share one message."""
    name, field = _CALLS[kind]
    called = {"name": joined(item.get("namespace"), item.get("name")), field: item.get(field) or ""}
    call = {"id": item.get("call_id"), "type": name, name: called}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    calls = messages[-1].setdefault("tool_calls", [])
    assert isinstance(calls, list)
    calls.append(call)


def _add_message(messages: list[dict[str, object]], message: dict[str, object]) -> None:
    """Add a message; the assistant's text after its tool calls joins them, because results must follow calls."""
    last = messages[-1] if messages else {}
    if message["role"] == "assistant" and "tool_calls" in last:
        texts = [str(each["content"]) for each in (last, message) if each["content"]]
        messages[-1] = {**last, **message, "content": "".join(texts) or None}
    else:
        messages.append(message)


def _message(item: Item, at: str) -> dict[str, object]:
    role, content = item.get("role"), item.get("content")
    if role == "assistant":
        return _assistant(content, at)
    translated = content if isinstance(content, str) else [_part(part, at) for part in list_or_empty(content)]
    return {"role": "system" if role == "developer" else role, "content": translated}


def _assistant(content: object, at: str) -> dict[str, object]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts, refusals = [], []
    for part in list_or_empty(content):
        kind = dict_or_empty(part).get("type")
        if kind in ("output_text", "input_text", "text"):
            texts.append(str(dict_or_empty(part).get("text") or ""))
        elif kind == "refusal":
            refusals.append(str(dict_or_empty(part).get("refusal") or ""))
        else:
            raise Unsupported(f"`{at}.content` has a part of type {kind!r}, which is invalid in an answer", param=at)
    refused = {"refusal": "".join(refusals)} if refusals else {}
    return {"role": "assistant", "content": "".join(texts) if texts or not refusals else None, **refused}


def _part(value: object, at: str) -> dict[str, object]:
    part = dict_or_empty(value)
    kind, param = part.get("type"), f"{at}.content"
    if kind in ("input_text", "text", "output_text"):
        return {"type": "text", "text": part.get("text")}
    if kind == "input_image" and part.get("image_url"):
        detail = {} if part.get("detail") is None else {"detail": part["detail"]}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    if kind == "input_file" and not part.get("file_url"):
        names = ("file_data", "filename", "file_id")
        return {"type": "file", "file": {name: part[name] for name in names if part.get(name) is not None}}
    raise Unsupported(
        f"`{param}` has a part of type {kind!r} in a form that this upstream does not support", param=param
    )


def _text_parts(output: object, at: str) -> object:
    """A tool's result: text, in one piece or in parts."""
    if isinstance(output, str):
        return output
    parts = [_part(part, at) for part in list_or_empty(output)]
    if any(part["type"] != "text" for part in parts):
        raise Unsupported(f"`{at}` is not only text; send text as a tool's result to this upstream", param=at)
    return parts


def _add_text_options(text: Item, fields: dict[str, object]) -> None:
    form = dict_or_empty(text.get("format"))
    if form.get("type") == "json_schema":
        schema = {name: value for name, value in form.items() if name != "type" and value is not None}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form.get("type") not in (None, "text"):
        fields["response_format"] = form
    if text.get("verbosity") is not None:
        fields["verbosity"] = text["verbosity"]


def _add_tools(request: Item, fields: dict[str, object], unsupported: dict[str, str]) -> None:
    tools, groups = [], first_groups(request.get("tools"))
    for param, group, tool in tools_of(request.get("tools")):
        name = joined(group, tool.get("name"))
        translated = _tool({**tool, "name": name} if group is not None else tool)
        if isinstance(name, str) and groups[name] != group:
            unsupported[param] = f"`{param}` is {name!r} at this upstream, as is a tool before it; rename one of them"
        elif translated is None:
            unsupported[param] = f"`{param}` is {tool.get('type')!r}, a tool that this upstream does not have"
        else:
            tools.append(translated)
    if tools:
        fields["tools"] = tools
    choice = request.get("tool_choice")
    if isinstance(choice, str) and (tools or choice != "auto"):
        fields["tool_choice"] = choice
    elif isinstance(choice, dict):
        translated = _choice(choice)
        if translated is None:
            unsupported["tool_choice"] = (
                f"`tool_choice` is {choice.get('type')!r}, which this upstream has no words for"
            )
        else:
            fields["tool_choice"] = translated


def _tool(tool: Item) -> dict[str, object] | None:
    """A tool in the form of chat completions, None if it has no counterpart."""
    if tool.get("type") == "function":
        names = ("name", "description", "parameters", "strict")
        return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}
    if tool.get("type") == "custom":
        translated = {name: tool[name] for name in ("name", "description") if tool.get(name) is not None}
        form = dict_or_empty(tool.get("format"))
        if form.get("type") == "grammar":
            grammar = {name: form.get(name) for name in ("definition", "syntax")}
            translated["format"] = {"type": "grammar", "grammar": grammar}
        return {"type": "custom", "custom": translated}
    return None


def _choice(choice: Item) -> dict[str, object] | None:
    kind = choice.get("type")
    if kind in ("function", "custom"):
        return {"type": kind, str(kind): {"name": joined(choice.get("namespace"), choice.get("name"))}}
    if kind == "allowed_tools":
        allowed = [_choice(dict_or_empty(tool)) for tool in list_or_empty(choice.get("tools"))]
        if all(allowed):
            return {"type": kind, kind: {"mode": choice.get("mode"), "tools": allowed}}
    return None


def _unknown(request: Item) -> dict[str, str]:
    """Return name -> message of fields of tools and of items that have no place in a chat completion.

    Items of earlier answers are not searched: the server that gave them has added their further fields.
    """
    found: dict[str, str] = {}
    for param, _, tool in tools_of(request.get("tools")):
        found |= unknown_fields(tool, param, _KNOWN.get(str(tool.get("type")), tool))
    for index, item in enumerate(map(dict_or_empty, list_or_empty(request.get("input")))):
        kind = str(item.get("type") or "message")
        key = "output" if kind in _OUTPUTS else "content"
        if key == "content" and (kind != "message" or item.get("role") == "assistant"):
            continue
        found |= unknown_fields(item, f"input[{index}]", _KNOWN[kind])
        for number, part in enumerate(map(dict_or_empty, list_or_empty(item.get(key)))):
            found |= unknown_fields(part, f"input[{index}].{key}[{number}]", _KNOWN.get(str(part.get("type")), part))
    return found


def _unsupported_values(request: Item) -> dict[str, str]:
    """Return name -> message of fields that chat completions has, but not with this value."""
    found = {}
    if request.get("store") is True:
        found["store"] = "`store` is true, and this upstream stores no answers; send store: false"
    if request.get("truncation") == "auto":
        found["truncation"] = "`truncation` is 'auto', which this upstream does not support; send 'disabled'"
    for name, without_effect in _NESTED.items():
        for key, value in dict_or_empty(request.get(name)).items():
            if key not in without_effect and value not in _DEFAULTS:
                found[f"{name}.{key}"] = UNSUPPORTED.format(f"{name}.{key}")
    other = [each for each in list_or_empty(request.get("include")) if each not in _INCLUDED]
    if other:
        found["include"] = f"`include` has {other[0]!r}, which this upstream does not support"
    return found
