"""The guarantees of every translation, tested with a small made-up API."""

import json

import pytest

from openai_calls import call_of, in_one_piece
from providers.openai.chat import OpenAIChat
from providers.protocols import ProtocolOptions, protocols
from providers.translation.base import TranslatedProtocol, TranslatedRequest, unsupported_fields
from ttft_gateway.apis.base import Api, Call, Frame, FrameKind, Usage
from ttft_gateway.apis.catalog import CATALOG
from ttft_gateway.apis.errors import Unsupported
from ttft_gateway.apis.sse import events_of
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import parse

CALL = call_of({"model": "m", "say": "hi", "loud": True, "stream": True}, Api.MESSAGES)
HELLO = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"hello"},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
DONE = b"data: [DONE]\n\n"


class Shouter:
    """Every event becomes two: a note, and the event's length."""

    over = False

    def read(self, event: bytes) -> bytes:
        if b"[DONE]" in event:
            return self.close()
        return b"data: note\n\ndata: %d\n\n" % len(event)

    def close(self) -> bytes:
        end, self.over = b"" if self.over else b"data: end\n\n", True
        return end


class Gathered:
    """Puts events together as a list."""

    def __init__(self) -> None:
        self.got: list[str] = []

    def add(self, raw: bytes) -> None:
        self.got += [event[6:-2].decode() for event in events_of(raw)]

    def body(self) -> bytes:
        return json.dumps(self.got).encode()


class Shouting:
    """A translation of a made-up API to chat completions."""

    client_api, upstream_api = Api.MESSAGES, Api.CHAT

    def request(self, call: Call) -> TranslatedRequest:
        given = json.loads(call.body)
        messages = [{"role": "user", "content": given["say"]}]
        return TranslatedRequest({"messages": messages}, unsupported_fields(("loud",), given, "`{}` cannot be said"))

    def translator(self, call: Call) -> Shouter:
        return Shouter()

    def assembler(self, call: Call) -> Gathered:
        return Gathered()


