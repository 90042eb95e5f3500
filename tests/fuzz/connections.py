"""Any bytes on a client's connection: whole answers or none, the same requests however the bytes are cut.

A second reading by another HTTP implementation, h11, says where a request ends: two that disagree on that are how
requests are smuggled.
"""

import asyncio
import re
from typing import Final, NamedTuple

import h11
import httptools

from fuzz.pieces import cuts
from gateway.admission.body_memory import BodyMemory
from gateway.api.body_reader import BodyLimits
from gateway.api.dialects.base import ClientApi
from gateway.api.exchange import ClientExchange, Connection
from gateway.api.http_protocol import HEAD_BYTES_MAX, HttpProtocol
from gateway.api.request_head import RequestHead
from gateway.api.response import respond
from gateway.api.turns import Turns
from gateway.errors import GatewayError
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from pretended_client import connected_to
from streaming_bench.simulation.virtual_loop import VirtualLoop

WORDS: Final = (
    b"GET / HTTP/1.1\r\n",
    b"POST /a HTTP/1.1\r\nhost: localhost\r\n",
    b"HTTP/1.0\r\n",
    b"host: localhost\r\n",
    b"content-length: 5\r\n",
    b"content-length: +5\r\n",
    b"content-length: 0x5\r\n",
    b"content-length : 5\r\n",
    b"transfer-encoding: chunked\r\n",
    b"transfer-encoding: identity, chunked\r\n",
    b"transfer-encoding: xchunked\r\n",
    b"expect: 100-continue\r\n",
    b"connection: close\r\n",
    b"upgrade: websocket\r\nconnection: upgrade\r\n",
    b"\r\n\r\n",
    b"\n\n",
    b"\r\n folded\r\n",
    b"5\r\nhello\r\n",
    b"5;ext=1\r\nhello\r\n",
    b"0\r\n\r\n",
    b"-5\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\0",
)
_ANSWER: Final = re.compile(rb"(?=HTTP/1\.1 \d{3} )")


class Seen(NamedTuple):
    """One request as its exchange got it."""

    method: str
    target: bytes
    body: bytes


def check(data: bytes) -> None:
    """Send it in several ways, then compare."""
    whole, *others = [_served(pieces) for pieces in cuts(data)]
    requests, written = whole
    for other in others:
        assert other == whole
    answers = _answers(written, [request.method for request in requests])
    assert len(requests) <= answers <= len(requests) + 1  # one more where something was refused
    for ours, theirs in zip(requests, _by_h11(data), strict=False):
        assert ours.method == theirs.method
        assert ours.body == theirs.body
        assert ours.target in theirs.target  # host and fragment are not looked at


class _Exchange(ClientExchange):
    """Answers every request."""

    def __init__(
        self, connection: Connection, head: RequestHead, runtime: Runtime, bodies: BodyLimits, seen: list[Seen]
    ) -> None:
        super().__init__(connection, head, runtime, ClientApi(None), bodies, "id")
        self._seen = seen

    def _open(self) -> None:
        self._key_name = "a"

    def _answer(self, body: bytes) -> None:
        url = httptools.parse_url(self.head.target)
        target = url.path + (b"?" + url.query if url.query else b"")
        self._seen.append(Seen(self.head.method, target, body))
        respond(self, 200, [], b"ok")

    def _rejected(self, error: GatewayError) -> None:
        pass

    def _abandon(self) -> None:
        pass

    def _release(self) -> None:
        pass


def _served(pieces: list[bytes]) -> tuple[list[Seen], bytes]:
    """What the exchanges were asked, and what was written."""
    seen: list[Seen] = []

    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        runtime = Runtime(loop, lambda _: None, lambda: 0.0, TimerQueue(loop))
        bodies = BodyLimits(1_000_000, 500.0, BodyMemory(1_000_000), runtime, Turns(runtime.loop))

        def open_exchange(connection: Connection, head: RequestHead) -> ClientExchange:
            assert head.path
            return _Exchange(connection, head, runtime, bodies, seen)

        client = connected_to(open_exchange)
        transport, protocol = client.transport, client.transport.protocol
        assert isinstance(protocol, HttpProtocol)
        for piece in pieces:
            if transport.closed:
                break
            client.send(piece)
            assert protocol._head_bytes <= HEAD_BYTES_MAX or transport.closed
            for _ in range(8):  # the exchanges answer what they can
                await asyncio.sleep(0)
        for _ in range(200):  # requests in a row take their turns
            await asyncio.sleep(0)
        client.leave()
        await asyncio.sleep(1000)
        return b"".join(transport.written)

    failures: list[dict[str, object]] = []
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: failures.append(context))
        written = runner.run(main())
    assert not failures, failures
    return seen, written


class _Counter:
    """Counts complete responses."""

    count = 0

    def on_message_complete(self) -> None:
        self.count += 1


def _answers(written: bytes, methods: list[str]) -> int:
    """How many whole responses these bytes are; anything else in them fails."""
    if "HEAD" in methods or "CONNECT" in methods:  # their answers have no body, which only who asked knows
        return len(methods)
    counter = _Counter()
    for answer in _ANSWER.split(written)[1:]:
        httptools.HttpResponseParser(counter).feed_data(answer)
    return counter.count - written.count(b"HTTP/1.1 100 ")


def _by_h11(data: bytes) -> list[Seen]:
    """The requests as h11 reads them, up to the first that it does not take."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
    connection.receive_data(data)
    seen: list[Seen] = []
    request, body = None, b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                request, body = event, b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                seen.append(Seen(request.method.decode(), request.target, body))
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                connection.start_next_cycle()
            else:
                return seen
    except h11.ProtocolError:
        return seen
