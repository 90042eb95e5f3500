"""Streams with many bytes in each read take turns: order, pauses, and not a byte lost."""

import asyncio
import itertools
from collections.abc import Callable

import pytest

import providers.response_stream
from hostile_answers import STREAMS, event
from openai_calls import STREAMED, WHOLE
from played_http import Client, Exchange, RecordingSink
from providers.openai.chat import OpenAIChat
from providers.response_stream import Bounds, ResponseStream
from providers.upstream import HttpEndpoint
from running import run_virtual
from ttft_gateway.apis.base import Api, Call, FrameKind
from ttft_gateway.apis.errors import ConnectionCut, ProtocolError
from ttft_gateway.apis.read_turns import ReadTurns

SSE = [(b"content-type", b"text/event-stream")]
_SIZE = 300_000


class _CountedExchange(Exchange):
    """The exchange of a request that records pauses and resumptions."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def pause(self) -> None:
        """Record a pause."""
        self.said.append("pause")

    def resume(self) -> None:
        """Record a resumption."""
        self.said.append("resume")


class _Play:
    """A response of one endpoint, with a client that counts pauses and resumptions."""

    def __init__(self, call: Call = STREAMED) -> None:
        exchange = _CountedExchange()
        self.said = exchange.said
        self.client, self.sink = Client(exchange=exchange), RecordingSink()
        endpoint = HttpEndpoint(self.client, {Api.CHAT: OpenAIChat()}, "/v1", [(b"host", b"h")], "m", Bounds())
        self.stream = endpoint.open(call, self.sink)
        self.response = self.client.sinks[0]
        self.response.on_response(200, SSE)

    @property
    def bytes(self) -> bytes:
        """What the sink was sent."""
        return b"".join(frame.raw for frame in self.sink.frames)


async def _until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("name", ["tokens", "tokens with escapes", "blank lines"])
@pytest.mark.parametrize("turn_s", [0.0, 1.0])
def test_nothing_is_lost_between_turns(name: str, turn_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a turn allows, the sink gets each event in order, and the end of the response last."""
    monkeypatch.setattr(providers.response_stream, "TURN_S", turn_s)
    body = STREAMS[name].make(_SIZE)

    async def main() -> None:
        play = _Play()
        play.response.on_body(body)
        play.response.on_close(None)
        await _until(lambda: play.sink.ends)
        assert play.sink.ends == [None]
        assert play.bytes == body

    run_virtual(main())


