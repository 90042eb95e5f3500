"""Silence in a stream, in virtual time: thinking and tool calls have their own timeouts, clients get keep-alives."""

import asyncio
import itertools
from collections.abc import Callable, Mapping

import pytest

from anthropic_calls import CHAT_TO_MESSAGES
from defaults import default_hedging, default_timeouts
from gateway.race.race import Race
from openai_calls import STREAMED
from providers.response_stream import take_run
from scripted import DONE, FINISH, RecordingClient, Scripted, Step, run_race
from ttft_gateway.apis.anthropic.events import MessageReader
from ttft_gateway.apis.base import EventReader, Frame, FrameKind, Phase
from ttft_gateway.apis.openai.events import ChunkReader, LearnedEnds
from ttft_gateway.apis.responses.events import ResponsesReader
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool

OFF = default_hedging(policy=Policy.OFF)
CHAT = {
    "text": b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n',
    "thinking": b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}\n\n',
    "tool": b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}\n\n',
    "empty": b'data: {"choices":[{"index":0,"delta":{}}]}\n\n',
}
MESSAGES = {
    "text": b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}\n\n',
    "thinking": b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}\n\n',
    "tool": b'event: content_block_start\ndata: {"type":"content_block_start","content_block":{"type":"tool_use"}}\n\n',
    "empty": b'event: ping\ndata: {"type": "ping"}\n\n',
}
RESPONSES = {
    "text": b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n',
    "thinking": b"event: response.reasoning_summary_text.delta\n"
    b'data: {"type":"response.reasoning_summary_text.delta","delta":"hm"}\n\n',
    "tool": b"event: response.function_call_arguments.delta\n"
    b'data: {"type":"response.function_call_arguments.delta","delta":"{"}\n\n',
    "empty": b'event: response.in_progress\ndata: {"type":"response.in_progress","response":{}}\n\n',
}
APIS = {"chat": CHAT, "messages": MESSAGES, "responses": RESPONSES}


READERS: Mapping[str, Callable[[], EventReader]] = {
    "chat": ChunkReader,
    "messages": MessageReader,
    "responses": ResponsesReader,
}


def read(api: str, event: bytes) -> Frame:
    """Return the frame of an event of a stream of the API."""
    return READERS[api]().read(event)


TEXT, THINKING, TOOL = (read("chat", CHAT[name]) for name in ("text", "thinking", "tool"))


def silent_after(first: Frame, silence_s: float, *others: tuple[float, Frame]) -> list[Step]:
    """One event after 10 ms, others at their times, and the rest of the answer after a silence."""
    end_s = 0.01 + silence_s
    return [(0.01, first), *others, (end_s, TEXT), (end_s, FINISH), (end_s, DONE), (end_s, None)]


@pytest.mark.parametrize("api", APIS)
def test_each_event_has_its_phase(api: str) -> None:
    """Each API's events of thinking, tool calls and text are distinguished."""
    expected = {"text": None, "thinking": Phase.THINKING, "tool": Phase.TOOL_CALL, "empty": None}
    assert {name: read(api, event).phase for name, event in APIS[api].items()} == expected


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":[{"delta":{"content":"\\"reasoning_content\\": \\"x\\", \\"tool_calls\\": [{"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"a","reasoning_content":null,"tool_calls":[]}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"a","reasoning":"","function_call":null}}]}\n\n',
    ],
)
def test_text_is_never_taken_for_another_phase(event: bytes) -> None:
    """Neither a text with the names of fields in it nor empty fields next to it are another phase."""
    assert read("chat", event).phase is None


def test_a_run_of_events_has_the_phase_of_the_event_that_began_it() -> None:
    """A run of reasoning and a run of text that follow each other in one stream keep their phases."""
    reader = ChunkReader(learned=LearnedEnds())
    phases = []
    for name in ("thinking", "thinking", "text", "text", "tool", "text"):
        frame = reader.read(CHAT[name])
        run = reader.run
        taken = run is not None and take_run(run, CHAT[name])[2] == 1
        phases.append((frame.phase, run.phase if run is not None and taken else None))
    thinking, text = (Phase.THINKING, Phase.THINKING), (None, None)
    assert phases == [thinking, thinking, text, text, (Phase.TOOL_CALL, None), text]


