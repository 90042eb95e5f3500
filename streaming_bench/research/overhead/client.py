"""The load client of the cost bench: a number of streams at a time against one port.

It sends prepared bytes and parses no JSON: an answer is complete with its status, its tokens and the end of a chunked
body. Its own cost does not matter, because only the gateway's CPU time is measured. Units: seconds.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

MODEL: Final = "m0"  # the only one
_MARK: Final = b'"content":"token'  # only in the events of tokens
_END: Final = b"\r\n0\r\n\r\n"
_FINE: Final = b"HTTP/1.1 200"
_RAMP_STEPS: Final = 12  # streams begin in steps
_RAMP_STEP_S: Final = 0.1
_WAIT_S_MAX: Final = 60.0  # for requests in flight


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """Description of the load.

    Attributes:
        streams: number of concurrent streams.
        tokens: tokens of each answer.
        gap_ms: time between tokens; 0 for none; STEPPED if each token waits for the one before to arrive.
        length_s: time after which no request begins; 0 if only `requests` are sent.
        requests: requests of all streams together; at least one per stream is sent.
        prompt_bytes: length of each prompt.
        key: the caller's API key.
    """

    streams: int
    tokens: int
    gap_ms: int = 0
    length_s: float = 0.0
    requests: int = 0
    prompt_bytes: int = 200
    key: str = "none"

    def request(self) -> bytes:
        """Return one request as bytes."""
        words = ("tell me more about it, please; " * (self.prompt_bytes // 31 + 1))[: self.prompt_bytes]
        messages = [{"role": "user", "content": words}]
        fields = {"model": MODEL, "max_tokens": self.tokens, "stream": True, "messages": messages}
        body = json.dumps(fields).encode()
        head = f"host: 127.0.0.1\r\nauthorization: Bearer {self.key}\r\ncontent-length: {len(body)}"
        return b"POST /v1/chat/completions HTTP/1.1\r\n" + head.encode() + b"\r\n\r\n" + body


@dataclass(slots=True)
class LoadResult:
    """Counts and times of a load.

    Attributes:
        requests: complete answers.
        errors: incomplete answers and failures.
        tokens: tokens of complete answers.
        ttfts_s: time from request to first token of each complete answer.
    """

    requests: int = 0
    errors: int = 0
    tokens: int = 0
    ttfts_s: list[float] = field(default_factory=list)


class _LoadState:
    """State shared by all streams of a load."""

    def __init__(self, load: StreamLoad, on_token: Callable[[], None]) -> None:
        self.on_token = on_token
        self.loop = asyncio.get_running_loop()
        self.load = load
        self.seen = LoadResult()
        self._request = load.request()
        self._sent = 0
        self._ends_s = self.loop.time() + load.length_s
        self._live = load.streams
        self.over = asyncio.Event()

    def next(self) -> bytes | None:
        """Return the next request; None at the end of the load."""
        if self._sent >= max(self.load.streams, self.load.requests) and self.loop.time() >= self._ends_s:
            return None
        self._sent += 1
        return self._request

    def ended(self) -> None:
        """Count the end of one stream."""
        self._live -= 1
        if not self._live:
            self.over.set()


class _Stream(asyncio.Protocol):
    """One connection that sends one request after the other."""

    def __init__(self, client: _LoadState) -> None:
        self._client = client
        self._got = bytearray()
        self._sent_s = 0.0
        self._ttft_s: float | None = None
        self._over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._ttft_s is None and _MARK in self._got:
            self._ttft_s = self._client.loop.time() - self._sent_s
        if self._got.endswith(_END) or not self._got.startswith(_FINE):
            self._ended()
        elif _MARK in data:
            self._client.on_token()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._over:
            self._client.seen.errors += 1
            self._stop()

    def _ask(self) -> None:
        request = self._client.next()
        if request is None:
            self._stop()
            return
        self._got.clear()
        self._ttft_s = None
        self._sent_s = self._client.loop.time()
        self._transport.write(request)

    def _ended(self) -> None:
        seen, tokens = self._client.seen, self._got.count(_MARK)
        if self._got.startswith(_FINE) and tokens == self._client.load.tokens and self._ttft_s is not None:
            seen.requests += 1
            seen.tokens += tokens
            seen.ttfts_s.append(self._ttft_s)
        else:
            seen.errors += 1
        self._ask()

    def _stop(self) -> None:
        self._over = True
        self._transport.close()
        self._client.ended()


async def send(load: StreamLoad, port: int, on_token: Callable[[], None] = lambda: None) -> LoadResult:
    """Send the load and wait for the answers; answers that take over a minute have failed.

    `on_token` is called after each read with tokens that does not end its answer.
    """
    client = _LoadState(load, on_token)
    left, step = load.streams, max(50, load.streams // _RAMP_STEPS)
    while left:
        count = min(step, left)
        left -= count
        connects = [client.loop.create_connection(lambda: _Stream(client), "127.0.0.1", port) for _ in range(count)]
        await asyncio.gather(*connects)
        if left:
            await asyncio.sleep(_RAMP_STEP_S)
    try:
        async with asyncio.timeout(_WAIT_S_MAX + load.length_s):
            await client.over.wait()
    except TimeoutError:
        client.seen.errors += client.load.streams
    return client.seen
