"""Transcripts of broken streams of the OpenAI APIs."""

import json
import random
from collections.abc import Iterator
from typing import Any

from providers.openai.transcript import OpenAIRecoverer, OpenAITranscript
from providers.recovery import Continuation
from ttft_gateway.apis.base import Api, Call
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import parse

Piece = tuple[int, dict[str, Any], str | None]
"""Choice, delta, finish_reason."""
DONE = b"data: [DONE]\n\n"
RECOVERER = OpenAIRecoverer()


def call(api: Api = Api.CHAT, **fields: object) -> Call:
    """A client's call."""
    asked: dict[str, object] = {"messages": [{"role": "user", "content": "hi"}]}
    if api is Api.COMPLETIONS:
        asked = {"prompt": 'He said "hi"\n'}
    body = {"model": "m", "stream": True, **asked, **fields}
    body = {key: value for key, value in body.items() if value is not None}
    return parse(api, json.dumps(body, ensure_ascii=False).encode(), [], NumberLimits(16, 10_000), frozenset()).call


def event(chunk: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def chunk(stream: str, *choices: Piece, **more: object) -> bytes:
    """An event of a stream."""
    said = [{"index": index, "delta": delta, "finish_reason": finish} for index, delta, finish in choices]
    return event({"id": stream, "created": len(stream), "model": f"model-{stream}", "choices": said, **more})


def transcript(*events: bytes, of: Call | None = None) -> OpenAITranscript:
    """The transcript of these events."""
    made = RECOVERER.transcript(of or call())
    made.add(b"".join(events))
    return made


def stream(rng: random.Random, said: dict[tuple[object, ...], str], name: str) -> list[bytes]:
    """The answer as a server could cut it up: characters apart or in halves, choices interleaved, role alone or not."""
    queues: dict[int, list[Piece]] = {}
    apart = rng.random() < 0.5
    for place, text in said.items():
        index = place[0]
        assert isinstance(index, int)
        queue = queues.setdefault(index, [(index, {"role": "assistant", "content": ""}, None)] if apart else [])
        if place[1] == "finish":
            queue.append((index, {}, text))
        elif place[-1] == "name":
            start = {"index": place[1], "id": f"call-{name}-{place[1]}", "type": "function"}
            queue.append((index, {"tool_calls": [{**start, "function": {"name": text, "arguments": ""}}]}, None))
        else:
            for part in _parts(rng, text):
                piece = {"index": place[1], "function": {"arguments": part}}
                delta = {"tool_calls": [piece]} if place[-1] == "arguments" else {str(place[1]): part}
                queue.append((index, delta, None))
        if not apart:
            queue[0][1]["role"] = "assistant"
    events = []
    while queues:
        index = rng.choice(sorted(queues))
        events.append(chunk(name, queues[index].pop(0)))
        if not queues[index]:
            del queues[index]
    return [*events, chunk(name, usage={"prompt_tokens": 3, "completion_tokens": 4}), DONE]


def _parts(rng: random.Random, text: str) -> Iterator[str]:
    """A text in pieces; a character may be cut between its two halves."""
    units = text.encode("utf-16-le")
    while units:
        size = 2 * rng.randint(1, 5)
        yield units[:size].decode("utf-16-le", "surrogatepass")
        units = units[size:]


def content(text: str, stream: str = "a", index: int = 0) -> bytes:
    """A piece of a choice's text."""
    return chunk(stream, (index, {"content": text}, None))


def tool(arguments: str, stream: str, index: int = 0, name: str | None = None) -> bytes:
    """A piece of a tool call."""
    piece: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if name is not None:
        piece |= {"id": f"call-{stream}-{index}", "type": "function"}
        piece["function"]["name"] = name
    return chunk(stream, (0, {"tool_calls": [piece]}, None))


def continued(made: OpenAITranscript) -> Continuation:
    """Its continuation, which there must be."""
    found = made.continuation()
    assert found is not None
    return found
