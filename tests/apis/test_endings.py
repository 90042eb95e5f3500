"""One rule for the end of an answer: every API, native and translated, as a stream and as a body."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from openai_calls import call_of
from providers.protocols import ProtocolOptions, protocols
from providers.response_stream import Bounds
from providers.upstream import HttpEndpoint
from running import run_virtual
from ttft_gateway.apis.base import Api, Call, Frame, FrameKind, Headers, HttpSink, Phase, Request, Stream, WireProtocol
from ttft_gateway.apis.catalog import CATALOG
from ttft_gateway.apis.endings import unreadable
from ttft_gateway.apis.errors import ConnectionCut, EmptyAnswer, UpstreamError
from upstream_endings import DONE, END_MARKS, NATIVES, TEXT, broken, early, text_in, whole

SSE, JSON = b"text/event-stream", b"application/json"
ASKED: dict[Api, dict[str, object]] = {
    Api.CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    Api.COMPLETIONS: {"prompt": "hi"},
    Api.RESPONSES: {"input": "hi"},
    Api.MESSAGES: {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
}
FINISHES = {
    Api.CHAT: b'"finish_reason":"stop"',
    Api.COMPLETIONS: b'"finish_reason":"stop"',
    Api.RESPONSES: b'"response.completed"',
    Api.MESSAGES: b'"stop_reason":"end_turn"',
}


class Exchange:
    """One HTTP request."""

    aborted = received = False
    read_began_s = 0.0

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True


class Client:
    """An HTTP client that is played by the test."""

    sink: HttpSink

    def __init__(self) -> None:
        self.exchange = Exchange()

    def send(self, request: Request, sink: HttpSink) -> Exchange:
        self.sink = sink
        return self.exchange


@dataclass
class Sink:
    """Keeps the bytes for the client, and the end; aborts after an error, as an attempt does."""

    raw: bytes = b""
    malformed: int = 0
    ends: list[UpstreamError | None] = field(default_factory=list)
    stream: Stream | None = None

    def on_headers(self, status: int, headers: Headers) -> None: ...

    def on_content(self, raw: bytes, events: int, phase: Phase | None) -> None:
        self.raw += raw

    def on_frame(self, frame: Frame) -> None:
        self.malformed += frame.kind is FrameKind.MALFORMED
        if frame.kind is not FrameKind.ERROR:
            self.raw += frame.raw
            return
        assert self.stream is not None
        self.stream.abort()
        self.on_end(frame.error)

    def on_end(self, error: UpstreamError | None) -> None:
        self.ends.append(error)


def ways() -> Iterator[tuple[Api, Api, WireProtocol]]:
    """The client's API and the upstream's, natively and translated, each with its protocol."""
    for native in NATIVES:
        for api, protocol in protocols(CATALOG["openai"], {native}, ProtocolOptions()).items():
            if api in ASKED:
                yield api, native, protocol


WAYS = [pytest.param(*way, id=f"{way[0].name} on {way[1].name}".lower()) for way in ways()]


def played(
    protocol: WireProtocol,
    call: Call,
    pieces: Sequence[bytes],
    *,
    content_type: bytes = SSE,
    error: UpstreamError | None = None,
) -> Sink:
    """Return the result of a response with these bytes, one read each, and then the end of the body."""

    async def main() -> Sink:
        client, sink = Client(), Sink()
        endpoint = HttpEndpoint(client, {call.api: protocol}, "/v1", [(b"host", b"h")], "m", Bounds())
        sink.stream = endpoint.open(call, sink)
        client.sink.on_response(200, [(b"content-type", content_type)])
        for piece in pieces:
            client.sink.on_body(piece)
        if not client.exchange.aborted:
            client.sink.on_close(error)
        return sink

    return run_virtual(main())


def asked(api: Api, *, stream: bool, assemble: bool = True) -> Call:
    """A call of this API."""
    return call_of({"model": "m", "stream": stream, **ASKED[api]}, api, assemble=assemble)


def parts(events: list[bytes]) -> Iterator[list[bytes]]:
    """An answer in reads of one event, in one read, and cut within events."""
    joined = b"".join(events)
    yield events
    yield [joined]
    yield [joined[at : at + 50] for at in range(0, len(joined), 50)]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "body"])
@pytest.mark.parametrize(("api", "upstream", "protocol"), WAYS)
def test_no_answer_ends_without_its_finish(
    api: Api, upstream: Api, protocol: WireProtocol, subtests: pytest.Subtests, *, stream: bool
) -> None:
    """Whatever else ends an answer, it ends with an error, and the client has no mark of an end."""
    for name, events in broken(NATIVES[upstream]).items():
        for pieces in parts(events):
            with subtests.test(name):
                sink = played(protocol, asked(api, stream=stream), pieces)
                (error,) = sink.ends
                assert error is not None
                assert [mark for mark in END_MARKS if mark in sink.raw.replace(b'": "', b'":"')] == []


@pytest.mark.parametrize(("api", "upstream", "protocol"), WAYS)
def test_an_answer_with_its_finish_is_whole(
    api: Api, upstream: Api, protocol: WireProtocol, subtests: pytest.Subtests
) -> None:
    """After its finish nothing breaks an answer, and its client has all of it, with the end of the client's API."""
    finish = FINISHES[api]
    for name, events in whole(NATIVES[upstream]).items():
        for pieces in parts(events):
            with subtests.test(name):
                sink = played(protocol, asked(api, stream=True), pieces)
                assert sink.ends == [None]
                assert text_in(sink.raw) == TEXT
                assert finish in sink.raw
                assert sink.malformed == ("malformed" in name)