@pytest.mark.parametrize("api", APIS)
def test_four_minutes_of_thinking_are_no_stall(api: str) -> None:
    """The answer after the silence is the first attempt's, and the client gets a keep-alive every 15 s."""
    result = run_race(
        Scripted(silent_after(read(api, APIS[api]["thinking"]), 240.0)), Scripted(silent_after(TEXT, 1.0))
    )
    assert result.client.finished
    assert len(result.report.attempts) == 1
    quiet_s = [0.01, *result.client.alive_s, 240.01]
    assert max(after - before for before, after in itertools.pairwise(quiet_s)) <= 15.0 + 1e-6


@pytest.mark.parametrize("interval_s", [1.0, 7.0, 12.0, 40.0])
def test_keep_alives_come_at_the_configured_interval(interval_s: float) -> None:
    """The first one, too, however soon the first token was."""
    timeouts = default_timeouts(keepalive_interval_s=interval_s)
    result = run_race(Scripted(silent_after(THINKING, 100.0)), hedge=OFF, timeouts=timeouts)
    quiet_s = [0.01, *result.client.alive_s]
    assert [after - before for before, after in itertools.pairwise(quiet_s)] == pytest.approx(
        [interval_s] * int(100.0 / interval_s)
    )


def test_events_without_bytes_for_the_client_postpone_no_keep_alive() -> None:
    """The comments in a translated answer do not reach the client, so it gets keep-alives."""
    pings = [(float(at_s), Frame(FrameKind.COMMENT, b"")) for at_s in range(5, 100, 5)]
    result = run_race(Scripted(silent_after(THINKING, 100.0, *pings)), hedge=OFF)
    assert result.client.finished
    assert len(result.client.alive_s) == 6


@pytest.mark.parametrize(
    ("first", "silence_s", "finished"),
    [
        ("text", 19.0, True),
        ("text", 21.0, False),
        ("tool", 59.0, True),
        ("tool", 61.0, False),
        ("thinking", 590.0, True),
    ],
)
def test_each_phase_has_its_timeout(first: str, silence_s: float, *, finished: bool) -> None:
    """20 s for text, 60 s for a tool call, 10 min for thinking, the total timeout apart."""
    timeouts = default_timeouts(total_s=10_000.0)
    result = run_race(Scripted(silent_after(read("chat", CHAT[first]), silence_s)), hedge=OFF, timeouts=timeouts)
    assert result.client.finished is finished
    assert result.report.attempts[0].outcome is (Outcome.FINISHED if finished else Outcome.CUT)


@pytest.mark.parametrize("kind", [FrameKind.COMMENT, FrameKind.PREAMBLE])
def test_pings_are_no_text(kind: FrameKind) -> None:
    """A replica that only pings after some text has stalled; its pings still count as bytes for the client."""
    pings = [(float(at_s), Frame(kind, CHAT["empty"])) for at_s in range(5, 60, 5)]
    result = run_race(Scripted(silent_after(TEXT, 60.0, *pings)), hedge=OFF)
    assert result.report.attempts[0].outcome is Outcome.CUT
    assert result.report.total_s == pytest.approx(20.01)
    assert result.client.alive_s == []


def test_pings_keep_thinking_alive() -> None:
    """While a model thinks, any event is a sign of life."""
    timeouts = default_timeouts(stall_thinking_s=30.0)
    pings = [(float(at_s), Frame(FrameKind.COMMENT, b": ping\n\n")) for at_s in range(20, 100, 20)]
    result = run_race(Scripted(silent_after(THINKING, 100.0, *pings)), hedge=OFF, timeouts=timeouts)
    assert result.client.finished


def test_the_start_of_a_thinking_block_begins_its_phase() -> None:
    """An event without output that begins reasoning after some text counts from then on."""
    begun = b'data: {"type":"content_block_start","index":0,"content_block":{"type":"redacted_thinking"}}\n\n'
    start = MessageReader("answer").read(begun)
    assert start.kind is FrameKind.PREAMBLE
    result = run_race(Scripted(silent_after(read("messages", MESSAGES["text"]), 200.0, (10.0, start))), hedge=OFF)
    assert result.client.finished


