"""An endpoint over a scripted HTTP client: every way a response can go becomes frames and one end."""

import asyncio
import json
from collections.abc import Sequence

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from openai_calls import STREAMED
from played_http import Client, RecordingSink
from providers.openai.chat import OpenAIChat
from providers.response_stream import Bounds
from providers.responses.protocol import OpenAIResponses
from providers.upstream import HttpEndpoint
from running import run_virtual
from ttft_gateway.apis.base import Api, FrameKind, Headers, HttpSink, Phase, Stream, WireProtocol
from ttft_gateway.apis.errors import BadStatus, ConnectionCut, ProtocolError, RequestModeRejected
from ttft_gateway.apis.sse import Splitter

SSE: Headers = [(b"content-type", b"text/event-stream")]


def _open(protocol: WireProtocol) -> tuple[Client, HttpSink, RecordingSink, Stream]:
    client, recorded = Client(), RecordingSink()
    endpoint = HttpEndpoint(client, {Api.CHAT: protocol}, "/v1", [(b"host", b"h")], "m", Bounds())
    stream = endpoint.open(STREAMED, recorded)
    return client, client.sinks[0], recorded, stream


def test_a_burst_of_content_is_one_push_with_all_its_bytes() -> None:
    """Content events that come in one read are pushed as they are, counted, with the first, which teaches."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    _, sink, recorded, _ = _open(OpenAIChat())
    sink.on_response(200, SSE)
    sink.on_body(event * 3)
    assert recorded.told == [(FrameKind.CONTENT, event * 3, 3)]
    sink.on_close(None)
    assert isinstance(recorded.ends[0], ConnectionCut)


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n\n"], ids=["none", "mark", "lines"])
@pytest.mark.parametrize("size", [1, 1000])
def test_a_byte_order_mark_is_not_forwarded(before: bytes, size: int) -> None:
    """SDKs would read it as part of the first field's name and skip the event."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    body = before + event

    async def main() -> None:
        _, sink, recorded, stream = _open(OpenAIChat())
        sink.on_response(200, SSE)
        for at in range(0, len(body), size):
            sink.on_body(body[at : at + size])
        assert [frame.raw for frame in recorded.frames] == [event]
        stream.abort()

    run_virtual(main())


@pytest.mark.parametrize("status", [200, 201, 202, 203])
def test_an_answer_may_have_any_status_of_success(status: int) -> None:
    """SDKs read an answer with 201, the default of some servers' frameworks, or 203; so does the gateway."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'

    async def main() -> None:
        _, sink, recorded, _ = _open(OpenAIChat())
        sink.on_response(status, SSE)
        sink.on_body(event)
        sink.on_close(None)
        assert ([frame.raw for frame in recorded.frames], recorded.ends) == ([event], [None])

    run_virtual(main())


@pytest.mark.parametrize("status", [204, 205, 206, 302, 600])
def test_no_other_status_is_an_answer(status: int) -> None:
    """A status that announces no body, a part of one, or none of the known ones, is an error with the status."""

    async def main() -> None:
        _, sink, recorded, _ = _open(OpenAIChat())
        sink.on_response(status, SSE)
        sink.on_close(None)
        (error,) = recorded.ends
        assert isinstance(error, BadStatus)
        assert error.status == status

    run_virtual(main())


@pytest.mark.parametrize("coding", [b"identity", b"none", b"UTF-8", b""])
def test_a_coding_that_is_none_is_read(coding: bytes) -> None:
    """Servers write `content-encoding: none` to keep proxies from compressing; SDKs read such an answer as it is."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'

    async def main() -> None:
        _, sink, recorded, _ = _open(OpenAIChat())
        sink.on_response(200, [*SSE, (b"content-encoding", coding)])
        sink.on_body(event)
        sink.on_close(None)
        assert ([frame.raw for frame in recorded.frames], recorded.ends) == ([event], [None])

    run_virtual(main())


@pytest.mark.parametrize("coding", [b"gzip", b"GZIP", b"identity, br", b"x-odd"])
def test_any_other_coding_is_named(coding: bytes) -> None:
    """A coding that the gateway cannot read is an error that names it."""
    _, sink, recorded, _ = _open(OpenAIChat())
    sink.on_response(200, [*SSE, (b"content-encoding", coding)])
    assert f"({coding.decode()})" in str(recorded.ends[0])


