"""docs/first-token-vectors.json through the client library, the gateway and the probe: one first content for all."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from checkout import DOCS
from defaults import default_hedging, default_timeouts
from gateway.cli.probe.stream import Recording, record
from gateway.race.context import Caller, Model
from gateway.race.race import Race
from openai_calls import call_of
from played_http import Exchange
from providers.anthropic.protocol import AnthropicMessages
from providers.openai.chat import OpenAIChat, OpenAICompletions
from providers.response_stream import Bounds
from providers.responses.protocol import OpenAIResponses
from providers.upstream import HttpEndpoint
from running import run_virtual
from scripted import Hearing, RecordingClient
from ttft_gateway.apis.base import FIRST_CONTENT, Api, Call, FrameKind, HttpSink, Request, WireProtocol
from ttft_gateway.apis.errors import ConnectionCut, EmptyAnswer
from ttft_gateway.client.asked import ask
from ttft_gateway.client.config import HedgeConfig
from ttft_gateway.client.first import Verdict, detector
from ttft_gateway.client.rules import Rules
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

ROWS: Final[list[dict[str, Any]]] = json.loads((DOCS / "first-token-vectors.json").read_text(encoding="utf-8"))
PROTOCOLS: Final[Mapping[Api, WireProtocol]] = {
    Api.CHAT: OpenAIChat(),
    Api.COMPLETIONS: OpenAICompletions(),
    Api.RESPONSES: OpenAIResponses(),
    Api.MESSAGES: AnthropicMessages(),
}
APIS: Final = {api.value.partition("/")[0]: api for api in PROTOCOLS}
TURN: Final = [{"role": "user", "content": "a"}]
FIELDS: Final[Mapping[Api, Mapping[str, object]]] = {
    Api.CHAT: {"messages": TURN},
    Api.COMPLETIONS: {"prompt": "a"},
    Api.RESPONSES: {"input": "a"},
    Api.MESSAGES: {"messages": TURN, "max_tokens": 9},
}
EVENTS: Final = [(b"content-type", b"text/event-stream")]
EVENT_S, CUT_S = 0.1, 1.0
OFF: Final = default_hedging(policy=Policy.OFF)


class _Upstream:
    """An HTTP client that responds to each request with one event, and loses the connection later."""

    def __init__(self, event: bytes) -> None:
        self.recording: Recording | None = None
        self._event = event

    def send(self, _request: Request, sink: HttpSink) -> Exchange:
        loop = asyncio.get_running_loop()
        loop.call_soon(sink.on_response, 200, EVENTS)
        loop.call_later(EVENT_S, sink.on_body, self._event)
        loop.call_later(CUT_S, sink.on_close, ConnectionCut("cut"))
        return Exchange()


def _replica(row: Mapping[str, Any]) -> tuple[Call, _Upstream, HttpEndpoint]:
    api = APIS[row.get("api", "chat")]
    options = {"include_usage": row.get("include_usage", False)}
    upstream = _Upstream(row["event"].encode())
    endpoint = HttpEndpoint(upstream, {api: PROTOCOLS[api]}, "/v1", [(b"host", b"h")], "m", Bounds())
    return call_of({"model": "m", "stream": True, "stream_options": options}, api), upstream, endpoint


def library(row: Mapping[str, Any]) -> str:
    """Return the result of the detector of the transports, for the event in one piece."""
    api = APIS[row.get("api", "chat")]
    body = json.dumps({"model": "m", "stream": True, **FIELDS[api]}).encode()
    finder = detector(
        ask("POST", "http://host:1", f"/v1/{api.value}".encode(), (), body, 0.5, Rules(HedgeConfig())),
        "content",
        EVENTS,
    )
    assert finder is not None
    return {Verdict.FIRST: "first", Verdict.ERROR: "failed", Verdict.WAIT: ""}[finder(row["event"].encode())]


def server(row: Mapping[str, Any]) -> str:
    """Return the result of the first attempt of a race."""
    call, _, endpoint = _replica(row)

    async def main() -> str:
        loop = asyncio.get_running_loop()
        hearing, client = Hearing(loop), RecordingClient()
        model = Model("m", [Pool("p", [Replica("a", endpoint)], OFF)], default_timeouts())
        caller = Caller("req_1", "key", loop.time())
        Race(model, call, RequestFacts(), client, caller, hearing.runtime).start()
        report, _ = await hearing.over()
        attempt = report.attempts[0]
        if attempt.content_s is not None:
            return "first"
        return "" if attempt.error in (None, ConnectionCut("").label, EmptyAnswer("").label) else "failed"

    return run_virtual(main())


def probe(row: Mapping[str, Any]) -> str:
    """Return the result of a probe's recording."""
    call, upstream, endpoint = _replica(row)
    recording = run_virtual(record(upstream, endpoint, call))
    if recording.contents_s:
        return "first"
    return "" if isinstance(recording.error, (ConnectionCut, EmptyAnswer)) else "failed"


@pytest.mark.parametrize("user", [library, server, probe], ids=lambda user: user.__name__)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['server']}: {row['what']}")
def test_every_user_finds_the_same_first_content(row: dict[str, Any], user: Callable[[Mapping[str, Any]], str]) -> None:
    """The event ends the wait for the first token, fails the answer or does neither, for all three alike."""
    kind = FrameKind(row["kind"])
    assert user(row) == ("first" if kind in FIRST_CONTENT else "failed" if kind is FrameKind.ERROR else "")
