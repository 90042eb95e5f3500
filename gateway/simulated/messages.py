"""Anthropic's Messages API of a simulated replica: requests, streams, JSON responses and errors.

Renders the completions of the chat API, with one choice, and with thinking in a block of its own. A last turn of the
assistant is the beginning of the answer.
"""

from collections.abc import Iterator, Mapping

import msgspec

from gateway.simulated.completion import Completion, CompletionChoice
from gateway.simulated.request import (
    FunctionSpec,
    JsonSchema,
    ParsedRequest,
    RequestError,
    ResponseFormat,
    StreamOptions,
    Tool,
    decode_body,
)
from gateway.simulated.script import Script, Step
from ttft_gateway.apis.base import Frame, FrameKind, Phase, Usage

Json = dict[str, object]

_STOP = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_ANY = frozenset({"any", "tool"})
_ERROR = b'{"type":"error",'


class _Tool(msgspec.Struct):
    name: str = ""
    input_schema: msgspec.Raw = msgspec.Raw(b"{}")


class _ToolChoice(msgspec.Struct):
    type: str = "auto"
    name: str = ""


class _Output(msgspec.Struct):
    format: JsonSchema | None = None


class _TextBlock(msgspec.Struct):
    text: str = ""


class _Turn(msgspec.Struct):
    role: str = ""
    content: str | list[_TextBlock] = ""


class _Body(msgspec.Struct):
    model: str = ""
    messages: msgspec.Raw = msgspec.Raw(b"")
    stream: bool | None = False
    max_tokens: int | None = None
    temperature: float | None = None
    tools: list[_Tool] | None = None
    tool_choice: _ToolChoice | None = None
    output_config: _Output | None = None


_decode = msgspec.json.Decoder(_Body).decode
_turns = msgspec.json.Decoder(list[msgspec.Raw]).decode
_turn = msgspec.json.Decoder(_Turn).decode
_encode = msgspec.json.Encoder().encode
_PHASES = {"thinking": Phase.THINKING, "tool_use": Phase.TOOL_CALL}  # by the type of the block


def parse_messages_request(body: bytes) -> ParsedRequest:
    """Parse a request body.

    Raises:
        RequestError: The body is invalid.
    """
    parsed = decode_body(_decode, body)
    if parsed.max_tokens is None or parsed.max_tokens < 1:
        raise RequestError("max_tokens: Field required", "max_tokens")
    if not bytes(parsed.messages).startswith(b"["):
        raise RequestError("messages: Input should be a valid list", "messages")
    tools = [Tool(FunctionSpec(tool.name, tool.input_schema)) for tool in parsed.tools or ()]
    choice: str | Tool | None = None
    if parsed.tool_choice is not None and parsed.tool_choice.type in _ANY:
        choice = Tool(FunctionSpec(parsed.tool_choice.name)) if parsed.tool_choice.name else "required"
    schema = parsed.output_config.format if parsed.output_config is not None else None
    messages = _with_prefix(parsed.messages)
    return ParsedRequest(
        model=parsed.model,
        messages=messages or parsed.messages,
        stream=parsed.stream,
        stream_options=StreamOptions(include_usage=True),
        max_tokens=parsed.max_tokens,
        temperature=parsed.temperature,
        tools=tools or None,
        tool_choice=choice,
        response_format=None if schema is None else ResponseFormat("json_schema", schema),
        continue_final_message=messages is not None,
    )


def _with_prefix(messages: msgspec.Raw) -> msgspec.Raw | None:
    """Return the messages with the beginning of the answer as one text; None if the last turn is not the assistant's.

    Raises:
        RequestError: The last turn ends in white space.
    """
    turns = _turns(messages)
    if not turns or b'"assistant"' not in bytes(turns[-1]):
        return None
    last = decode_body(_turn, bytes(turns[-1]))
    if last.role != "assistant":
        return None
    text = last.content if isinstance(last.content, str) else "".join(block.text for block in last.content)
    if text != text.rstrip():
        raise RequestError("messages: final assistant content cannot end with trailing whitespace", "messages")
    before = bytes(messages)[: bytes(messages).rindex(bytes(turns[-1]))]
    return msgspec.Raw(before + _encode({"role": "assistant", "content": text}) + b"]")