_DELTA = b'data: {"id":"c","choices":[{"index":0,"delta":{%b},"finish_reason":null}]}\n\n'
_OUTPUTS = {
    _DELTA % delta: phase
    for delta, phase in (
        (b'"content":"a"', None),
        (b'"content":"\xc3\xa9"', None),
        (b'"reasoning_content":"hm"', Phase.THINKING),
        (b'"reasoning_content":"\xc3\xa9"', Phase.THINKING),
        (b'"tool_calls":[{"index":0,"function":{"arguments":"{"}}]', Phase.TOOL_CALL),
    )
}


@given(st.lists(st.sampled_from(list(_OUTPUTS)), min_size=1, max_size=12), st.lists(st.integers(1, 400), max_size=8))
def test_the_last_push_has_the_phase_of_the_last_event(events: list[bytes], sizes: list[int]) -> None:
    """In reads of any size, each in runs or one by one, the sink has the phase of the last whole event."""
    _, sink, recorded, _ = _open(OpenAIChat())
    sink.on_response(200, SSE)
    whole, at = b"".join(events), 0
    ends = [sum(map(len, events[: count + 1])) for count in range(len(events))]
    for size in [*sizes, len(whole)]:
        sink.on_body(whole[at : at + size])
        at = min(at + size, len(whole))
        seen = [event for event, end in zip(events, ends, strict=True) if end <= at]
        assert [frame.phase for frame in recorded.frames[-1:]] == [_OUTPUTS[event] for event in seen[-1:]]


_CHUNK = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":%b},"finish_reason":null}]}\n\n'
_PIECES = st.one_of(
    st.text("ab c", max_size=3).map(lambda text: _CHUNK % json.dumps(text).encode()),
    st.text(max_size=3).map(lambda text: _CHUNK % json.dumps(text).encode()),
    st.sampled_from(
        [
            b": a comment\n\n",
            b"\n",
            b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n',
            _CHUNK.replace(b"\n", b"\r\n") % b'"x"',
            _CHUNK.replace(b"null", b'"stop"') % b'"x"',
            b"data: no JSON\n\n",
        ]
    ),
)


@given(st.lists(_PIECES, max_size=12), st.data())
def test_runs_are_the_same_events(events: list[bytes], data: st.DataObject) -> None:
    """However the bytes come, the sink gets what it would get from a reader that reads every event."""
    events = [b": a stream\n\n", *events]  # the first byte shows that the body is one
    whole = b"".join(events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))

    async def main() -> RecordingSink:
        _, sink, recorded, stream = _open(OpenAIChat())
        sink.on_response(200, SSE)
        for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            sink.on_body(whole[start:end])
        stream.abort()
        return recorded

    recorded = run_virtual(main())
    splitter, reader = Splitter(10_000), OpenAIChat().reader(STREAMED)
    frames = [reader.read(event) for event in splitter.feed(whole)]
    assert _merged(recorded.told) == _merged([(frame.kind, frame.raw, 1) for frame in frames])


def _merged(pushes: Sequence[tuple[FrameKind, bytes, int]]) -> list[tuple[FrameKind, bytes, int]]:
    """Kinds, bytes and counts, of neighbours of one kind together."""
    told: list[tuple[FrameKind, bytes, int]] = []
    for kind, raw, events in pushes:
        before = told.pop() if told and told[-1][0] is kind else (kind, b"", 0)
        told.append((kind, before[1] + raw, before[2] + events))
    return told


def test_a_bug_in_a_read_ends_its_attempt_at_once() -> None:
    """An exception costs one attempt: the connection is dropped and the sink gets one error."""
    client, sink, recorded, _ = _open(OpenAIChat())
    sink.on_response(200, SSE)
    recorded.broken = True  # like any bug in a read
    sink.on_body(b"data: {}\n\n")
    sink.on_body(b"data: {}\n\n")
    sink.on_close(None)
    assert client.exchange.aborted
    assert [type(end) for end in recorded.ends] == [ProtocolError]


JSON: Headers = [(b"content-type", b"application/json")]
ANSWER = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'


