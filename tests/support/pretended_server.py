"""A server for httpx without a network, and the calls that a request to it makes.

Each connection answers immediately, in the thread of the client, so the work is the same in any run and is countable.
"""

import asyncio
import socket
import sys
from itertools import count
from types import FrameType
from typing import Any, Final, Self

import httpx
from httpcore._backends.sync import SyncStream

from streaming_bench.simulation.virtual_loop import VirtualLoop
from ttft_gateway import AsyncHedgingTransport, HedgingTransport
from ttft_gateway.client.config import HedgeConfig

WORDS: Final = 4
_URL: Final = "http://pretended/v1/chat/completions"
_CALL: Final = b'{"messages":[{"role":"user","content":"Two sentences."}],"model":"m","stream":true}'
_HEADERS: Final = {"authorization": "Bearer k", "content-type": "application/json", "x-stainless-retry-count": "0"}
_NEVER_LATE: Final = HedgeConfig(min_delay=3600.0)  # learns, plans and sets timers; no request is late
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT: Final = b'data: {"id":"c","choices":[{"index":0,"delta":{"%b":"%b"}}]}\n\n'
_WARM: Final = 300  # while a new budget lends, a request costs some calls more
_COUNT: Final = 50
_CLOCK_STEP_S: Final = 1e-4  # of each look at the clock


def _reads(words: int) -> list[bytes]:
    """Return a response as a client receives it: one read for each event."""
    events = [_EVENT % (b"role", b"assistant"), *[_EVENT % (b"content", b"word")] * words, b"data: [DONE]\n\n"]
    first, *others = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    return [_HEAD + first, *others[:-1], others[-1] + b"0\r\n\r\n"]


class _Socket(socket.socket):
    """A socket of a client; each datagram is one read, and the whole answer follows the body of a request."""

    server: socket.socket

    def send(self, data: Any, *_: Any) -> int:
        if data == _CALL:
            for piece in _reads(WORDS):
                self.server.send(piece)
        return len(data)

    def close(self) -> None:
        self.server.close()
        super().close()


class _AsyncStream:
    """The same for asyncio, without sockets."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._left: list[bytes] = []

    async def read(self, *_: Any, **__: Any) -> bytes:
        return self._left.pop()

    async def write(self, buffer: bytes, *_: Any, **__: Any) -> None:
        if buffer == _CALL:
            self._left = self._pieces[::-1]

    async def aclose(self) -> None:
        pass

    def get_extra_info(self, _info: str) -> Any:
        return None


class _Backend:
    def connect_unix_socket(self, *_: Any, **__: Any) -> SyncStream:
        client, server = socket.socketpair(type=socket.SOCK_DGRAM)
        pretended = _Socket(fileno=client.detach())
        pretended.server = server
        return SyncStream(pretended)


class _AsyncBackend:
    async def connect_tcp(self, *_: Any, **__: Any) -> _AsyncStream:
        return _AsyncStream(_reads(WORDS))


class _Counted:
    """Counts the calls of functions, Python's and C's, between entering and leaving."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, _frame: FrameType, event: str, _of: object) -> None:
        self.calls += event in ("call", "c_call")


def calls(*, raced: bool) -> float:
    """Return the calls of a synchronous request; raced: with the transport of the client library, else bare httpx."""
    inner: Any = httpx.HTTPTransport(verify=False, uds="pretended")
    inner._pool._network_backend = _Backend()
    made = _prepared(HedgingTransport(_NEVER_LATE, transport=inner)) if raced else inner
    with httpx.Client(transport=made, timeout=7200.0) as client:  # no timeout is before the time of a backup

        def send(requests: int) -> None:
            for _ in range(requests):
                client.post(_URL, content=_CALL, headers=_HEADERS)

        send(_WARM)
        with _Counted() as counted:
            send(_COUNT)
    return counted.calls / _COUNT


def async_calls(*, raced: bool) -> float:
    """Return the calls of an asynchronous request."""
    inner: Any = httpx.AsyncHTTPTransport(verify=False)
    inner._pool._network_backend = _AsyncBackend()
    transport = _prepared(AsyncHedgingTransport(_NEVER_LATE, transport=inner)) if raced else inner

    async def send(requests: int) -> None:
        for _ in range(requests):
            await client.post(_URL, content=_CALL, headers=_HEADERS)

    async def work() -> float:
        await send(_WARM)
        with _Counted() as counted:
            await send(_COUNT)
        await client.aclose()
        assert len(asyncio.all_tasks()) == 1
        return counted.calls / _COUNT

    client = httpx.AsyncClient(transport=transport, timeout=7200.0)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work())


def _prepared(transport: Any) -> Any:
    """Give a transport a clock and random numbers that are the same in any run."""
    steps = count()
    transport.hedger.clock = lambda: next(steps) * _CLOCK_STEP_S
    transport.hedger.rand = lambda: 0.5
    return transport
