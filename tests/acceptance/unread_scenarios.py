"""What clients cost that stop reading and stay, on real sockets: the tests make it small, scripts/acceptance in full.

The replica is `_Hose`, not a simulated one, which writes an answer out in full before it sends the first token: a
thousand long answers would be 15 GB. A hose writes what the kernel takes, and knows to the byte how much that was.
Units: bytes, seconds.
"""

import asyncio
import contextlib
import hashlib
import re
import socket
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from checkout import ROOT
from gateway_fixture import Site, fronting, until
from raw_http import Answer, answer, asking, connect, head

UNREAD_BYTES_MAX = 2_000_000  # of one answer: in the gateway, in the client, or in the kernel on any of four sockets
UNREAD_HELD_BYTES_MAX = 320_000  # of one answer, by the gateway's code: one read of 256 kB, and the request
_EVENTS = 2000  # of one answer, of 1.1 kB each
READERS = 10  # who read meanwhile
_TOKENS_S = 0.02  # between theirs
_SOCKET_BYTES = 64 * 1024  # that the hose's sockets keep, and Linux doubles it; it would keep 4 MB
_CLIENT_BYTES = 32 * 1024  # that the clients' sockets keep, likewise
_OPENING = 50  # connections at a time
_ASKED = re.compile(rb"(long|paced) (\d+)")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"c%b","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":"%b"},"finish_reason":%b}]}\n\n'
)
_DONE = b"data: [DONE]\n\n"
_CHUNK_BYTES = 16_000  # of a long answer
_PATTERN = b"".join(_EVENT % (b"@@@@@@", b"%01000d" % index, b"null") for index in range(_EVENTS))
_PATTERN += _EVENT % (b"@@@@@@", b"", b'"stop"') + _DONE
ANSWER_BYTES = len(_PATTERN)
_STAMP = re.compile(rb'"content":"([\d.]+)"')


@dataclass
class Unread:
    """Clients that took the beginning of their answers and then nothing, for longer than what counts as a stall.

    Attributes:
        taken_bytes: of each answer, what its replica could write before it was held up, in ascending order.
        moving: answers that went on after that.
        rss_bytes: of the gateway's memory, before, at its peak, and when all was over; 0 where it is no process.
        held_bytes: what its code held of each answer meanwhile, on average; 0 where it is a process.
        delays_s: of each token of the clients that read on meanwhile, from the replica to them, in ascending order.
        missing: tokens that they did not get in that time.
        whole: answers that came complete and right, when the clients read on.
        cancelled: answers that ended at the replica when their clients left.
    """

    taken_bytes: list[int] = field(default_factory=list)
    moving: int = 0
    rss_bytes: tuple[int, int, int] = (0, 0, 0)
    held_bytes: float = 0
    delays_s: list[float] = field(default_factory=list)
    missing: int = 0
    whole: int = 0
    cancelled: int = 0


async def unread(count: int, *, leaving: int, stall_s: float, stop_s: float, process: bool = False) -> Unread:
    """Clients that stop reading, and in the end go on or leave, while others read.

    Args:
        count: of those that go on.
        leaving: of those that leave.
        stall_s: what counts as a stall; the kernel may need 2 s to fill its buffers, in which a stream is silent.
        stop_s: how long they stop, which is longer.
        process: where the gateway runs.
    """
    result = Unread()
    async with _pouring() as hoses, _fronted(hoses.port, stall_s, process=process) as site:
        await _paced(site.port, 0, 1)  # so that the gateway has done everything once
        before = _memory(site)[0]
        if not process:
            tracemalloc.start()
        answers = await _stopped(site.port, count + leaving)
        tokens = int(stop_s / _TOKENS_S)
        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(_paced(site.port, number, tokens)) for number in range(READERS)]
            await asyncio.sleep(stop_s / 2)
            halfway = hoses.taken()
            result.held_bytes = _held_bytes() / (count + leaving)
        result.delays_s = sorted(delay_s for reader in readers for delay_s in reader.result())
        result.missing = READERS * tokens - len(result.delays_s)
        taken = hoses.taken()
        result.moving = sum(taken[number] != halfway[number] for number in range(count + leaving))
        result.taken_bytes = sorted(taken[number] for number in range(count + leaving))
        for gone in answers[count:]:
            await gone.leave()
        async with asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(_rest(got)) for got in answers[:count]]
        await until(lambda: not hoses.running)
        result.cancelled = hoses.cancelled
        after, peak = _memory(site)
        result.rss_bytes = (before, peak, after)
    # Only now: to make a thousand answers again takes seconds, in which no hose would write.
    result.whole = sum(hashlib.sha256(_long(number)).digest() == each.result() for number, each in enumerate(reading))
    return result


# clients


async def _stopped(port: int, count: int) -> list[Answer]:
    """So many streams of which the head was read and, but for what a reader keeps, nothing else."""
    answers: dict[int, Answer] = {}

    async def one(number: int) -> None:
        reader, writer = await connect(port, receive_bytes=_CLIENT_BYTES)
        writer.write(_asking("long", number))
        answers[number] = await head(reader, writer, 0.0)

    for first in range(0, count, _OPENING):
        async with asyncio.TaskGroup() as tasks:
            for number in range(first, min(first + _OPENING, count)):
                tasks.create_task(one(number))
    return [answers[number] for number in range(count)]


async def _rest(got: Answer) -> bytes:
    """Read an answer to its end; its hash."""
    digest = hashlib.sha256()
    async with contextlib.aclosing(got.pieces()) as pieces:
        async for piece in pieces:
            digest.update(piece)
    got.writer.close()
    return digest.digest()


