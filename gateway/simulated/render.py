"""Renders a completion as bytes: events of a stream, or the equivalent JSON body.

Each event is a `Frame` with its kind and usage. Events have ticks instead of times: a tick is the number of content
gaps before the event, and is below 0 before the first content.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Literal, NamedTuple

import msgspec

from gateway.simulated.completion import Completion, CompletionChoice
from gateway.simulated.request import ParsedRequest
from ttft_gateway.apis.base import Api, Frame, FrameKind, Phase, Usage

Role = Literal["early", "with", "none"]

CREATED_S = 1_700_000_000  # fixed, so that responses do not depend on the date
DONE = Frame(FrameKind.DONE, b"data: [DONE]\n\n")
_LOGPROB = -0.25
_FILTER_RESULTS = [{"prompt_index": 0, "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}}]
_EARLY_ROLE = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
_NOTHING: dict[Api, dict[str, object]] = {
    Api.CHAT: {"delta": {}, "logprobs": None},
    Api.COMPLETIONS: {"text": "", "logprobs": None},
}

_encode = msgspec.json.Encoder().encode


class RenderOptions(NamedTuple):
    """Options of a replica's streams.

    Attributes:
        role: "early": a role chunk before the content; "with": the role in every content chunk; "none": no role.
        filters: True if a chunk with filter results and without choices comes first, as from Azure.
        reasoning_key: field of thinking tokens.
        per_event: tokens in an event.
    """

    role: Role
    filters: bool
    reasoning_key: str
    per_event: int = 1


Event = tuple[int, Frame]
"""The tick of an event, and the event."""


def stream(api: Api, request: ParsedRequest, completion: Completion, options: RenderOptions) -> list[Event]:
    """Return the events of a stream in order, `[DONE]` included."""
    head = b"data: " + _envelope(api, completion, chunk=True)[:-1] + b',"choices":['
    tail = b'],"usage":null}\n\n' if request.include_usage else b"]}\n\n"
    events = []
    last = 0
    for index, choice in enumerate(completion.choices):
        tick = 0
        for tick, (kind, phase, fields) in enumerate(_content_events(api, request, choice, options)):
            events.append((tick, Frame(kind, head + _chunk(index, fields, None) + tail, phase=phase)))
        kind = FrameKind.REFUSAL if choice.finish == "content_filter" else FrameKind.FINISH
        events.append((tick, Frame(kind, head + _chunk(index, _NOTHING[api], choice.finish) + tail)))
        last = max(last, tick)
    if len(completion.choices) > 1:
        events.sort(key=itemgetter(0))
    if request.include_usage:
        raw = head + b'],"usage":' + _encode(_usage(completion.usage)) + b"}\n\n"
        events.append((last, Frame(FrameKind.USAGE, raw, completion.usage)))
    events.append((last, DONE))
    return [*_preamble(api, completion, options, head, tail), *events]


def whole(api: Api, request: ParsedRequest, completion: Completion, options: RenderOptions) -> Frame:
    """Return the completion as one JSON document."""
    document = msgspec.json.decode(_envelope(api, completion, chunk=False))
    render = _message_choice if api is Api.CHAT else _text_choice
    document["choices"] = [render(request, index, choice, options) for index, choice in enumerate(completion.choices)]
    document["usage"] = _usage(completion.usage)
    if options.filters:
        document["prompt_filter_results"] = _FILTER_RESULTS
    return Frame(FrameKind.CONTENT, _encode(document), completion.usage)


def error_body(message: str, kind: str, code: str | None, param: str | None = None) -> bytes:
    """Return an OpenAI error object."""
    return _encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def _envelope(api: Api, completion: Completion, *, chunk: bool) -> bytes:
    chat = "chat.completion.chunk" if chunk else "chat.completion"
    kind = chat if api is Api.CHAT else "text_completion"
    tier = {} if completion.usage.tier is None else {"service_tier": completion.usage.tier}
    return _encode({"id": completion.ident, "object": kind, "created": CREATED_S, "model": completion.model, **tier})


def _preamble(api: Api, completion: Completion, options: RenderOptions, head: bytes, tail: bytes) -> Iterator[Event]:
    """Yield the events before the first content."""
    if options.filters:
        raw = head + b'],"prompt_filter_results":' + _encode(_FILTER_RESULTS) + b"}\n\n"
        yield -1, Frame(FrameKind.PREAMBLE, raw)
    if options.role == "early" and api is Api.CHAT:
        for index in range(len(completion.choices)):
            raw = head + _chunk(index, _EARLY_ROLE, None) + tail
            yield -1, Frame(FrameKind.PREAMBLE, raw)


def _content_events(
    api: Api, request: ParsedRequest, choice: CompletionChoice, options: RenderOptions
) -> Iterator[tuple[FrameKind, Phase | None, dict[str, object]]]:
    """Yield kind and phase of each content event of a choice, and the fields of the chunk's choice."""
    if api is Api.COMPLETIONS:
        offset = 0
        for pieces in _grouped(choice.pieces, options):
            text = "".join(pieces)
            yield FrameKind.CONTENT, None, {"text": text, "logprobs": _text_logprobs(request, pieces, offset)}
            offset += len(text)
        return
    role = {"role": "assistant"} if options.role == "with" else {}
    for pieces in _grouped(choice.reasoning, options):
        fields: dict[str, object] = {"delta": {**role, options.reasoning_key: "".join(pieces)}, "logprobs": None}
        yield FrameKind.CONTENT, Phase.THINKING, fields
    if choice.tool is not None:
        groups = _grouped(choice.pieces, options)
        more: list[dict[str, object]] = [{"function": {"arguments": "".join(pieces)}} for pieces in groups]
        for call in (_call(choice.tool, ""), *more):
            delta = {**role, "tool_calls": [{"index": 0, **call}]}
            yield FrameKind.CONTENT, Phase.TOOL_CALL, {"delta": delta, "logprobs": None}
        return
    kind = FrameKind.REFUSAL if choice.kind == "refusal" else FrameKind.CONTENT
    for pieces in _grouped(choice.pieces, options):
        delta = {**role, choice.kind: "".join(pieces)}
        yield kind, None, {"delta": delta, "logprobs": _chat_logprobs(request, choice, pieces)}