@pytest.mark.parametrize("declared", [SSE, JSON, b"text/plain"])
@pytest.mark.parametrize(("stream", "assemble"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize(("api", "upstream", "protocol"), WAYS)
def test_a_json_body_needs_its_finish(
    api: Api,
    upstream: Api,
    protocol: WireProtocol,
    subtests: pytest.Subtests,
    *,
    stream: bool,
    assemble: bool,
    declared: bytes,
) -> None:
    """A JSON answer is whole with its finish, however it is declared or ended, and an error without it."""
    native, call = NATIVES[upstream], asked(api, stream=stream, assemble=assemble)
    for name, change in {"whole": {}, **native.unfinished}.items():
        body = b" \n" + json.dumps({**native.body, **change}, separators=(",", ":")).encode()
        with subtests.test(name):
            sink = played(protocol, call, [body[:1], body[1:]], content_type=declared)
            (error,) = sink.ends
            assert (error is None) == (name == "whole")
            assert (TEXT.encode() in sink.raw) == (name == "whole")
            cut = ConnectionCut("lost")
            assert played(protocol, call, [body], error=cut).ends == [None if name == "whole" else cut]
            assert played(protocol, call, [body[:-1]], error=cut).ends == [cut]


@pytest.mark.parametrize("api", NATIVES)
def test_a_heavy_json_body_needs_its_finish(api: Api, subtests: pytest.Subtests) -> None:
    """Of a body that is too large to be decoded, the finish is read all the same."""
    kind = CATALOG["anthropic" if api is Api.MESSAGES else "openai"]
    protocol = protocols(kind, {api}, ProtocolOptions())[api]
    native, call = NATIVES[api], asked(api, stream=False)
    for name, change in {"whole": {}, **native.unfinished}.items():
        body = json.dumps({**native.body, **change}).replace(TEXT, "word " * 400_000).encode()
        with subtests.test(name):
            pieces = [body[at : at + 10_000] for at in range(0, len(body), 10_000)]
            (error,) = played(protocol, call, pieces).ends
            assert (error is None) == (name == "whole")
            cut = ConnectionCut("lost")
            assert played(protocol, call, pieces, error=cut).ends == [None if name == "whole" else cut]
            assert played(protocol, call, [*pieces[:-1], pieces[-1][:-1]], error=cut).ends == [cut]


@pytest.mark.parametrize(("api", "upstream", "protocol"), WAYS)
def test_events_may_be_declared_as_json(api: Api, upstream: Api, protocol: WireProtocol) -> None:
    """Events are read as events, and a broken stream of them is broken, also if they are declared as JSON."""
    good, bad = whole(NATIVES[upstream])["as usual"], broken(NATIVES[upstream])["the closing event"]
    assert played(protocol, asked(api, stream=True), good, content_type=JSON).ends == [None]
    (error,) = played(protocol, asked(api, stream=True), bad, content_type=JSON).ends
    assert isinstance(error, ConnectionCut)


@pytest.mark.parametrize(("api", "upstream", "protocol"), WAYS)
def test_a_lost_connection_completes_no_event(api: Api, upstream: Api, protocol: WireProtocol) -> None:
    """The last event of a body that was cut is not read, even if only its blank line is missing."""
    events = whole(NATIVES[upstream])["no last blank line"]
    cut = ConnectionCut("lost")
    assert played(protocol, asked(api, stream=True), events, error=cut).ends == [cut]
    assert played(protocol, asked(api, stream=True), [*events, b"\n"], error=cut).ends == [None]


@pytest.mark.parametrize(("api", "upstream", "protocol"), WAYS)
def test_a_whole_answer_can_be_ended_at_once(api: Api, upstream: Api, protocol: WireProtocol) -> None:
    """`finish` ends an answer after its finish, with the closing events of the client's API, and none before."""
    *before, last = [*NATIVES[upstream].opening, *NATIVES[upstream].words, *NATIVES[upstream].finish]

    async def main() -> None:
        client, sink = Client(), Sink()
        endpoint = HttpEndpoint(client, {api: protocol}, "/v1", [(b"host", b"h")], "m", Bounds())
        stream = sink.stream = endpoint.open(asked(api, stream=True), sink)
        assert not stream.finish()
        client.sink.on_response(200, [(b"content-type", SSE)])
        client.sink.on_body(b"".join(before))
        assert (stream.finish(), sink.ends) == (False, [])
        client.sink.on_body(last)
        is_open = upstream is not Api.RESPONSES  # there the finish is the closing event
        assert (stream.finish(), client.exchange.aborted) == (is_open, is_open)
        assert (sink.ends, FINISHES[api] in sink.raw) == ([None], True)
        assert not stream.finish()

    run_virtual(main())


CHAT_WAYS = [way for way in WAYS if way.values[1] in (Api.CHAT, Api.COMPLETIONS)]


@pytest.mark.parametrize(("api", "upstream", "protocol"), CHAT_WAYS)
def test_content_after_a_finish_takes_it_back(
    api: Api, upstream: Api, protocol: WireProtocol, subtests: pytest.Subtests
) -> None:
    """A stream that goes on after a finish_reason is whole with its closing event or its end, and else broken."""
    call, finish = asked(api, stream=True), NATIVES[upstream].finish
    for name, events in early(upstream).items():
        ends = [[*finish, DONE], finish] if "null" in name else [[DONE], [*finish, DONE], []]
        for pieces in parts(events):
            with subtests.test(name):
                (error,) = played(protocol, call, pieces, error=ConnectionCut("lost")).ends
                assert isinstance(error, ConnectionCut)
                for end in ends:
                    sink = played(protocol, call, [*pieces, *end])
                    assert (sink.ends, text_in(sink.raw)) == ([None], TEXT)


def test_a_stream_goes_on_after_an_early_finish() -> None:
    """A server that goes on after a finish_reason is read for as long as it takes."""
    protocol = protocols(CATALOG["openai"], {Api.CHAT}, ProtocolOptions())[Api.CHAT]

    async def main() -> None:
        client, sink = Client(), Sink()
        endpoint = HttpEndpoint(client, {Api.CHAT: protocol}, "/v1", [(b"host", b"h")], "m", Bounds())
        stream = sink.stream = endpoint.open(asked(Api.CHAT, stream=True), sink)
        client.sink.on_response(200, [(b"content-type", SSE)])
        for event in early(Api.CHAT)["in every chunk"]:
            client.sink.on_body(event)
            await asyncio.sleep(2.0)
        assert (stream.finish(), sink.ends, text_in(sink.raw)) == (False, [], TEXT)
        client.sink.on_body(DONE)
        assert sink.ends == [None]

    run_virtual(main())


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([], ConnectionCut),
        ([b"\n"], ConnectionCut),
        ([DONE], EmptyAnswer),
        ([NATIVES[Api.CHAT].opening[0], DONE], EmptyAnswer),
    ],
)
@pytest.mark.parametrize("declared", [SSE, JSON])
def test_an_answer_of_nothing_is_an_error(events: list[bytes], kind: type, declared: bytes) -> None:
    """A body without content and without a finish is no answer; with a closing event, an empty one."""
    protocol = protocols(CATALOG["openai"], {Api.CHAT}, ProtocolOptions())[Api.CHAT]
    (error,) = played(protocol, asked(Api.CHAT, stream=True), events, content_type=declared).ends
    assert type(error) is kind