def test_a_server_that_cannot_stream_is_asked_for_the_whole() -> None:
    """After a 400 that names streaming the next call is sent without it, and its JSON answer comes as a stream."""

    async def main() -> None:
        client, first, second = Client(), RecordingSink(), RecordingSink()
        endpoint = HttpEndpoint(client, {Api.CHAT: OpenAIChat()}, "/v1", [(b"host", b"h")], "m", Bounds())
        endpoint.open(STREAMED, first)
        client.sinks[0].on_response(400, JSON)
        client.sinks[0].on_body(b'{"error":{"message":"no streaming here","param":"stream"}}')
        client.sinks[0].on_close(None)
        assert isinstance(first.ends[0], RequestModeRejected)
        endpoint.open(STREAMED, second)
        assert client.requests[1].body == b'{"model":"m"}'
        assert b"accept: application/json" in client.requests[1].head
        client.sinks[1].on_response(200, JSON)
        client.sinks[1].on_body(ANSWER)
        client.sinks[1].on_close(None)
        assert [frame.kind.value for frame in second.frames] == ["content", "finish", "done"]
        assert second.ends == [None]

    run_virtual(main())


def test_a_compressed_answer_is_an_error() -> None:
    """It was asked not to be; of an error status only the text is lost, and the message does not call it empty."""

    async def main() -> None:
        client, recorded, failed = Client(), RecordingSink(), RecordingSink()
        endpoint = HttpEndpoint(client, {Api.CHAT: OpenAIChat()}, "/v1", [(b"host", b"h")], "m", Bounds())
        endpoint.open(STREAMED, recorded)
        client.sinks[0].on_response(200, [*SSE, (b"content-encoding", b"gzip")])
        assert isinstance(recorded.ends[0], ProtocolError)
        assert "gzip" in recorded.ends[0].message
        assert client.exchange.aborted
        endpoint.open(STREAMED, failed)
        client.sinks[1].on_response(429, [(b"content-encoding", b"br"), (b"retry-after", b"7")])
        client.sinks[1].on_body(bytes(range(256)))
        client.sinks[1].on_close(None)
        assert isinstance(failed.ends[0], BadStatus)
        assert (failed.ends[0].status, failed.ends[0].retry_after_s) == (429, 7.0)
        assert failed.ends[0].message == "the upstream answered with status 429 and a body without a readable error"

    run_virtual(main())


@pytest.mark.parametrize("streaming", [True, False])
def test_a_page_instead_of_an_answer_is_named(streaming: bool) -> None:
    """A proxy's page with status 200 is reported as such, and not as an answer that was cut."""

    async def main() -> None:
        client, recorded = Client(), RecordingSink()
        endpoint = HttpEndpoint(client, {Api.CHAT: OpenAIChat()}, "/v1", [(b"host", b"h")], "m", Bounds())
        endpoint.open(msgspec.structs.replace(STREAMED, streaming=streaming, assemble=not streaming), recorded)
        client.sinks[0].on_response(200, [(b"content-type", b"text/html")])
        client.sinks[0].on_body(b"\r\n")
        client.sinks[0].on_body(b"<!doctype html>\n\n<html>")
        assert isinstance(recorded.ends[0], ProtocolError)
        assert "HTML" in recorded.ends[0].message
        assert client.exchange.aborted

    run_virtual(main())


_SAID = _CHUNK % b'"hi"'
_FINISHED = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


