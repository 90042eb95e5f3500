"""Scripted replicas on sockets of this machine, in a thread of their own, for tests of hedging clients.

A replica behaves as named by the next word of its plan; the last word repeats. A silent one waits until its client has
closed the connection, `late:WORD` answers after another request has arrived, and `patient:WORD` after another one was
answered, so no test depends on a time.
"""

import asyncio
import contextlib
import json
import ssl
import threading
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]
SILENT = ("late_headers", "headers", "role", "comments")
"""Behaviours without content, until the client closes the connection."""


def event(value: object) -> bytes:
    """Return one event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(finish_reason: str | None = None, **fields: str) -> bytes:
    """Return one event of a chat completion."""
    choices = [{"index": 0, "delta": fields, "finish_reason": finish_reason}]
    return event({"choices": choices, "id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"})


ROLE = delta(role="assistant", content="")
FINISH = delta("stop") + b"data: [DONE]\n\n"


@dataclass
class Seen:
    """One request as a replica has received it.

    Attributes:
        head: request line and headers.
        behaviour: name of the answer.
        closed: set when the client has closed the connection before the end of the answer.
    """

    head: str
    body: bytes
    behaviour: str
    closed: threading.Event = field(default_factory=threading.Event)

    @property
    def headers(self) -> dict[str, str]:
        """Headers, names in lower case."""
        lines = (line.partition(": ") for line in self.head.split("\r\n")[1:] if line)
        return {name.lower(): value for name, _, value in lines}


@dataclass
class ScriptedReplica:
    """One replica.

    Attributes:
        plan: behaviours, one a request in the order of arrival; the last one repeats.
        repeats: True if the whole plan repeats.
        answers: answers by their names in a plan.
        headers: further headers of each response.
        seen: requests in the order of arrival.
    """

    port: int
    plan: list[str]
    answers: Mapping[str, Answer]
    headers: bytes = b""
    scheme: str = "http"
    seen: list[Seen] = field(default_factory=list)
    repeats: bool = False
    answered: int = 0
    open_connections: int = 0
    accepted: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self) -> None:
        """Wake those that wait for a change."""
        self.changed.set()
        self.changed = asyncio.Event()

    @property
    def url(self) -> str:
        """Base URL for an SDK."""
        return f"{self.scheme}://127.0.0.1:{self.port}/v1"


class Replicas:
    """Replicas that run in a thread.

    Args:
        tls: context of their sockets; None without TLS.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread.start()

    def add(self, *plan: str, headers: bytes = b"", answers: Mapping[str, Answer] | None = None) -> ScriptedReplica:
        """Start a replica; without `answers`, it answers as an OpenAI server."""
        scheme = "http" if self._tls is None else "https"
        replica = ScriptedReplica(0, list(plan), CHAT if answers is None else answers, headers, scheme)
        server = self._call(
            asyncio.start_server(
                lambda reader, writer: self._serve(replica, reader, writer), "127.0.0.1", 0, ssl=self._tls
            )
        )
        replica.port = server.sockets[0].getsockname()[1]
        self._servers.append(server)
        return replica

    def close(self) -> None:
        """Stop all replicas."""
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, awaitable: Awaitable[asyncio.Server]) -> asyncio.Server:
        async def wait() -> asyncio.Server:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result()

    async def _stop(self) -> asyncio.Server:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return self._servers[0] if self._servers else await asyncio.start_server(print, "127.0.0.1", 0)

    async def _serve(
        self, replica: ScriptedReplica, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        replica.open_connections += 1
        replica.accepted += 1
        seen: Seen | None = None
        try:
            while True:
                seen = None
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = head.lower().partition("content-length:")[2].partition("\r\n")[0]
                body = await reader.readexactly(int(length or 0))
                number = len(replica.seen)
                count = len(replica.plan)
                seen = Seen(head, body, replica.plan[number % count if replica.repeats else min(number, count - 1)])
                replica.seen.append(seen)
                replica.change()
                when, _, word = seen.behaviour.rpartition(":")
                while (when == "late" and len(replica.seen) < 2) or (when == "patient" and not replica.answered):
                    await replica.changed.wait()
                await replica.answers[word](reader, writer, replica.headers)
                await writer.drain()
                replica.answered += 1
                replica.change()
                if word in CLOSING:
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            if seen is not None:
                seen.closed.set()
                replica.answered += 1
                replica.change()
        finally:
            replica.open_connections -= 1
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()


@contextlib.contextmanager
def replicas(tls: ssl.SSLContext | None = None) -> Iterator[Replicas]:
    """Replicas that are stopped at the end."""
    running = Replicas(tls)
    try:
        yield running
    finally:
        running.close()


def chunk(data: bytes) -> bytes:
    """Return a piece of a body in the framing of HTTP/1.1."""
    return b"%x\r\n%b\r\n" % (len(data), data)


END = b"0\r\n\r\n"


async def _until_closed(reader: asyncio.StreamReader) -> None:
    await reader.read(1)
    raise ConnectionError


def writing(*parts: bytes, silent: bool = False, dies: bool = False) -> Answer:
    """An answer that writes a stream's events; a silent one then waits for the client's end, another one dies."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: bytes) -> None:
        writer.write(HEAD + headers + b"\r\n" + b"".join(map(chunk, parts)))
        if silent:
            await _until_closed(reader)
        if not dies:
            writer.write(END)

    return answer


def _packed(*parts: bytes, times: int = 1) -> Answer:
    """An answer that writes a stream's events, compressed once or several times."""
    pieces = list(parts)
    for _ in range(times):
        pack = zlib.compressobj(wbits=31)
        pieces = [pack.compress(piece) + pack.flush(zlib.Z_SYNC_FLUSH) for piece in pieces] + [pack.flush()]
    plain, coding = writing(*pieces), b", ".join([b"gzip"] * times)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: bytes) -> None:
        await plain(reader, writer, headers + b"content-encoding: %b\r\n" % coding)

    return answer


