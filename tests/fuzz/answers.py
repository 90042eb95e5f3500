"""Any bytes as an upstream's answer, in every protocol: frames, JSON bodies and errors, never an exception.

The first byte chooses the client's API and the protocol that serves it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from gateway.race import failures as failover
from openai_calls import call_of
from providers.anthropic.protocol import AnthropicMessages
from providers.openai.chat import OpenAIChat, OpenAICompletions
from providers.openai.transcript import OpenAIRecoverer
from providers.protocols import ProtocolOptions, protocols
from providers.responses.protocol import ResponseAssembler
from providers.translation.base import TranslatedProtocol
from providers.translation.chat_to_messages.translation import ChatToMessages
from providers.translation.messages_to_chat.translation import Dialect, MessagesToChat
from ttft_gateway.apis.base import Api, Assembler, Call, Frame, FrameKind, WireProtocol
from ttft_gateway.apis.catalog import CATALOG
from ttft_gateway.apis.errors import ProtocolError, UpstreamError
from ttft_gateway.apis.sse import Splitter

WORDS: Final = (
    b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{"}}]}}]}\n\n',
    b'data: {"error":{"message":"x","code":500}}\n\n',
    b"data: [DONE]\n\n",
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"r","output":[]}}\n\n',
    b'data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"x"}\n\n',
    b'data: {"type":"response.completed","response":{"id":"r","output":[]}}\n\n',
    b'data: {"type":"message_start","message":{"usage":{"input_tokens":1}}}\n\n',
    b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n',
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}\n\n',
    b'data: {"type":"message_stop"}\n\n',
    b'"index":',
    b'"finish_reason":"error"',
    b"null",
    b"[]",
    b"{}",
    b"-1",
    b"1e400",
    b'"\\ud83d"',
    b"[[[[",
)
NO_ANSWER: Final = (ValueError, TypeError, LookupError, AttributeError)  # as gateway.api.response takes them
_EVENT_BYTES_MAX: Final = 4096


def _ways() -> dict[Api, list[WireProtocol]]:
    """Every protocol by the API it serves: natives first, then translations."""
    found: dict[Api, list[WireProtocol]] = {api: [] for api in Api}
    for native in ({Api.CHAT, Api.COMPLETIONS, Api.EMBEDDINGS}, {Api.RESPONSES}):
        for api, protocol in protocols(CATALOG["openai"], native, ProtocolOptions(on_dropped=lambda _: None)).items():
            found[api].append(protocol)
    found[Api.MESSAGES] += [AnthropicMessages(), TranslatedProtocol(MessagesToChat(Dialect()), OpenAIChat())]
    found[Api.CHAT].append(TranslatedProtocol(ChatToMessages(lambda: 0.0), AnthropicMessages()))
    return found


WAYS: Final[Mapping[Api, Sequence[WireProtocol]]] = _ways()
_ASSEMBLERS: Final[Mapping[Api, Callable[[Call], Assembler]]] = {
    Api.CHAT: OpenAIChat().assembler,
    Api.COMPLETIONS: OpenAICompletions().assembler,
    Api.RESPONSES: lambda _: ResponseAssembler(),
    Api.MESSAGES: AnthropicMessages().assembler,
}
ALL: Final = [(api, protocol) for api, ways in WAYS.items() for protocol in ways]
_ASKED: Final[Mapping[Api, Mapping[str, object]]] = {
    Api.CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    Api.COMPLETIONS: {"prompt": "hi"},
    Api.RESPONSES: {"input": "hi"},
    Api.MESSAGES: {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
    Api.EMBEDDINGS: {"input": "hi"},
}


def check(data: bytes) -> None:
    """Read it as a stream, as a body and as an error."""
    (api, protocol), answer = ALL[data[0] % len(ALL) if data else 0], data[1:]
    call = call_of({"model": "m", "stream": True, **_ASKED[api]}, api)
    if api is not Api.EMBEDDINGS:
        frames = _frames(protocol, call, answer)
        _assembled(_ASSEMBLERS[api](call), frames)
        if api in (Api.CHAT, Api.COMPLETIONS):
            _recovered(call, frames)
        for frame in protocol.reader(call).read_body(answer):
            _check(frame)
    with suppress(*NO_ANSWER):
        _check(protocol.whole(call, answer))
    for status in (400, 429, 503):
        error = protocol.error(status, [(b"retry-after", answer[:20])], answer)
        assert error.status is None or 100 <= error.status < 1000
        assert error.retry_after_s is None or error.retry_after_s >= 0
        _told(error)


def _check(frame: Frame) -> None:
    assert (frame.error is not None) == (frame.kind is FrameKind.ERROR)
    if frame.error is not None:
        _told(frame.error)
    if frame.usage is not None:
        counts = (frame.usage.prompt_tokens, frame.usage.completion_tokens, frame.usage.cached_tokens)
        assert all(count is None or 0 <= count <= 10**9 for count in counts)


def _told(error: UpstreamError) -> None:
    """A client hears of it."""
    json.loads(failover.client_error(error).body())


def _frames(protocol: WireProtocol, call: Call, answer: bytes) -> list[Frame]:
    """The frames of a stream up to its closing event, as an attempt gets them."""
    splitter, reader, frames = Splitter(_EVENT_BYTES_MAX), protocol.reader(call), list[Frame]()
    try:
        events = splitter.feed(answer)
    except ProtocolError:
        return []
    for event in events:
        try:
            frames.append(reader.read(event))
        except ProtocolError:  # the upstream said what cannot be told in this API: the attempt fails
            return frames
        _check(frames[-1])
        if frames[-1].kind is FrameKind.DONE and not reader.complete:  # no end of an answer
            return frames[:-1]
        if reader.closed or frames[-1].kind is FrameKind.ERROR:
            return frames
    last = reader.close() if reader.complete else None
    return frames if last is None else [*frames, last]


def _assembled(assembler: Assembler, frames: Sequence[Frame]) -> None:
    """Whatever came makes one JSON object, or none in a way that is expected."""
    for frame in frames:
        if frame.raw and frame.kind is not FrameKind.ERROR:
            with suppress(ProtocolError):  # the attempt fails
                assembler.add(frame.raw)
    with suppress(*NO_ANSWER):
        assert isinstance(json.loads(assembler.body()), dict)


def _recovered(call: Call, frames: Sequence[Frame]) -> None:
    """Joined to its own first half, a stream has said all of that again, or is honestly not comparable."""
    raws = [frame.raw for frame in frames if frame.raw and frame.kind in (FrameKind.CONTENT, FrameKind.PREAMBLE)]
    transcript = OpenAIRecoverer().transcript(call)
    for raw in raws[: len(raws) // 2]:
        transcript.add(raw)
    transcript.continuation()
    if transcript.comparable:
        joiner = transcript.joiner()
        assert any(joiner.feed(raw) is None for raw in raws) or joiner.caught_up