def test_a_request_is_translated() -> None:
    """The upstream gets the translated fields, its own model name, and is asked for a stream with usage."""
    dropped: list[object] = []
    protocol = TranslatedProtocol(Shouting(), OpenAIChat(), dropped.append)
    built = json.loads(in_one_piece(protocol.build(CALL, "up", stream=True)))
    assert built == {
        "messages": [{"role": "user", "content": "hi"}],
        "model": "up",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert dropped == [("loud",)]
    assert protocol.path(Api.MESSAGES, "m", stream=True) == "/chat/completions"


def test_unsupported_fields_are_rejected_by_name() -> None:
    """Without permission to drop fields, an unsupported field is rejected by name."""
    with pytest.raises(Unsupported) as rejected:
        TranslatedProtocol(Shouting(), OpenAIChat()).build(CALL, "up", stream=True)
    assert (rejected.value.param, rejected.value.status) == ("loud", 400)


def test_frames_keep_their_meaning_and_get_other_bytes() -> None:
    """Kinds and usage are the upstream's, bytes are the translator's; the end is given once."""
    reader = TranslatedProtocol(Shouting(), OpenAIChat()).reader(CALL)
    frames = [reader.read(event) for event in (HELLO, STOP, USAGE)]
    assert frames == [
        Frame(FrameKind.CONTENT, b"data: note\n\ndata: %d\n\n" % len(HELLO)),
        Frame(FrameKind.FINISH, b"data: note\n\ndata: %d\n\n" % len(STOP)),
        Frame(FrameKind.USAGE, b"data: note\n\ndata: %d\n\n" % len(USAGE), Usage(3, 1)),
    ]
    assert (reader.complete, reader.closed) == (True, False)
    assert reader.read(DONE) == Frame(FrameKind.DONE, b"data: end\n\n")
    assert reader.closed
    assert reader.close() is None


def test_an_answer_without_a_closing_event_is_closed_in_the_clients_api() -> None:
    """A body that ends after a finish_reason is complete, and the client still gets its closing event."""
    reader = TranslatedProtocol(Shouting(), OpenAIChat()).reader(CALL)
    reader.read(STOP)
    assert reader.close() == Frame(FrameKind.DONE, b"data: end\n\n")


def test_an_error_has_no_bytes_of_its_own() -> None:
    """Errors and comments of the upstream have no bytes for the client."""
    reader = TranslatedProtocol(Shouting(), OpenAIChat()).reader(CALL)
    assert reader.read(b": ping\n\n") == Frame(FrameKind.COMMENT, b"")
    failed = reader.read(b'data: {"error":{"message":"no"}}\n\n')
    assert (failed.kind, failed.raw) == (FrameKind.ERROR, b"")


def test_a_whole_body_is_translated_as_its_events_are() -> None:
    """A JSON answer becomes the body that the same answer's events would make."""
    body = {
        "id": "x",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    frame = TranslatedProtocol(Shouting(), OpenAIChat()).whole(CALL, json.dumps(body).encode())
    assert (frame.kind, frame.usage) == (FrameKind.CONTENT, Usage(3, 1))
    said = json.loads(frame.raw)
    assert (said[0], said[-1], len(said)) == ("note", "end", 7)
    assert TranslatedProtocol(Shouting(), OpenAIChat()).whole(CALL, b"{}").kind is FrameKind.ERROR


class Twice(Shouting):
    """A translation of another made-up API to the first one."""

    client_api, upstream_api = Api.EMBEDDINGS, Api.MESSAGES

    def request(self, call: Call) -> TranslatedRequest:
        return TranslatedRequest({"say": json.loads(call.body)["say"]})


def test_translations_compose() -> None:
    """A translated protocol can be translated again, event by event."""
    protocol = TranslatedProtocol(Twice(), TranslatedProtocol(Shouting(), OpenAIChat()))
    assert json.loads(in_one_piece(protocol.build(CALL, "up", stream=True)))["messages"] == [
        {"role": "user", "content": "hi"}
    ]
    reader = protocol.reader(CALL)
    assert reader.read(HELLO).raw == b"data: note\n\ndata: 12\n\ndata: note\n\ndata: 11\n\n"
    assert reader.read(STOP).kind is FrameKind.FINISH
    assert reader.read(DONE).raw == b"data: note\n\ndata: 11\n\n"
    assert reader.close() == Frame(FrameKind.DONE, b"data: end\n\n")


@pytest.mark.parametrize("kind", CATALOG)
def test_every_kind_serves_chat(kind: str) -> None:
    """Chat completions can be served by every kind of upstream."""
    row = CATALOG[kind]
    assert Api.CHAT in protocols(row, row.apis, ProtocolOptions())


@pytest.mark.parametrize(
    ("messages", "fits"),
    [
        ([{"role": "user", "content": '{"a": [1, 2], "b": {}},"\\' * 100_000}], True),
        ([{"role": "user", "content": "a"}] * 4_000, True),
        ([{"role": "user", "content": "a"}] * 30_000, False),
        ([{"role": "user", "content": [{}] * 30_000}], False),
    ],
    ids=["a text of punctuation", "thousands of messages", "messages", "parts"],
)
def test_a_request_of_very_many_values_is_not_translated(messages: list[object], *, fits: bool) -> None:
    """The values of a request are counted before they are built; punctuation within texts does not count."""
    built = protocols(CATALOG["anthropic"], (Api.MESSAGES,), ProtocolOptions(wall_s=lambda: 0.0))[Api.CHAT]
    call = call_of({"model": "m", "messages": messages, "max_tokens": 5}, Api.CHAT)
    if fits:
        assert built.build(call, "n", stream=True)
    else:
        with pytest.raises(Unsupported, match="too many to be translated") as error:
            built.build(call, "n", stream=True)
        assert (error.value.status, error.value.code) == (400, "array_above_max_length")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ('"temperature": 1e999', "temperature"),
        ('"metadata": {"a": ["1e999", {"b": -2.5E+0400}]}', "metadata.a[1].b"),
        ('"temperature": 0.5, "user": "1e999, 2E400"', None),
    ],
)
def test_a_number_too_large_for_a_float_is_named(fields: str, path: str | None) -> None:
    """JSON has no infinity, so a translated number of that size would be null: the request is rejected."""
    built = protocols(CATALOG["anthropic"], (Api.MESSAGES,), ProtocolOptions(wall_s=lambda: 0.0))[Api.CHAT]
    fields = f'{{"model": "m", "max_tokens": 5, "messages": [{{"role": "user", "content": "a"}}], {fields}}}'
    call = parse(Api.CHAT, fields.encode(), (), NumberLimits(1, 9), frozenset()).call
    if path is None:
        assert built.build(call, "n", stream=True)
        return
    with pytest.raises(Unsupported, match="write a smaller one") as error:
        built.build(call, "n", stream=True)
    assert (error.value.status, error.value.param) == (400, path)