def whole(status: bytes, body: bytes, kind: bytes = b"application/json") -> Answer:
    """An answer with a whole body."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: bytes) -> None:
        head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n" % (status, kind, len(body))
        writer.write(head + headers + b"\r\n" + body)

    return answer


async def _late_headers(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter, _headers: bytes) -> None:
    await _until_closed(reader)


async def _reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _headers: bytes) -> None:
    writer.transport.abort()


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "server_error", "code": None, "param": None}}).encode()


_COMPLETE = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}],
}
_VECTORS = {"object": "list", "model": "m", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}]}

CLOSING = ("reset", "dies")
ANY: Mapping[str, Answer] = {
    "late_headers": _late_headers,
    "headers": writing(silent=True),
    "comments": writing(b": ping\n\n", b": ping\n\n", silent=True),
    "empty": writing(),
    "reset": _reset,
}
"""Answers of any API."""
CHAT: Mapping[str, Answer] = {
    **ANY,
    "quick": writing(ROLE, delta(content="Hel"), delta(content="lo"), FINISH),
    "cut": writing(ROLE, delta(content="Hel"), silent=True),
    "role": writing(ROLE, silent=True),
    "only_done": writing(ROLE, b"data: [DONE]\n\n"),
    "error_event": writing(event({"error": {"message": "overloaded", "type": "server_error"}}), b"data: [DONE]\n\n"),
    "error_500": whole(b"500 Internal Server Error", _error("broken")),
    "error_400": whole(b"400 Bad Request", _error("wrong")),
    "limited": whole(b"429 Too Many Requests", _error("slow down")),
    "dies": writing(ROLE, dies=True),
    "whole": whole(b"200 OK", json.dumps(_COMPLETE).encode()),
    "vectors": whole(b"200 OK", json.dumps(_VECTORS).encode()),
    "plain": whole(b"200 OK", b"hello", b"text/plain"),
    "packed": _packed(ROLE, delta(content="Hel"), delta(content="lo"), FINISH),
    "packed_twice": _packed(ROLE, delta(content="Hel"), delta(content="lo"), FINISH, times=2),
    "pings": writing(b": ping\n\n", b": ping\n\n"),
    "no_content": writing(ROLE, FINISH),
    "empty_head": whole(b"200 OK", b"", b"text/plain"),
    "moved": whole(b"307 Temporary Redirect", b"", b"text/plain"),
    "found": whole(b"302 Found", b"", b"text/plain"),
    "missing": whole(b"404 Not Found", b"none", b"text/plain"),
}