def _choices(*finishes: str | None) -> bytes:
    choices = [
        {"index": index, "message": {"content": TEXT}, "finish_reason": finish} for index, finish in enumerate(finishes)
    ]
    return json.dumps({"choices": choices}).encode()


@pytest.mark.parametrize(
    ("finishes", "is_whole"),
    [(("stop", "length"), True), (("stop", None), False), ((None, "stop"), False), (("stop",), True), ((), False)],
)
def test_each_choice_of_a_body_needs_its_finish(finishes: Sequence[str | None], *, is_whole: bool) -> None:
    """Of several requested choices each one in the body has a finish; a server that ignores `n` sends one."""
    protocol = protocols(CATALOG["openai"], {Api.CHAT}, ProtocolOptions())[Api.CHAT]
    for assemble in (True, False):
        call = call_of({"model": "m", "n": 2, **ASKED[Api.CHAT]}, assemble=assemble)
        (error,) = played(protocol, call, [_choices(*finishes)], content_type=JSON).ends
        assert (error is None) == is_whole


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"id": "bro', FrameKind.MALFORMED),
        (b'{"id":"\xff"}', FrameKind.MALFORMED),
        (b'{"note":"\\"content\\":\\"x\\"", ', FrameKind.MALFORMED),
        (b'"a text"', FrameKind.MALFORMED),
        (b"", FrameKind.MALFORMED),
        (b'{"choices":[{"delta":{"content":"a\xff"}}]}', FrameKind.ERROR),
        (b'{"id":"\xff","choices":[{"delta":{"role":"assistant","content":""}}]}', FrameKind.ERROR),
        (b'{"choices":[{"delta":{"content":null,"finish', FrameKind.ERROR),
        (b'{"choices":[{"delta":{"con\x01ent":"a"}}]}', FrameKind.ERROR),
        (b'{"choices":[{"index":0,"del', FrameKind.ERROR),
        (b'{"id":"c","object":"chat.completion.chunk","created":17', FrameKind.ERROR),
        (b'{"id":"c","object":"text_completion","created":17', FrameKind.ERROR),
        (b'{"type":"content_block_delta","index":0,"del', FrameKind.ERROR),
        (b'{"type":"response.output_text.delta","sequence_n', FrameKind.ERROR),
        (b'{"choices":[{"delta":{"content" : "a\0"}}]}', FrameKind.ERROR),
        (b'{"choices":[{"delta":{"content":"', FrameKind.ERROR),
        (b'{"choices":[{"delta":{"content":', FrameKind.ERROR),
        (b'{"choices":[{"delta":{"content":[{"type":"text","text":"a\xff"}]}}]}', FrameKind.ERROR),
        (b'{"choices":[{"text":"a', FrameKind.ERROR),
        (b'{"choices":[{"delta":{"reasoning_content":"a', FrameKind.ERROR),
        (b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f\xff"', FrameKind.ERROR),
        (b'{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{\\"', FrameKind.ERROR),
        (
            b'{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{',
            FrameKind.ERROR,
        ),
        (b'{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"a', FrameKind.ERROR),
        (b'{"type":"response.output_text.delta","delta":"a', FrameKind.ERROR),
        (b'[{"choices":[{"delta":{"content":"a"}}]}]', FrameKind.ERROR),
    ],
)
def test_an_unreadable_event_is_skipped_only_without_a_piece(data: bytes, kind: FrameKind) -> None:
    """An event that is no JSON object is skipped if it is no part of the answer, else the answer may lack a piece."""
    assert unreadable(b"data: " + data + b"\n\n").kind is kind


