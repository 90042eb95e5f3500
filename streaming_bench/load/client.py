"""The measuring client: sends requests and records the time of each event of the response.

All times are taken on the stack that reads the socket, so that later work of this process, such as parsing, is not
included. The gateway's own reader of events decides which event is the first content (docs/api.md). Failures are
results, never exceptions. Units: seconds of the loop's clock; in a `Record` since the beginning of the run.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from providers.openai.chat import OpenAIChat
from providers.response_stream import Bounds
from providers.transport.http1 import WireClient
from providers.transport.origin import Origin
from providers.upstream import HttpEndpoint
from streaming_bench.report.records import Record
from ttft_gateway.apis.base import (
    FIRST_CONTENT,
    Api,
    Call,
    Frame,
    FrameKind,
    Headers,
    HttpSink,
    HttpStream,
    Phase,
    Request,
    Stream,
    WireProtocol,
)
from ttft_gateway.apis.catalog import CATALOG, Auth
from ttft_gateway.apis.errors import UpstreamError
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import parse

_TOKENS_MAX: Final = 1_000_000
_CONNECTIONS_MAX: Final = 8_192
_REST_S_MAX: Final = 0.05  # wait for the body's end after the closing event; a server may hold it back


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint to measure.

    Attributes:
        url: base URL of the API, including `/v1`.
        model: name of the model.
        key: API key, sent as the kind requires; never printed.
        kind: kind in the catalog; decides how the key is sent and whether token counts are requested.
        headers: "name: value" pairs sent with every request.
        timeout_s: time after which an unfinished answer has failed.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)
    kind: str = "openai"
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to send.

    Attributes:
        number: see `Record.number`.
        block: see `Record.block`.
        at_s: time since the beginning of its block; None in a closed loop.
        prompt: text of the prompt.
        prompt_tokens: planned length of the prompt.
        max_tokens: maximum length of the answer.
    """

    number: int
    block: int
    at_s: float | None
    prompt: str
    prompt_tokens: int
    max_tokens: int


