"""Answers that are cheap to send and expensive to read, for tests and `scripts/attack`. Units: bytes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ttft_gateway.apis.base import Api

_ALTERNATIVE: Final = {"token": " the", "logprob": -0.1234567, "bytes": [32, 116, 104, 101]}
_CALL: Final = {"id": "call_%07d", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@dataclass(frozen=True)
class HostileAnswer:
    """One shape of an answer.

    Attributes:
        api: the API that is called.
        stream: the answer is requested as a stream.
        make: makes the body of a given size.
        is_json: the body is one JSON document; False: events.
        most: largest size, None for any.
        chunk: size of the chunks of its transfer coding; 0: it has a length instead.
    """

    api: Api
    make: Callable[[int], bytes]
    stream: bool = False
    is_json: bool = True
    most: int | None = None
    chunk: int = 0


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def repeated(item: bytes, size: int) -> bytes:
    """Return an array of an item."""
    return b"[%b]" % b",".join([item] * (size // (len(item) + 1)))


def chat(choices: bytes) -> bytes:
    """Return an answer to a chat with these choices."""
    return (
        b'{"id":"c","object":"chat.completion","choices":%b,"usage":{"prompt_tokens":5,"completion_tokens":2}}'
        % choices
    )


def _message(fields: bytes, beside: bytes = b"") -> bytes:
    return chat(b'[{"index":0,"message":{"role":"assistant",%b},"finish_reason":"stop"%b}]' % (fields, beside))


def _logprobs(size: int) -> bytes:
    token = _compact({**_ALTERNATIVE, "top_logprobs": [_ALTERNATIVE] * 20})
    return _message(b'"content":"hi"', b',"logprobs":{"content":%b}' % repeated(token, size))


def tool_calls(size: int) -> bytes:
    """Return the calls of one message, 89 bytes each."""
    call = _compact(_CALL)
    return b"[%b]" % b",".join(call % number for number in range(size // (len(call) + 4)))


def _embedding(size: int) -> bytes:
    item = b'{"object":"embedding","index":0,"embedding":%b}' % repeated(b"-0.01234567", 36_000)
    return b'{"object":"list","data":%b,"usage":{"prompt_tokens":5}}' % repeated(item, size)


def event(delta: bytes, finish: bytes = b"null") -> bytes:
    """Return one event of a chat."""
    return b'data: {"id":"c","choices":[{"index":0,"delta":{%b},"finish_reason":%b}]}\n\n' % (delta, finish)


def _events(one: bytes, size: int) -> bytes:
    return event(b'"role":"assistant"') + one * (size // len(one)) + event(b"", b'"stop"') + b"data: [DONE]\n\n"


def _calls_in_events(size: int) -> bytes:
    calls = [
        event(b'"tool_calls":[{"index":%d,%b]' % (number, _compact(_CALL)[1:] % number))
        for number in range(size // (len(_compact(_CALL)) + 80))
    ]
    return event(b'"role":"assistant"') + b"".join(calls) + event(b"", b'"tool_calls"') + b"data: [DONE]\n\n"


_TOKEN: Final = event(b'"content":" word"')
_ESCAPED: Final = event(b'"content":" w\\u00f6rd"')

DOCUMENTS: Final[Mapping[str, HostileAnswer]] = {
    "chat: {}": HostileAnswer(Api.CHAT, lambda size: _message(b'"content":"hi","x":%b' % repeated(b"{}", size))),
    "chat: choices {}, to a stream": HostileAnswer(Api.CHAT, lambda size: chat(repeated(b"{}", size)), stream=True),
    'chat: {"a":1}': HostileAnswer(
        Api.CHAT, lambda size: _message(b'"content":"hi","x":%b' % repeated(b'{"a":1}', size))
    ),
    "chat: nested arrays": HostileAnswer(Api.CHAT, lambda size: chat(b"[" * (size // 2) + b"]" * (size // 2))),
    "chat: many keys": HostileAnswer(
        Api.CHAT, lambda size: b"{%b}" % b",".join(b'"%07d":1' % number for number in range(size // 12))
    ),
    "chat: one text": HostileAnswer(Api.CHAT, lambda size: _message(b'"content":"%b"' % (b"word " * (size // 5)))),
    "chat: logprobs": HostileAnswer(Api.CHAT, _logprobs),
    "chat: tool calls": HostileAnswer(
        Api.CHAT, lambda size: _message(b'"content":null,"tool_calls":%b' % tool_calls(size)), most=8_900_000
    ),
    "embeddings": HostileAnswer(Api.EMBEDDINGS, _embedding),
    "rerank: results {}": HostileAnswer(Api.RERANK, lambda size: b'{"results":%b}' % repeated(b"{}", size)),
}
"""JSON answers by name."""

STREAMS: Final[Mapping[str, HostileAnswer]] = {
    "tokens": HostileAnswer(Api.CHAT, lambda size: _events(_TOKEN, size), stream=True, is_json=False),
    "tokens with escapes": HostileAnswer(Api.CHAT, lambda size: _events(_ESCAPED, size), stream=True, is_json=False),
    "events of 3 MB": HostileAnswer(
        Api.CHAT,
        lambda size: _events(event(b'"content":"%b"' % (b"word " * 600_000)), size),
        stream=True,
        is_json=False,
    ),
    "one-byte chunks": HostileAnswer(
        Api.CHAT, lambda size: _events(_TOKEN, size // 6), stream=True, is_json=False, chunk=1
    ),
    "blank lines": HostileAnswer(Api.CHAT, lambda size: _events(b"\n", size // 10), stream=True, is_json=False),
    "tool calls, assembled": HostileAnswer(Api.CHAT, _calls_in_events, is_json=False, most=8_900_000),
    "tool calls, translated": HostileAnswer(Api.MESSAGES, _calls_in_events, stream=True, is_json=False, most=8_900_000),
    "logprobs of 4,000 tokens": HostileAnswer(Api.CHAT, _logprobs, most=8_000_000),
}
"""Answers that a replica sends as fast as it can, by name."""
