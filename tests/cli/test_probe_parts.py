"""The parts of a probe that need no replica: quirks, costs, cancelling with fakes, what is shown. Wire: tests/wire."""

import asyncio
import math
import re
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from checkout import ROOT
from gateway.cli.fetch import fetch
from gateway.cli.probe.cancel import COUNTERS, LONG_TOKENS, CancelResult, CancelTest, cancel
from gateway.cli.probe.plan import ProbePlan, plan, targets
from gateway.cli.probe.quirks import NAMES, Observation, is_trap, quirks
from gateway.cli.probe.report import Times, quirks_of, times_of
from gateway.cli.probe.stream import Recording, record
from gateway.config.settings import Settings
from running import run_virtual
from ttft_gateway.apis.base import Api, Call, Frame, FrameKind, HttpSink, HttpStream, Request, Sink, Stream
from ttft_gateway.apis.catalog import CATALOG
from ttft_gateway.apis.errors import ConnectionCut, TimedOut, UpstreamError

DOCS = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
STREAM = (b"content-type", b"text/event-stream")
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"1"}}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
DONE = b"data: [DONE]\n\n"


def seen(body: bytes, **changes: Any) -> Observation:
    """A stream; its head came with the first content."""
    stream = Observation([STREAM], body, asked_usage=False, contents=1, reads=3)
    return replace(stream, **changes)


@pytest.mark.parametrize(
    ("stream", "names"),
    [
        (seen(TEXT + END + DONE), []),
        (seen(TEXT + END + USAGE + DONE, asked_usage=True), []),
        (seen(ROLE + TEXT + END + DONE), ["role_first"]),
        (seen(b'data: {"choices":[],"prompt_filter_results":[]}\n\n' + TEXT + DONE), ["no_choices"]),
        (seen(b": wait\n\n" + TEXT + DONE), ["comments"]),
        (seen(b"event: ping\n\n" + TEXT + DONE), ["no_data", "named_events"]),
        (seen(b"retry: 3\ndata: \n\n" + TEXT + DONE), ["no_data", "id_or_retry"]),
        (seen((TEXT + DONE).replace(b"\n", b"\r\n")), ["crlf"]),
        (seen((TEXT + DONE).replace(b"\n", b"\r")), []),
        (seen(TEXT + b"data: {oops\n\n" + DONE), ["malformed"]),
        (seen(TEXT + END), ["no_done"]),
        (seen(TEXT + END + DONE, asked_usage=True), ["usage_missing"]),
        (seen(TEXT + END + USAGE + DONE), ["usage_unasked"]),
        (
            seen(TEXT + b'data: {"choices":[{"delta":{}}],"usage":{"a":1}}\n\n' + DONE, asked_usage=True),
            ["usage_beside"],
        ),
        (seen(b'data: {"choices":[{"delta":{"reasoning_content":"1"}}]}\n\n' + DONE), ["reasoning"]),
        (seen(b'data: {"choices":[{"delta":{"mood":"1","content":""}}]}\n\n' + DONE), ["unknown_keys"]),
        (seen(TEXT + DONE, contents=3, reads=1), ["one_piece"]),
        (seen(b'{"choices": []}', headers=[(b"content-type", b"application/json")]), ["json_body"]),
        (seen(TEXT + DONE, headers=[(b"content-type", b"text/plain")]), ["content_type"]),
        (seen(b'data: {"choices":[null,{"delta":7},{}]}\n\ndata: []\n\ndata: 1\n\n' + DONE), ["malformed"]),
    ],
)
def test_each_quirk_is_seen_and_nothing_else(stream: Observation, names: list[str]) -> None:
    """A stream has the quirks that it has, by name, and no others."""
    assert [quirk.name for quirk in quirks([stream])] == names


def test_a_quirk_is_reported_once() -> None:
    """A quirk of one stream is found, one of all streams is reported once, and invalid bytes do not raise."""
    found = quirks([seen(ROLE + DONE), seen(ROLE), seen(b"\xff\n\n" + DONE)])
    assert [quirk.name for quirk in found] == ["role_first", "no_data", "no_done"]


def test_the_trap_needs_time_and_share() -> None:
    """Headers mislead from 10 ms and 10% before content on."""
    assert [is_trap(0.0, 0.009), is_trap(0.0, 0.02), is_trap(0.95, 1.0), is_trap(0.85, 1.0)] == [
        False,
        True,
        False,
        True,
    ]


