"""The back end of the cost bench: answers chat completions with prepared bytes, as cheaply as Python can.

For latency use `gateway.simulated` instead. The back end reads only `max_tokens` of a request, and writes a role
event, the tokens and the end; every token is a write of its own, as in inference engines.

Runs as a process: `python -m streaming_bench.research.overhead.backend PORTS [CERTIFICATE]`. It prints its ports as one
line of JSON; with a certificate, the second half of the ports use TLS. Then it reads a gap between tokens from each
line of its input, prints the number of requests received so far, and ends with its input. With the gap STEPPED, the
line STEP releases the next token of each answer. Units: milliseconds.
"""

import asyncio
import json
import math
import re
import ssl
import sys
from functools import cache
from typing import Final, cast

STEPPED: Final = -1
STEP: Final = b"+"
_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_TOKENS: Final = re.compile(rb'"max_tokens": ?(\d+)')
_CHUNK: Final = '{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1,"model":"bench","choices":[%s]}'
_BACKLOG: Final = 4096  # thousands connect at a time


def _piece(text: str) -> bytes:
    """Return an event as one chunk of a chunked body."""
    event = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


def _choice(delta: str, finish: str = "null") -> str:
    return _CHUNK % f'{{"index":0,"delta":{{{delta}}},"finish_reason":{finish}}}'


_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + _piece(
    _choice('"role":"assistant","content":""')
)
_END: Final = _piece(_choice("", '"stop"')) + _piece("[DONE]") + b"0\r\n\r\n"


@cache
def _token(number: int) -> bytes:
    return _piece(_choice(f'"content":"token {number} "'))


class TokenPacer:
    """Writes the tokens of all paced answers from one timer: a wheel with a slot for each millisecond of the gap."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._slots: list[list[_Answer]] = []
        self._done = 0  # milliseconds processed
        self._next = 0  # slot of the next answer: answers that begin together are spread over the gap
        self._ticking = False
        self._stepped: list[_Answer] = []
        self.gap_ms = 0

    def set(self, gap_ms: int) -> None:
        """Change the time between two tokens while no answer is in flight; 0 to send all together."""
        self.gap_ms = gap_ms
        self._slots = [[] for _ in range(gap_ms)]
        if gap_ms > 0 and not self._ticking:
            self._ticking = True
            self._done = self._now_ms()
            self._tick()

    def add(self, answer: "_Answer") -> None:
        """Schedule an answer; its first token comes within a gap, or immediately if `step` releases the others."""
        if self.gap_ms == STEPPED:
            self._stepped.append(answer)
            self.step()
            return
        self._next = (self._next + 1) % self.gap_ms
        self._slots[self._next].append(answer)

    def step(self) -> None:
        """Write the next token of each answer."""
        self._stepped = [answer for answer in self._stepped if answer.step()]

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _tick(self) -> None:
        if not self._slots:
            self._ticking = False
            return
        while self._done < self._now_ms():
            self._done += 1
            slot = self._done % len(self._slots)
            self._slots[slot] = [answer for answer in self._slots[slot] if answer.step()]
        self._loop.call_later(0.001, self._tick)


class _Answer:
    """A paced answer in flight."""

    __slots__ = ("_left", "_transport")

    def __init__(self, transport: asyncio.Transport, tokens: int) -> None:
        self._transport = transport
        self._left = tokens

    def step(self) -> bool:
        """Write the next token; return True if another one follows."""
        if self._transport.is_closing():
            return False
        self._left -= 1
        self._transport.write(_token(self._left))
        if not self._left:
            self._transport.write(_END)
        return self._left > 0


class _Connection(asyncio.Protocol):
    """A client's connection: requests in, prepared bytes out."""

    requests = 0  # of all connections

    def __init__(self, clock: TokenPacer) -> None:
        self._clock = clock
        self._head = b""
        self._tokens = 0
        self._missing: float = math.inf  # bytes of the body; infinite while the head is not complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._missing == math.inf:
            self._head += data
            head, end, body = self._head.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if not end or length is None:
                return
            self._missing = int(length[1]) - len(body)
            self._head, data = body, b""
        self._missing -= len(data)
        if len(self._head) < 1024:  # max_tokens is near the beginning of a body
            self._head += data[:1024]
        if self._missing <= 0:
            self._answer()

    def _answer(self) -> None:
        asked = _TOKENS.search(self._head)
        tokens = int(asked[1]) if asked is not None else 1
        self._head, self._missing = b"", math.inf
        _Connection.requests += 1
        self._transport.write(_HEAD)
        answer = _Answer(self._transport, tokens)
        if self._clock.gap_ms:
            self._clock.add(answer)
            return
        while answer.step():
            pass


class _Input(asyncio.Protocol):
    """Reads gaps from the parent process and detects its end."""

    def __init__(self, clock: TokenPacer) -> None:
        self._clock = clock
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        for line in data.split():
            if line == STEP:
                self._clock.step()
                continue
            self._clock.set(int(line))
            _print_json(_Connection.requests)

    def connection_lost(self, _error: Exception | None) -> None:
        self.ended.set()


def _print_json(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def serve(ports: int, certificate: str | None) -> None:
    """Answer until the input ends."""
    loop, clock = asyncio.get_running_loop(), TokenPacer()
    contexts: list[ssl.SSLContext | None] = [None]
    if certificate is not None:
        secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        secure.load_cert_chain(certificate)
        contexts.append(secure)
    servers = [
        await loop.create_server(lambda: _Connection(clock), "127.0.0.1", 0, ssl=context, backlog=_BACKLOG)
        for context in contexts
        for _ in range(ports)
    ]
    _print_json([server.sockets[0].getsockname()[1] for server in servers])
    standard_input = _Input(clock)
    await loop.connect_read_pipe(lambda: standard_input, sys.stdin)
    await standard_input.ended.wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