@pytest.mark.parametrize("paused", [False, True])
def test_pings_do_not_end_the_phase_of_a_block(*, paused: bool) -> None:
    """A block of thinking without text begins after some text; neither its pings nor a paused process make it text."""
    start = b'data: {"type":"content_block_start","content_block":{"type":"thinking","thinking":""}}\n\n'
    pings = [(float(at_s), Frame(FrameKind.PREAMBLE, MESSAGES["empty"])) for at_s in range(15, 200, 15)]
    steps = silent_after(read("messages", MESSAGES["text"]), 200.0, (10.0, read("messages", start)), *pings)

    def pause(_race: Race, _client: RecordingClient, _pools: list[Pool]) -> None:
        loop = asyncio.get_running_loop()
        assert hasattr(loop, "_move_clock")
        if paused:
            loop.call_later(11.0, lambda: loop._move_clock(loop.time() + 40.0))

    assert run_race(Scripted(steps), hedge=OFF, during=pause).client.finished


@pytest.mark.parametrize("kind", ["web_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"])
def test_a_tool_that_the_provider_runs_is_no_text(kind: str) -> None:
    """A search or a program may take minutes."""
    added = b'data: {"type":"response.output_item.added","item":{"id":"x","type":"%b"}}\n\n' % kind.encode()
    steps = silent_after(read("responses", RESPONSES["text"]), 100.0, (1.0, read("responses", added)))
    assert run_race(Scripted(steps), hedge=OFF).client.finished
    progress = b'data: {"type":"response.%b.in_progress"}\n\n' % kind.encode()
    assert read("responses", progress).phase is Phase.THINKING


def test_a_pause_of_the_process_is_nobodys_silence() -> None:
    """A process that did not run for 40 s, longer than a stall, ends no healthy stream."""

    def pause(_race: Race, _client: RecordingClient, _pools: list[Pool]) -> None:
        loop = asyncio.get_running_loop()
        assert hasattr(loop, "_move_clock")
        loop.call_later(5.0, lambda: loop._move_clock(loop.time() + 40.0))

    result = run_race(Scripted(silent_after(TEXT, 55.0)), hedge=OFF, during=pause)
    assert result.client.finished


@pytest.mark.parametrize(("silence_s", "finished"), [(59.0, True), (61.0, False)])
def test_a_slow_client_does_not_end_the_phase(silence_s: float, *, finished: bool) -> None:
    """A client that was late with a run of events, the last one of a tool call, has the timeout of tool calls."""

    def pause(race: Race, _client: RecordingClient, _pools: list[Pool]) -> None:
        asyncio.get_running_loop().call_later(0.02, race.pause)
        asyncio.get_running_loop().call_later(0.03, race.resume)

    timeouts = default_timeouts(total_s=10_000.0)
    run = Frame(FrameKind.CONTENT, CHAT["text"] + CHAT["tool"], phase=Phase.TOOL_CALL)
    result = run_race(Scripted(silent_after(run, 0.03 + silence_s)), hedge=OFF, timeouts=timeouts, during=pause)
    assert result.client.finished is finished


def test_a_client_without_a_stream_gets_no_keep_alive() -> None:
    """Nothing is sent to a client that waits for one JSON body."""
    result = run_race(Scripted(silent_after(THINKING, 100.0)), hedge=OFF, streaming=False)
    assert result.client.finished
    assert result.client.alive_s == []


def test_thinking_that_a_translation_hides_is_thinking() -> None:
    """A chat client gets nothing of a block of thinking without text; the silence in it is no stall of text."""
    start = b'data: {"type":"content_block_start","index":1,"content_block":{"type":"thinking","thinking":""}}\n\n'
    reader = CHAT_TO_MESSAGES.reader(STREAMED)
    frame = reader.read(b"event: content_block_start\n" + start)
    assert frame.raw == b""
    assert frame.phase is Phase.THINKING
    steps = silent_after(TEXT, 100.0, (1.0, frame))
    assert run_race(Scripted(steps), hedge=OFF).client.finished


def test_the_start_of_an_empty_text_does_not_end_the_reasoning() -> None:
    """Servers may send it as soon as a block of thinking has ended, long before the first token of the text."""
    start = read("messages", b'data: {"type":"content_block_start","content_block":{"type":"text","text":""}}\n\n')
    result = run_race(Scripted(silent_after(read("messages", MESSAGES["thinking"]), 240.0, (0.1, start))), hedge=OFF)
    assert result.client.finished