def test_the_docs_have_every_quirk_and_every_column() -> None:
    """docs/cli.md has a row for each quirk in their order, and names each time."""
    section = DOCS.partition("\n## probe\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(NAMES)
    assert [name for name in Times().as_ms() if f"`{name}_ms`" not in section] == []


def settings(*kinds: str) -> Settings:
    """One model with a replica of each kind."""
    rows = [{"name": kind, "kind": kind, "base_url": "http://h/v1"} for kind in kinds]
    return Settings.model_validate({"models": [{"name": "m", "replicas": rows}]})


def test_replicas_are_chosen_by_model_and_name() -> None:
    """Without a choice all replicas are meant, also in fallbacks; a choice that fits none gives none."""
    row = {"kind": "openai", "base_url": "http://h/v1"}
    models = [
        {"name": "m", "replicas": [{**row, "name": "a"}], "fallbacks": [{"replicas": [{**row, "name": "b"}]}]},
        {"name": "n", "replicas": [{**row, "name": "a"}]},
    ]
    found = Settings.model_validate({"models": models})
    assert [target.name for target in targets(found, None, None)] == ["m/a", "m/b", "n/a"]
    assert [target.name for target in targets(found, "m", None)] == ["m/a", "m/b"]
    assert [target.name for target in targets(found, None, "a")] == ["m/a", "n/a"]
    assert targets(found, "n", "b") == []


def test_costs_are_bounded() -> None:
    """The plan includes cancelled answers; high costs need confirmation, and higher ones are always rejected."""
    planned = plan(targets(settings("openai", "vllm"), None, None), 3, 8)
    assert planned == ProbePlan(replicas=2, requests=11, tokens=3 * 8 + 8 + 3 * 8 + 2 * LONG_TOKENS + 2 * 16)
    assert str(planned) == "11 requests to 2 replicas: at most 600 generated tokens and about 440 prompt tokens"
    assert planned.objection(confirmed=False) is None
    for much in (ProbePlan(1, 51, 1), ProbePlan(1, 1, 2001)):
        assert "need --yes" in (much.objection(confirmed=False) or "")
        assert much.objection(confirmed=True) is None
    for too_much in (ProbePlan(1, 1001, 1), ProbePlan(1, 1, 100_001)):
        assert "exceeds its maximum" in (too_much.objection(confirmed=True) or "")


@pytest.mark.parametrize(
    ("kind", "document", "number"),
    [
        ("vllm", b'vllm:num_requests_running{engine="0",model_name="a b"} 2.0\n', 2.0),
        ("vllm", b'# HELP x\nvllm:num_requests_running{e="0"} 1.0\nvllm:num_requests_running{e="1"} 2.0\n', 3.0),
        ("vllm", b"vllm:num_requests_waiting 1.0\n", None),
        ("sglang", b'sglang:num_running_reqs{model_name="m"} 1.0\nsglang:num_running_reqs_offline 7.0\n', 1.0),
        ("tgi", b"tgi_batch_current_size 0\n", 0.0),
        ("llamacpp", b"llamacpp:requests_processing nonsense\n", None),
        ("simulated", b'{"requests":9,"in_flight":1}', 1.0),
        ("simulated", b"", None),
    ],
)
def test_counters_are_read(kind: str, document: bytes, number: float | None) -> None:
    """The number of running requests is read from the document of each kind of engine, and added up over its parts."""
    assert COUNTERS[kind].read(document) == number


def test_counters_are_of_kinds_that_exist() -> None:
    """Only kinds of own engines report their running requests."""
    assert all(CATALOG[kind].own_engine for kind in COUNTERS)


class Left:
    """A stream that was aborted."""

    aborted = False
    received = False
    read_began_s = 0.0

    def pause(self) -> None:
        """Nothing to do."""

    def resume(self) -> None:
        """Nothing to do."""

    def abort(self) -> None:
        self.aborted = True

    def finish(self) -> bool:
        return False


def cancelled(
    counts: Sequence[float | None] | None,
    *,
    ended: bool = False,
    error: UpstreamError | None = None,
) -> CancelTest:
    """The outcome where the replica counts so, its last count for ever; None: it cannot be asked."""
    left = Left()
    answers = list(counts or ())

    def start() -> tuple[Recording, Stream]:
        recording = Recording(asked_usage=False)
        if error is None:
            recording.on_frame(Frame(FrameKind.CONTENT, TEXT))
        if ended or error is not None:
            recording.on_end(error)
        return recording, left

    async def count() -> float | None:
        await asyncio.sleep(0.001)
        return answers.pop(0) if len(answers) > 1 else answers[0]

    outcome = run_virtual(cancel(start, None if counts is None else count, "nothing tells"))
    assert left.aborted
    return outcome


@pytest.mark.parametrize(
    ("counts", "asked", "outcome", "text"),
    [
        ([0, 1, 1, 0], {}, CancelResult.OBEYED, "the replica stopped within"),
        ([0, 1, 1], {}, CancelResult.NOT_SEEN, "still counts the request 2 s after the close"),
        ([0, 1, None], {}, CancelResult.NOT_SEEN, "still counts the request"),
        (None, {}, CancelResult.UNKNOWN, "nothing tells"),
        ([None], {}, CancelResult.UNKNOWN, "nothing tells"),
        ([3, 4, 3], {}, CancelResult.UNKNOWN, "has 3 other requests"),
        ([0, 0], {}, CancelResult.UNKNOWN, "did not count the request while it ran"),
        ([0, 0], {"ended": True}, CancelResult.UNKNOWN, "ended before the connection could be closed"),
        ([0, 0], {"error": ConnectionCut("it is cut")}, CancelResult.UNKNOWN, "for the test failed: it is cut"),
    ],
)
def test_a_cancel_is_obeyed_only_with_proof(
    counts: Sequence[float | None] | None, asked: dict[str, Any], outcome: CancelResult, text: str
) -> None:
    """The result is OBEYED only if the count falls to 0, without other requests."""
    made = cancelled(counts, **asked)
    assert (made.outcome, text in made.text) == (outcome, True), made.text


@pytest.mark.parametrize(
    ("answer_s", "stop_s", "outcome"),
    [
        (10.0, 0.03, CancelResult.OBEYED),
        (0.3, 0.03, CancelResult.OBEYED),
        (0.3, math.inf, CancelResult.UNKNOWN),  # a short answer ends by itself
        (0.01, math.inf, CancelResult.UNKNOWN),
        (1.9, math.inf, CancelResult.UNKNOWN),
        (10.0, math.inf, CancelResult.NOT_SEEN),
        (0.1, 0.09, CancelResult.UNKNOWN),
    ],
)
def test_an_engine_that_ignores_a_cancel_does_not_obey(answer_s: float, stop_s: float, outcome: CancelResult) -> None:
    """An answer that ends as early without a cancel is no proof, however early that is."""

    class Running(Left):
        def __init__(self, recording: Recording) -> None:
            loop = asyncio.get_running_loop()
            self.until_s = loop.time() + answer_s
            self.end = loop.call_at(self.until_s, recording.on_end, None)

        def abort(self) -> None:
            self.end.cancel()
            self.until_s = min(self.until_s, asyncio.get_running_loop().time() + stop_s)

    async def main() -> CancelTest:
        running: list[Running] = []

        def start() -> tuple[Recording, Stream]:
            recording = Recording(asked_usage=False)
            recording.on_frame(Frame(FrameKind.CONTENT, TEXT))
            running.append(Running(recording))
            return recording, running[-1]

        async def count() -> float:
            await asyncio.sleep(0.002)
            return float(sum(asyncio.get_running_loop().time() < each.until_s for each in running))

        return await cancel(start, count, "")

    assert run_virtual(main()).outcome is outcome


class Silent:
    """A client and an endpoint that take a request and never answer."""

    recording: Recording | None = None

    def __init__(self) -> None:
        self.left = Left()

    def send(self, _request: Request, _sink: HttpSink) -> HttpStream:
        return self.left

    def open(self, _call: Call, _sink: Sink) -> Stream:
        return self.left


def test_times_are_medians_of_whole_answers() -> None:
    """Times count from when a request was sent, and answers that failed have none."""

    async def recorded(content_s: float, gap_s: float, error: UpstreamError | None = None) -> Recording:
        recording = Recording(asked_usage=False)
        await asyncio.sleep(0.1)
        recording.on_headers(200, ())
        recording.on_body(b"")
        await asyncio.sleep(content_s - 0.1)
        for _ in range(3):
            recording.on_frame(Frame(FrameKind.CONTENT, TEXT))
            await asyncio.sleep(gap_s)
        recording.on_end(error)
        return recording

    async def main() -> Times:
        broken = await recorded(9.0, 9.0, ConnectionCut("cut"))
        return times_of([broken, *[await recorded(*times) for times in ((0.5, 0.01), (0.7, 0.03), (3.0, 0.02))]])

    times = run_virtual(main())
    assert times.connect_s is None
    assert (times.headers_s, times.byte_s, times.content_s, times.gap_s) == pytest.approx((0.1, 0.1, 0.7, 0.02))


@pytest.mark.parametrize(
    ("contents_s", "is_trap"), [((0.1, 0.1, 0.9), False), ((0.1, 0.9, 0.9), True), ((0.1,), False), ((0.2,), True)]
)
def test_the_column_and_the_quirk_agree(contents_s: Sequence[float], *, is_trap: bool) -> None:
    """Both are about the median times, so one slow answer of several makes neither."""

    async def recorded(content_s: float) -> Recording:
        recording = Recording(asked_usage=False)
        await asyncio.sleep(0.1)
        recording.on_headers(200, (STREAM,))
        await asyncio.sleep(content_s - 0.1)
        recording.on_frame(Frame(FrameKind.CONTENT, TEXT))
        recording.on_end(None)
        return recording

    async def main() -> list[Recording]:
        return [await recorded(content_s) for content_s in contents_s]

    recordings = run_virtual(main())
    assert times_of(recordings).trap is is_trap
    assert ("ttfb_trap" in [quirk.name for quirk in quirks_of(recordings)]) is is_trap


def test_silence_ends_the_wait() -> None:
    """A request without an answer is aborted after 60 s, a GET after 5 s."""
    silent = Silent()
    call = Call(Api.CHAT, b"{}", {}, 1, "m", streaming=True)

    async def ask() -> tuple[Recording, float, bytes | None, float]:
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        recording = await record(silent, silent, call)
        recorded_s = now_s()
        return recording, recorded_s - began_s, await fetch(silent, "/metrics", ()), now_s() - recorded_s

    recording, stream_s, document, fetch_s = run_virtual(ask())
    assert isinstance(recording.error, TimedOut)
    assert (stream_s, document, fetch_s) == (60.0, None, 5.0)
    assert silent.left.aborted
    assert silent.recording is None