def test_a_turn_reads_one_slice_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that takes long ends after a slice; the socket is read again after the rest."""
    monkeypatch.setattr(providers.response_stream, "TURN_S", 0.0)
    body = STREAMS["tokens"].make(200_000)

    async def main() -> None:
        play = _Play()
        play.response.on_body(body[:100_000])
        sizes = [len(play.bytes)]
        while "resume" not in play.said:
            await asyncio.sleep(0.0005)
            if len(play.bytes) != sizes[-1]:
                sizes.append(len(play.bytes))
        assert max(after - before for before, after in itertools.pairwise([0, *sizes])) <= 16 * 1024 + 200
        assert play.said == ["pause", "resume"]
        play.response.on_body(b"data: [DONE]\n\n")
        play.stream.abort()

    run_virtual(main())


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CR LF", "CR"])
def test_many_blank_lines_in_one_read_take_turns(line_end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that is not large is divided, too, if it may be thousands of events."""
    monkeypatch.setattr(providers.response_stream, "TURN_S", 0.0)
    lines = line_end * (16 * 1024 // len(line_end))

    async def main() -> None:
        play = _Play()
        play.response.on_body(event(b'"role":"assistant"'))
        play.response.on_body(lines)
        assert 0 < len(play.sink.frames) <= 2 * 1024 + 1
        await _until(lambda: "resume" in play.said)
        assert play.bytes.count(line_end) >= len(lines) // len(line_end) - 1  # a CR may wait for its LF
        play.response.on_body(event(b'"content":"a"') * 100)
        assert play.said == ["pause", "resume"]  # a read of tokens takes no turn
        play.stream.abort()

    run_virtual(main())


def test_a_slow_client_stops_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that its client has paused reads nothing until it is resumed."""
    monkeypatch.setattr(providers.response_stream, "TURN_S", 0.0)
    body = STREAMS["tokens"].make(100_000)

    async def main() -> None:
        play = _Play()
        play.response.on_body(body)
        play.stream.pause()
        before = len(play.sink.frames)
        await asyncio.sleep(1)
        assert len(play.sink.frames) == before
        play.response.on_close(ConnectionCut("reset"))
        play.stream.resume()
        await _until(lambda: play.sink.ends)
        assert (play.bytes, play.sink.ends) == (body, [None])

    run_virtual(main())


def test_an_aborted_stream_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are dropped, and the turns of others go on."""
    monkeypatch.setattr(providers.response_stream, "TURN_S", 0.0)

    async def main() -> None:
        play = _Play()
        play.response.on_body(STREAMS["tokens"].make(100_000))
        before = len(play.sink.frames)
        play.stream.abort()
        await asyncio.sleep(1)
        assert (len(play.sink.frames), play.sink.ends) == (before, [])

    run_virtual(main())


def test_keys_take_turns() -> None:
    """A key with many streams has as many turns as one with a single stream, and a pause follows each turn."""

    async def main() -> None:
        turns, order = ReadTurns(), list[tuple[str, float]]()
        loop = asyncio.get_running_loop()

        def read(owner: str, times: int) -> None:
            order.append((owner, loop.time()))
            if times > 1:
                turns.wait(owner, lambda: read(owner, times - 1), 0.004, loop)

        for _ in range(10):
            turns.wait("many", lambda: read("many", 3), 0.0, loop)
        turns.wait("one", lambda: read("one", 3), 0.0, loop)
        await asyncio.sleep(10)
        owners = [owner for owner, _ in order]
        assert (owners.count("many"), owners.count("one")) == (30, 3)
        assert owners[:6] == ["many", "one"] * 3
        times = [at for _, at in order[1:6]]
        assert all(after - before > 0.01199 for before, after in itertools.pairwise(times))

    run_virtual(main())


def test_an_event_of_too_many_values_fails() -> None:
    """An event of 400 kB may have some 100,000 values; logprobs have fewer."""

    async def main() -> None:
        play = _Play()
        play.response.on_body(event(b'"content":"a"'))
        play.response.on_body(event(b'"content":[%b]' % b",".join([b"{}"] * 150_000)))
        await _until(lambda: play.sink.ends)
        (error,) = play.sink.ends
        assert isinstance(error, ProtocolError)
        assert "too many values" in str(error)

    run_virtual(main())


@pytest.mark.parametrize("call", [STREAMED, WHOLE], ids=["stream", "whole"])
def test_a_heavy_answer_is_forwarded_or_fails(call: Call) -> None:
    """A JSON answer of many values is passed on as it is; if it would have to become events, the attempt fails."""
    choice = b'{"message":{"tool_calls":[%b]},"finish_reason":"tool_calls"}' % b",".join([b"{}"] * 100_000)
    body = b'{"choices":[%b],"usage":{"prompt_tokens":3}}' % choice

    async def main() -> None:
        play = _Play(call)
        play.response.on_response(200, [(b"content-type", b"application/json")])
        assert isinstance(play.response, ResponseStream)
        play.response._reader = None
        play.response.on_body(body)
        play.response.on_close(None)
        await _until(lambda: play.sink.ends)
        if call is STREAMED:
            assert isinstance(play.sink.ends[0], ProtocolError)
        else:
            assert (play.bytes, play.sink.ends) == (body, [None])
            assert {frame.kind for frame in play.sink.frames} == {FrameKind.CONTENT}
            assert play.sink.frames[0].usage is not None

    run_virtual(main())