def _grouped(pieces: Sequence[str], options: RenderOptions) -> Iterator[Sequence[str]]:
    for start in range(0, len(pieces), options.per_event):
        yield pieces[start : start + options.per_event]


def _chunk(index: int, fields: Mapping[str, object], finish: str | None) -> bytes:
    return _encode({"index": index, **fields, "finish_reason": finish})


def _message_choice(
    request: ParsedRequest, index: int, choice: CompletionChoice, options: RenderOptions
) -> dict[str, object]:
    text = "".join(choice.pieces)
    message: dict[str, object] = {"role": "assistant", "content": None, "refusal": None}
    if choice.tool is not None:
        message["tool_calls"] = [_call(choice.tool, text)]
    else:
        message[choice.kind] = text
    if choice.reasoning:
        message[options.reasoning_key] = "".join(choice.reasoning)
    logprobs = _chat_logprobs(request, choice, choice.pieces)
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish}


def _text_choice(
    request: ParsedRequest, index: int, choice: CompletionChoice, _style: RenderOptions
) -> dict[str, object]:
    logprobs = _text_logprobs(request, choice.pieces, 0)
    return {"index": index, "text": "".join(choice.pieces), "logprobs": logprobs, "finish_reason": choice.finish}


def _call(tool: tuple[str, str], arguments: str) -> dict[str, object]:
    return {"id": tool[0], "type": "function", "function": {"name": tool[1], "arguments": arguments}}


def _chat_logprobs(request: ParsedRequest, choice: CompletionChoice, pieces: Sequence[str]) -> dict[str, object] | None:
    """Return the `logprobs` of some text tokens of a choice; None if the request has none."""
    if not request.logprobs or choice.kind != "content":
        return None
    return {"content": [_token(piece, request.top_logprobs or 0) for piece in pieces], "refusal": None}


def _token(piece: str, alternatives: int) -> dict[str, object]:
    one = {"token": piece, "logprob": _LOGPROB, "bytes": list(piece.encode())}
    others = [{"token": f"{piece}{rank}", "logprob": _LOGPROB - rank, "bytes": None} for rank in range(1, alternatives)]
    return {**one, "top_logprobs": [one, *others] if alternatives else []}


def _text_logprobs(request: ParsedRequest, pieces: Sequence[str], offset: int) -> dict[str, object] | None:
    """Return the `logprobs` of a completions choice; `offset` is the position of its first piece in the text."""
    if request.logprobs is None or request.logprobs is False:
        return None
    offsets = []
    for piece in pieces:
        offsets.append(offset)
        offset += len(piece)
    return {
        "tokens": list(pieces),
        "token_logprobs": [_LOGPROB] * len(pieces),
        "top_logprobs": [{piece: _LOGPROB} for piece in pieces],
        "text_offset": offsets,
    }


def _usage(usage: Usage) -> dict[str, object]:
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