class Client:
    """Sends requests to one target and counts those in flight.

    Args:
        tasks: owner of the connecting tasks; must outlive the client.
        begin_s: beginning of the run.
        extra: additional fields of each body.

    Attributes:
        begin_s: beginning of the run, for requests sent from now on.
    """

    def __init__(
        self, target: Target, tasks: asyncio.TaskGroup, begin_s: float, extra: Mapping[str, object] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.begin_s = begin_s
        self._target = target
        self._extra = extra or {}
        url, kind = urlsplit(target.url), CATALOG[target.kind]
        tls = ssl.create_default_context() if url.scheme == "https" else None
        origin = Origin(
            url.hostname or "", url.port or (443 if tls else 80), tls, 10.0, connections_max=_CONNECTIONS_MAX
        )
        self._wire = WireClient(origin, tasks)
        self._tap = _TapClient(self._wire)
        headers = [(b"host", url.netloc.rpartition("@")[2].encode()), (b"user-agent", b"ttft-bench")]
        if target.key:
            bearer = kind.auth is Auth.BEARER
            headers.append((kind.auth.value.encode(), (b"Bearer " if bearer else b"") + target.key.encode()))
        headers += [(name.encode(), value.encode()) for name, value in target.headers]
        protocols: dict[Api, WireProtocol] = {Api.CHAT: OpenAIChat(ask_usage=False)}
        self._endpoint = HttpEndpoint(self._tap, protocols, url.path.rstrip("/"), headers, target.model, Bounds())
        self._supports_usage_option = kind.supports_usage_option
        self._live: set[_Exchange] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def call(self, planned: PlannedRequest) -> Call:
        """Build a request ahead of its time, because long prompts take a while."""
        body: dict[str, object] = {
            "model": self._target.model,
            "messages": [{"role": "user", "content": planned.prompt}],
            "max_tokens": planned.max_tokens,
            "stream": True,
        }
        if self._supports_usage_option:
            body["stream_options"] = {"include_usage": True}
        body.update(self._extra)
        bounds = NumberLimits(n_max=1, max_tokens_max=_TOKENS_MAX)
        return parse(Api.CHAT, json.dumps(body).encode(), (), bounds, frozenset()).call

    def send(self, planned: PlannedRequest, call: Call, due_s: float, done: Callable[[Record], None]) -> None:
        """Send a request now.

        Args:
            call: result of `call` for it.
            due_s: time at which the request was planned.
            done: called once, with the record, after the end.
        """
        record = Record(planned.number, planned.block, due_s - self.begin_s, self._loop.time() - self.begin_s)
        record.prompt_tokens = planned.prompt_tokens
        exchange = _Exchange(self._loop, self.begin_s, record, lambda: self._over(exchange, done))
        self._live.add(exchange)
        self._idle.clear()
        self._tap.exchange = exchange
        exchange.open(self._endpoint.open(call, exchange), self._target.timeout_s)

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        return len(self._live)

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    def close(self) -> None:
        """Abort requests in flight, with the error "aborted", and close idle connections."""
        for exchange in list(self._live):
            exchange.abort("aborted")
        self._wire.close()

    def _over(self, exchange: "_Exchange", done: Callable[[Record], None]) -> None:
        self._live.discard(exchange)
        if not self._live:
            self._idle.set()
        done(exchange.record)


class _TapClient:
    """An `HttpClient` that reports the first byte of each response to its exchange."""

    exchange: "_Exchange"

    def __init__(self, client: WireClient) -> None:
        self._client = client

    def send(self, request: Request, sink: HttpSink) -> HttpStream:
        """Send a request of the exchange that was set just before."""
        return self._client.send(request, _TapSink(self.exchange, sink))


class _TapSink:
    """An `HttpSink` that forwards everything."""

    __slots__ = ("_exchange", "_sink")

    def __init__(self, exchange: "_Exchange", sink: HttpSink) -> None:
        self._exchange = exchange
        self._sink = sink

    def on_response(self, status: int, headers: Headers) -> None:
        self._exchange.on_head(status, headers)
        self._sink.on_response(status, headers)

    def on_body(self, data: bytes) -> None:
        self._exchange.on_bytes()
        self._sink.on_body(data)

    def on_close(self, error: UpstreamError | None) -> None:
        self._exchange.closed = True
        self._sink.on_close(error)
        self._exchange.on_rest()


class _Exchange:
    """One request in flight; the `Sink` of its stream."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, begin_s: float, record: Record, over: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._begin_s = begin_s
        self.record = record
        self._on_over = over
        self.closed = False  # the body is complete, so that the connection can be reused
        self._read_s = 0.0  # time at which the current bytes were read
        self._stream: Stream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._counted: tuple[int | None, int | None] = (None, None)

    def open(self, stream: Stream, timeout_s: float) -> None:
        self._stream = stream
        self._timer = self._loop.call_later(timeout_s, self.abort, "timeout")

    def abort(self, error: str) -> None:
        """Close the connection; the answer has failed."""
        if self._stream is not None:
            self._stream.abort()
            self.closed = True
            self._over(error)

    # Called by the client

    def on_head(self, status: int, headers: Headers) -> None:
        record = self.record
        self._read_s = record.headers_s = self._loop.time() - self._begin_s
        record.status = status
        ours = {name: value for name, value in headers if name.startswith(b"x-ttft-")}
        if ours:
            record.replica = ours.get(b"x-ttft-replica", b"").decode("latin-1")
            attempts = ours.get(b"x-ttft-attempts", b"1")
            record.attempts = int(attempts) if attempts.isdigit() else 1
            record.result = ours.get(b"x-ttft-result", b"").decode("latin-1")

    def on_bytes(self) -> None:
        self._read_s = self._loop.time() - self._begin_s
        if self.record.byte_s is None:
            self.record.byte_s = self._read_s

    def on_rest(self) -> None:
        """Finish after the end of the body."""
        if self._stream is None and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._on_over()

    # Called as a Sink

    def on_headers(self, status: int, headers: Headers) -> None:
        """Ignore the status, which `on_head` has recorded."""

    def on_content(self, raw: bytes, events: int, phase: Phase | None) -> None:
        record = self.record
        if record.content_s is None:
            record.content_s = self._read_s
        elif record.last_s is not None:
            record.gap_s_max = max(record.gap_s_max, self._read_s - record.last_s)
        record.last_s = self._read_s
        record.events += events

    def on_frame(self, frame: Frame) -> None:
        if frame.kind in FIRST_CONTENT:
            self.on_content(frame.raw, 1, frame.phase)
        elif frame.kind is FrameKind.ERROR:
            self.record.error = "error_frame"
        if frame.usage is not None:
            self._counted = frame.usage.prompt_tokens, frame.usage.completion_tokens

    def on_end(self, error: UpstreamError | None) -> None:
        failure = "" if error is None else error.label
        if error is not None and error.label == "status":
            failure = f"http_{error.status}"
        elif error is None and self.record.content_s is None:
            failure = "empty"
        self._over(self.record.error or failure)

    def _over(self, error: str) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._stream = None
        record = self.record
        record.error, record.end_s = error, self._loop.time() - self._begin_s
        prompt_tokens, tokens = self._counted
        record.prompt_tokens = record.prompt_tokens if prompt_tokens is None else prompt_tokens
        record.tokens = record.events if tokens is None else tokens
        if self.closed:
            self._timer = None
            self._on_over()
        else:
            self._timer = self._loop.call_later(_REST_S_MAX, self.on_rest)