async def _paced(port: int, number: int, tokens: int) -> list[float]:
    """Read a paced answer; how late each token was, of those that came while it was paced."""
    delays_s: list[float] = []
    loop = asyncio.get_running_loop()
    payload = _asking("paced", number, max_tokens=tokens)
    async with answer(port, payload) as got, contextlib.aclosing(got.pieces()) as pieces:
        async for piece in pieces:
            delays_s += (loop.time() - float(stamp) for stamp in _STAMP.findall(piece))
    return delays_s


def _asking(what: str, number: int, max_tokens: int = 1) -> bytes:
    messages = [{"role": "user", "content": f"{what} {number}"}]
    return asking(messages=messages, max_tokens=max_tokens, stream_options={"include_usage": True})


# replicas


def _long(number: int) -> bytes:
    """A long answer; no two are the same, nor two events of one."""
    return _PATTERN.replace(b"@@@@@@", b"%06d" % number)


class _Hoses:
    """A listening replica.

    Attributes:
        port: where it listens.
        running: long answers under way, by their number.
        ended: what was written of those that are over.
        cancelled: how many of these were not written to their end.
    """

    def __init__(self) -> None:
        self.port = 0
        self.running: dict[int, _Hose] = {}
        self.ended: dict[int, int] = {}
        self.cancelled = 0

    def taken(self) -> dict[int, int]:
        """Of each long answer, what has left the process."""
        return self.ended | {number: hose.taken_bytes for number, hose in self.running.items()}


class _Hose(asyncio.Protocol):
    """One connection of it."""

    def __init__(self, hoses: _Hoses) -> None:
        self._hoses = hoses
        self._loop = asyncio.get_running_loop()
        self._asked = b""
        self._rest: list[bytes] = []  # writes to come, the next one last
        self._number: int | None = None  # of the long answer
        self._written_bytes = 0
        self._open = True  # the kernel takes more

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        self._asked += data
        if (found := _ASKED.search(self._asked)) is None or not self._asked.endswith(b"}"):
            return
        tokens = re.search(rb'"max_tokens": ?(\d+)', self._asked)
        assert tokens is not None
        self._asked = b""
        self._transport.write(_HEAD)
        if found[1] == b"paced":
            self._pace(int(found[2]), int(tokens[1]), self._loop.time())
            return
        self._number, self._written_bytes = int(found[2]), 0
        self._hoses.running[self._number] = self
        whole = _long(self._number)
        pieces = [whole[at : at + _CHUNK_BYTES] for at in range(0, len(whole), _CHUNK_BYTES)]
        self._rest = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces][::-1]
        self._pour()

    def pause_writing(self) -> None:
        self._open = False

    def resume_writing(self) -> None:
        self._open = True
        self._pour()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._number is not None:
            self._hoses.cancelled += 1
            self._end()

    @property
    def taken_bytes(self) -> int:
        return self._written_bytes - self._transport.get_write_buffer_size()

    def _pour(self) -> None:
        """Write until the kernel takes no more, or all is written."""
        while self._open and self._rest:
            piece = self._rest.pop()
            self._written_bytes += len(piece)
            self._transport.write(piece)
        if self._number is not None and not self._rest and self._open:
            self._transport.write(b"0\r\n\r\n")
            self._end()

    def _end(self) -> None:
        assert self._number is not None
        self._hoses.ended[self._number] = self.taken_bytes
        del self._hoses.running[self._number]
        self._number = None

    def _pace(self, number: int, left: int, at_s: float) -> None:
        """Write a token that says when it was written, and so on until none is left."""
        if self._transport.is_closing():
            return
        raw = _EVENT % (b"%d" % number, b"%.6f" % self._loop.time() if left else b"", b"null" if left else b'"stop"')
        raw += b"" if left else _DONE
        self._transport.write(b"%x\r\n%b\r\n%b" % (len(raw), raw, b"" if left else b"0\r\n\r\n"))
        if left:
            self._loop.call_at(at_s + _TOKENS_S, self._pace, number, left - 1, at_s + _TOKENS_S)


@contextlib.asynccontextmanager
async def _pouring() -> AsyncIterator[_Hoses]:
    """A replica while inside."""
    hoses = _Hoses()
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)  # connections inherit it
    hoses.port = listening.getsockname()[1]
    server = await asyncio.get_running_loop().create_server(lambda: _Hose(hoses), sock=listening)
    async with server:
        yield hoses


@contextlib.asynccontextmanager
async def _fronted(port: int, stall_s: float, *, process: bool) -> AsyncIterator[Site]:
    """A gateway before it, that never hedges."""
    replicas = {"a": f"http://127.0.0.1:{port}/v1"}
    timeouts = {"stall": f"{stall_s:g}s", "keepalive_interval": "1h"}  # comments would change the hashes
    async with fronting(replicas, process=process, hedge={"policy": "off"}, timeouts=timeouts) as site:
        yield site


def _held_bytes() -> int:
    """Memory that the gateway's code in this process has taken since it is traced, if it is; ends that."""
    if not tracemalloc.is_tracing():
        return 0
    ours = [tracemalloc.Filter(True, f"{ROOT}/{package}/*") for package in ("gateway", "providers")]
    taken = tracemalloc.take_snapshot().filter_traces(ours).statistics("filename")
    tracemalloc.stop()
    return sum(each.size for each in taken)


def _memory(site: Site) -> tuple[int, int]:
    """Resident memory, now and at its peak, of a gateway that is a process of its own, where Linux tells."""
    file = Path(f"/proc/{site.pid}/status")
    if not site.pid or not file.exists():
        return 0, 0
    status = file.read_text(encoding="ascii")
    now, peak = (re.search(rf"{name}:\s+(\d+) kB", status) for name in ("VmRSS", "VmHWM"))
    return (int(now[1]) * 1024, int(peak[1]) * 1024) if now and peak else (0, 0)