_UNREAD = b'"logprobs":{"content":[{"token":"\xe4"}]}'  # in a field that the reader does not decode


@pytest.mark.parametrize(("api", "lost"), [(Api.CHAT, False), (Api.MESSAGES, True), (Api.RESPONSES, True)])
def test_bytes_that_cannot_be_translated_are_not_left_out(api: Api, *, lost: bool) -> None:
    """An event with text and invalid bytes is forwarded unchanged, and an error where it is to be translated."""
    protocol = protocols(CATALOG["openai"], {Api.CHAT}, ProtocolOptions())[api]
    events = list(whole(NATIVES[Api.CHAT])["as usual"])
    events[2] = events[2].replace(b'"index":0', b'"index":0,' + _UNREAD)
    sink = played(protocol, asked(api, stream=True), events)
    assert (sink.ends == [None]) != lost
    assert lost or b"".join(events) == sink.raw


@pytest.mark.parametrize("text", [b"\xe4\xb8\x96", b"caf\xc3\xa9", b"\\u4e16", b'\\"'])
def test_deltas_of_any_language_are_whole(text: bytes) -> None:
    """Text outside ASCII and escapes are valid in the deltas of a Messages stream."""
    protocol = protocols(CATALOG["openai"], {Api.MESSAGES}, ProtocolOptions())[Api.MESSAGES]
    events = [event.replace(b"ld", text) for event in whole(NATIVES[Api.MESSAGES])["as usual"]]
    sink = played(protocol, asked(Api.MESSAGES, stream=True), events)
    assert (sink.ends, text in sink.raw) == ([None], True)