async def _pass(seconds: float) -> None:
    """Let virtual time go by."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


@pytest.mark.parametrize("last", [_FINISHED, _SAID.replace(b"null", b'"stop"')], ids=["alone", "with content"])
def test_an_answer_is_whole_with_its_last_finish_reason(last: bytes) -> None:
    """A server that neither sends more nor closes costs the answer nothing: no stall, and nothing stays open."""

    async def main() -> None:
        client, sink, recorded, _ = _open(OpenAIChat())
        sink.on_response(200, SSE)
        sink.on_body(_SAID)
        await _pass(60)
        assert recorded.ends == []  # before that, silence is a stall, and not this file's business
        sink.on_body(last)
        await _pass(2.9)
        assert recorded.ends == []
        await _pass(0.2)
        assert recorded.ends == [None]
        assert client.exchange.aborted

    run_virtual(main())


@pytest.mark.parametrize("behind", [_SAID.replace(b"null", b'"stop"'), _FINISHED], ids=["with content", "alone"])
@pytest.mark.parametrize("split", [False, True], ids=["one read", "two reads"])
def test_an_error_after_the_last_finish_reason_is_the_end(behind: bytes, *, split: bool) -> None:
    """All of the answer is there: an error event that follows it ends it, as a lost connection would, and no more."""

    async def main() -> None:
        client, sink, recorded, _ = _open(OpenAIChat())
        sink.on_response(200, SSE)
        sink.on_body(_SAID)
        error = b'data: {"error":{"message":"out of memory"}}\n\n'
        for data in (behind, error) if split else (behind + error,):
            sink.on_body(data)
        assert recorded.ends == [None]
        assert FrameKind.ERROR not in [frame.kind for frame in recorded.frames]
        assert client.exchange.aborted
        await _pass(100)
        assert recorded.ends == [None]

    run_virtual(main())


@pytest.mark.parametrize("behind", [b"", b"\n", b": bye\n\n", _SAID], ids=["nothing", "blank", "comment", "content"])
def test_what_follows_the_closing_event_keeps_no_connection(behind: bytes) -> None:
    """A body that does not end after its closing event is dropped a second later, whatever follows that event."""

    async def main() -> None:
        client, sink, recorded, _ = _open(OpenAIChat())
        sink.on_response(200, SSE)
        sink.on_body(_SAID + _FINISHED)
        sink.on_body(b"data: [DONE]\n\n" + behind)
        assert recorded.ends == [None]
        assert recorded.frames[-1].kind is FrameKind.DONE
        assert not client.exchange.aborted  # its last chunk would free it for the next request
        await _pass(1.1)
        assert client.exchange.aborted

    run_virtual(main())


def test_what_is_not_read_is_not_late() -> None:
    """While a slow client has its stream paused, what follows the finish_reason may be there: it is waited for."""

    async def main() -> None:
        _, sink, recorded, stream = _open(OpenAIChat())
        sink.on_response(200, SSE)
        sink.on_body(_SAID)
        sink.on_body(_FINISHED)
        stream.pause()
        await _pass(100)
        assert recorded.ends == []
        stream.resume()
        sink.on_body(b"data: [DONE]\n\n")
        assert recorded.frames[-1].kind is FrameKind.DONE
        assert recorded.ends == [None]

    run_virtual(main())


def test_an_error_after_an_answer_without_content_is_an_error() -> None:
    """An error without generated content is an error, not an empty answer that could win."""

    async def main() -> None:
        _, sink, recorded, _ = _open(OpenAIChat())
        sink.on_response(200, SSE)
        sink.on_body(_FINISHED + b'data: {"error":{"message":"out of memory","code":500}}\n\n')
        assert [frame.kind for frame in recorded.frames] == [FrameKind.FINISH, FrameKind.ERROR]
        assert recorded.ends == []  # a sink that gets an error aborts

    run_virtual(main())


def test_nothing_is_pushed_after_the_end() -> None:
    """A sink that aborts a stream after its finish_reason gets nothing that comes later."""

    async def main() -> None:
        _, sink, recorded, stream = _open(OpenAIChat())
        sink.on_response(200, SSE)
        sink.on_body(_SAID)
        sink.on_body(_FINISHED)
        stream.abort()
        await _pass(100)
        assert recorded.ends == []

    run_virtual(main())


@pytest.mark.parametrize("body", [b"", b'{"error":{"message":"overl', b"x" * 100_000], ids=["none", "half", "endless"])
def test_an_error_status_is_known_in_time(body: bytes) -> None:
    """The body of an error is waited for while it is short and fast; its status and Retry-After are enough."""

    async def main() -> None:
        client, sink, recorded, _ = _open(OpenAIChat())
        sink.on_response(503, [*JSON, (b"retry-after", b"7")])
        sink.on_body(body)
        await _pass(0 if len(body) > 64 * 1024 else 3.1)
        (error,) = recorded.ends
        assert isinstance(error, BadStatus)
        assert (error.status, error.retry_after_s) == (503, 7.0)
        assert client.exchange.aborted

    run_virtual(main())


def test_a_response_without_its_last_event_is_cut() -> None:
    """A [DONE] in place of `response.completed` is no end of an answer, and is not passed on as if it were."""

    async def main() -> None:
        _, sink, recorded, _ = _open(OpenAIResponses())
        sink.on_response(200, SSE)
        sink.on_body(b'data: {"type":"response.output_text.delta","delta":"hi"}\n\n')
        sink.on_body(b"data: [DONE]\n\n")
        assert isinstance(recorded.ends[0], ConnectionCut)
        assert b"[DONE]" not in b"".join(frame.raw for frame in recorded.frames)

    run_virtual(main())