def message_events(completion: Completion) -> list[tuple[int, Frame]]:
    """Return the events of a stream in order, each with its tick as in `render.Event`."""
    choice = completion.choices[0]
    opening = {**_message(completion), "content": [], "stop_reason": None, "usage": _counts(completion.usage, 1)}
    usage = msgspec.structs.replace(completion.usage, completion_tokens=1, reasoning_tokens=None)
    events = [(-1, _event(FrameKind.PREAMBLE, "message_start", {"message": opening}, usage))]
    tick = 0
    for index, (block, deltas) in enumerate(_blocks(choice)):
        calls = block["type"] == "tool_use"
        start_kind = FrameKind.CONTENT if calls else FrameKind.WORK
        phase = _PHASES.get(str(block["type"]))
        start = _event(start_kind, "content_block_start", {"index": index, "content_block": block}, phase=phase)
        events.append((tick, start))
        for delta in deltas:
            tick += calls or len(events) > 2  # the first content has no gap before it; a call starts with its name
            fields = {"index": index, "delta": delta}
            kind = FrameKind.PREAMBLE if delta["type"] == "signature_delta" else FrameKind.CONTENT
            events.append((tick, _event(kind, "content_block_delta", fields, phase=phase)))
        events.append((tick, _event(FrameKind.PREAMBLE, "content_block_stop", {"index": index})))
    reason = _reason(choice)
    kind = FrameKind.REFUSAL if reason == "refusal" else FrameKind.FINISH
    ending = {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": _counts(completion.usage)}
    events.append((tick, _event(kind, "message_delta", ending, completion.usage)))
    events.append((tick, _event(FrameKind.DONE, "message_stop", {})))
    return events


def whole_message(completion: Completion) -> Frame:
    """Return the completion as one JSON document."""
    choice = completion.choices[0]
    content = [_filled(block, deltas) for block, deltas in _blocks(choice)]
    ending = {"stop_reason": _reason(choice), "usage": _counts(completion.usage)}
    return Frame(FrameKind.CONTENT, _encode({**_message(completion), "content": content, **ending}), completion.usage)


def with_message_errors(script: Script) -> Script:
    """Return a script with its errors in the form of the Messages API; errors in that form do not change."""
    if not any(_is_foreign(step.frame) for step in script.steps):
        return script
    steps = tuple(_in_api_form(step, script) if _is_foreign(step.frame) else step for step in script.steps)
    length = sum(len(step.frame.raw) for step in steps) if script.json else script.length
    return msgspec.structs.replace(script, steps=steps, length=length)


def _is_foreign(frame: Frame) -> bool:
    return frame.kind is FrameKind.ERROR and _ERROR not in frame.raw


def _in_api_form(step: Step, script: Script) -> Step:
    frame = step.frame
    message = "" if frame.error is None else frame.error.message
    kind = _TYPES.get(script.status, "invalid_request_error" if 400 <= script.status < 500 else "api_error")
    error = {"type": "error", "error": {"type": kind, "message": message}}
    raw = _encode(error) if script.json else b"event: error\ndata: " + _encode(error) + b"\n\n"
    return Step(step.at_s, msgspec.structs.replace(frame, raw=raw))


def _blocks(choice: CompletionChoice) -> Iterator[tuple[Json, list[Json]]]:
    """Yield the content blocks of a choice as they start, each with its deltas."""
    if choice.reasoning:
        deltas: list[Json] = [{"type": "thinking_delta", "thinking": piece} for piece in choice.reasoning]
        signature: Json = {"type": "signature_delta", "signature": "c2lt"}
        yield {"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signature]
    if choice.tool is not None:
        pieces: list[Json] = [{"type": "input_json_delta", "partial_json": piece} for piece in choice.pieces]
        yield {"type": "tool_use", "id": choice.tool[0], "name": choice.tool[1], "input": {}}, pieces
    elif choice.pieces:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in choice.pieces]


def _filled(block: Json, deltas: list[Json]) -> Json:
    filled = dict(block)
    for delta in deltas:
        for key, value in delta.items():
            if key in block and key != "type":
                filled[key] = f"{filled[key]}{value}"
    if block["type"] == "tool_use":
        filled["input"] = msgspec.json.decode("".join(str(delta["partial_json"]) for delta in deltas))
    return filled


def _reason(choice: CompletionChoice) -> str:
    return "refusal" if choice.kind == "refusal" else _STOP[choice.finish]


def _message(completion: Completion) -> Json:
    return {
        "id": completion.ident,
        "type": "message",
        "role": "assistant",
        "model": completion.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _counts(usage: Usage, output: int | None = None) -> Json:
    cached = usage.cached_tokens or 0
    return {
        "input_tokens": (usage.prompt_tokens or 0) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens if output is None else output,
    }


def _event(
    kind: FrameKind,
    name: str,
    fields: Mapping[str, object],
    usage: Usage | None = None,
    phase: Phase | None = None,
) -> Frame:
    raw = b"event: %s\ndata: %s\n\n" % (name.encode(), _encode({"type": name, **fields}))
    return Frame(kind, raw, usage, phase=phase)
