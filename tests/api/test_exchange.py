"""Exchanges on a connection: order, disconnects at any time, rejections, bugs; the transport is pretended."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from gateway.api import exchange as exchange_module
from gateway.api.asgi import Receive, Scope, Send
from gateway.api.body_reader import Arrival, BodyLimits
from gateway.api.dialects.base import ClientApi
from gateway.api.exchange import ClientExchange, Connection
from gateway.api.http_protocol import PIPELINED_MAX
from gateway.api.request_head import RequestHead
from gateway.api.response import respond
from gateway.api.turns import Turns
from gateway.errors import BadRequest, BodyTooLarge, GatewayError
from gateway.events import ComponentFailed, Event
from gateway.limits.body_memory import BodyMemory
from gateway.race.context import Runtime
from gateway.race.timers import TimerQueue
from pretended_client import PretendedClient, connected_to, request
from running import run_virtual

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_ANSWER_S = 5.0


class Echo(ClientExchange):
    """Answers with the body of the request, some time after it has come."""

    def __init__(self, connection: Connection, head: RequestHead, site: "Site") -> None:
        super().__init__(connection, head, site.runtime, ClientApi(None), "id")
        self._site = site
        self._timer: asyncio.TimerHandle | None = None

    def _open(self) -> Arrival:
        self._site.said.append("open")
        if self.head.path == "/bug":
            raise ZeroDivisionError
        if self.head.path == "/no":
            raise BadRequest("no")
        if self.head.path == "/large":
            raise BodyTooLarge("too large")
        return Arrival(self._site.bodies, "a", self.head.by_name, self._reject)

    def _answer(self, body: bytes) -> None:
        self._site.said.append("answer")
        if self.head.path == "/late-bug":
            raise ZeroDivisionError
        if self.head.path == "/begun-bug":
            self.response.start(200, [])
            raise ZeroDivisionError
        self.response.race = self
        self._timer = asyncio.get_running_loop().call_later(_ANSWER_S, respond, self.response, 200, [], body)

    def give_up(self, _error: GatewayError) -> None:
        raise AssertionError

    def pause(self) -> None:
        self._site.said.append("pause")

    def resume(self) -> None:
        self._site.said.append("resume")

    def usage(self) -> None:
        """Return no usage."""

    def _rejected(self, error: GatewayError) -> None:
        self._site.said.append(f"rejected {error.status}")

    def _abandon(self) -> None:
        self._site.said.append("gone")
        if self._timer is not None:
            self._timer.cancel()

    def _release(self) -> None:
        self._site.said.append("over")


class Site:
    """A server with `Echo` for every path but /asgi.

    Attributes:
        said: calls of the exchanges.
        events: events of the runtime.
        memory: of the bodies.
        closed: the gateway has closed the connection.
    """

    closed = False

    def __init__(self) -> None:
        self.said: list[str] = []
        self.events: list[Event] = []
        loop = asyncio.get_running_loop()
        self.runtime = Runtime(loop, self.events.append, lambda: 0.0, TimerQueue(loop))
        self.memory = BodyMemory(10_000)
        self.bodies = BodyLimits(1_000, 3.0, self.memory, self.runtime, Turns(self.runtime.loop))
        self.client: PretendedClient = connected_to(self._open, self._application)

    @property
    def statuses(self) -> list[int]:
        """Statuses of everything that was sent."""
        return [int(status) for status in _STATUS.findall(b"".join(self.client.transport.written))]

    @property
    def written(self) -> bytes:
        """All that was sent."""
        return b"".join(self.client.transport.written)

    def _open(self, connection: Connection, head: RequestHead) -> ClientExchange | None:
        assert head.path
        return None if head.target.startswith(b"/asgi") else Echo(connection, head, self)

    async def _application(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await asyncio.sleep(_ANSWER_S)
        await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"asgi"})


def played(play: Callable[[Site], Any]) -> Site:
    """Play a scenario to its end; nothing may be held after it."""

    async def run() -> Site:
        site = Site()
        await play(site)
        await asyncio.sleep(1_000)
        site.closed = site.client.transport.closed
        site.client.leave()
        await asyncio.sleep(1)
        assert site.said.count("open") <= site.said.count("over") + site.said.count("gone")
        assert (site.memory.held, site.memory.arriving) == (0, 0)
        return site

    return run_virtual(run())


def test_exchanges_and_asgi_answer_in_order() -> None:
    """Requests of one read are answered one after the other, whichever side they are for."""

    async def play(site: Site) -> None:
        paths = ("/a", "/asgi", "/b", "/c", "/asgi/2", "/d")
        site.client.send(b"".join(request(path.encode(), path) for path in paths))
        assert not site.client.transport.reading

    site = played(play)
    assert site.statuses == [200, 202, 200, 200, 202, 200]
    bodies = [answer.rpartition(b"\r\n\r\n")[2] for answer in site.written.split(b"HTTP/1.1 ")[1:]]
    assert bodies == [b"/a", b"asgi", b"/b", b"/c", b"asgi", b"/d"]
    assert site.said == ["open", "answer", "over"] * 4
    assert site.client.transport.reading


def test_rejections_of_one_read_are_bounded() -> None:
    """Requests that are rejected at once are queued like others: of thousands in one read few are looked at."""

    async def play(site: Site) -> None:
        site.client.send(request(b"", "/no") * 1_000)
        assert site.said.count("open") == 1

    site = played(play)
    assert site.statuses == [400] * (2 + PIPELINED_MAX)
    assert site.said.count("open") == 1 + PIPELINED_MAX
    assert site.closed


def test_requests_to_upgrade_are_bounded_as_well() -> None:
    """The parser stops at each request to upgrade; thousands in one read are no recursion."""

    async def play(site: Site) -> None:
        site.client.send(
            request(b"", "/no", {"connection": "upgrade", "upgrade": "h2c", "content-length": "0"}) * 1_000
        )

    site = played(play)
    assert site.statuses == [400] * (2 + PIPELINED_MAX)


@pytest.mark.parametrize("target", [b"CONNECT x:1", b"POST http://x", b"POST /\xc3\xa9"])
def test_a_target_without_a_path_is_rejected(target: bytes) -> None:
    """It gets a 400 and the end of the connection."""

    async def play(site: Site) -> None:
        site.client.send(target + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")

    site = played(play)
    assert (site.statuses, site.closed) == ([400], True)


WHOLE = request(b"hello", "/a")
GONE = {
    "in the body": ([WHOLE[:-2]], ["open", "gone", "over"]),
    "while it is answered": ([WHOLE], ["open", "answer", "gone", "over"]),
    "with another one queued": ([WHOLE + WHOLE], ["open", "answer", "gone", "over"]),
    "with an ASGI request queued": ([WHOLE + request(b"", "/asgi")], ["open", "answer", "gone", "over"]),
    "with half a request queued": ([WHOLE + WHOLE[:-2]], ["open", "answer", "gone", "over"]),
    "while a body is discarded": ([request(b"x" * 90, "/large")[:-9]], ["open", "rejected 413", "gone", "over"]),
}


@pytest.mark.parametrize("eof", [False, True])
@pytest.mark.parametrize(("reads", "said"), GONE.values(), ids=GONE)
def test_a_disconnect_ends_the_request_at_once(reads: list[bytes], said: list[str], *, eof: bool) -> None:
    """The request under way is abandoned at once and once, also if others wait; those never begin."""

    async def play(site: Site) -> None:
        for data in reads:
            site.client.send(data)
        protocol = site.client.transport.protocol
        assert protocol is not None
        if eof:
            assert not protocol.eof_received()
            assert site.said == said
        site.client.leave()
        await asyncio.sleep(0)
        assert site.said == said

    site = played(play)
    assert site.said == said


def test_a_connection_lost_between_two_requests_begins_none() -> None:
    """A queued request whose connection is lost in the turn in which it would begin does not begin."""

    async def play(site: Site) -> None:
        site.client.send(WHOLE + WHOLE)
        transport = site.client.transport
        transport.on_write = transport.close
        await asyncio.sleep(_ANSWER_S + 1)

    assert played(play).said == ["open", "answer", "over"]


@pytest.mark.parametrize("resumed_s", [1.0, _ANSWER_S + 1, 2 * _ANSWER_S + 1], ids=["first", "second", "after both"])
def test_a_full_transport_pauses_the_response_whose_turn_it_is(resumed_s: float) -> None:
    """A queued request takes part in the pause that it meets at its turn, and not in one that was over by then."""

    async def play(site: Site) -> None:
        protocol = site.client.transport.protocol
        assert protocol is not None
        protocol.pause_writing()
        site.client.send(WHOLE + WHOLE)
        await asyncio.sleep(resumed_s)
        protocol.resume_writing()

    said = played(play).said
    assert said.count("pause") == {1.0: 0, _ANSWER_S + 1: 1, 2 * _ANSWER_S + 1: 2}[resumed_s]
    assert said.count("answer") == said.count("over") == 2


def test_a_transport_that_fills_up_pauses_the_queued_request_as_well() -> None:
    """A transport reports once that it is full, and perhaps before the response that is written next is known."""

    async def play(site: Site) -> None:
        protocol = site.client.transport.protocol
        assert protocol is not None
        site.client.send(WHOLE + WHOLE)
        protocol.pause_writing()
        await asyncio.sleep(2 * _ANSWER_S - 1)
        assert "pause" in site.said

    assert played(play).said.count("pause") == 2


def test_a_body_comes_in_pieces() -> None:
    """The body is the same however it is cut, with a length or in chunks."""

    async def play(site: Site) -> None:
        chunks = b"2\r\nhe\r\n3;a=b\r\nllo\r\n0\r\nx: y\r\n\r\n"
        chunked = b"POST /b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunks
        for data in (WHOLE, chunked):
            for start in range(len(data)):
                site.client.send(data[start : start + 1])
            assert site.memory.arriving == 0
            await asyncio.sleep(_ANSWER_S + 1)

    site = played(play)
    assert site.statuses == [200, 200]
    assert site.written.count(b"\r\n\r\nhello") == 2


def test_a_client_that_waits_for_a_100_gets_it_once() -> None:
    """The 100 is sent when the head is accepted, when its turn has come, and never before a rejection."""

    async def play(site: Site) -> None:
        waiting = {"expect": "100-continue"}
        for path in ("/a", "/no"):
            site.client.send(request(b"hello", path, waiting))
            await asyncio.sleep(_ANSWER_S + 1)

    assert played(play).statuses == [100, 200, 400]


def test_a_slow_body_is_rejected() -> None:
    """A body that does not arrive in time gets a 408, and the connection ends after the rest was dropped."""

    async def play(site: Site) -> None:
        site.client.send(WHOLE[:-2])
        await asyncio.sleep(4.0)
        assert site.said == ["open", "rejected 408"]
        assert site.statuses == [408]
        assert not site.client.transport.closed

    site = played(play)
    assert site.said == ["open", "rejected 408", "over"]
    assert site.closed


def test_the_rest_of_a_rejected_body_is_dropped_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is sent at once; the connection ends after a time, or after a number of bytes."""
    monkeypatch.setattr(exchange_module, "_DISCARD_BYTES_MAX", 500)

    async def timed(site: Site) -> None:
        site.client.send(request(b"x" * 1_000, "/large")[:-900])
        assert site.statuses == [413]
        await asyncio.sleep(exchange_module._DISCARD_S - 0.1)
        assert not site.client.transport.closed
        await asyncio.sleep(0.2)
        assert site.client.transport.closed

    async def many(site: Site) -> None:
        data = request(b"x" * 2_000, "/large")
        site.client.send(data[:-1_400])
        site.client.send(data[-1_400:])
        await asyncio.sleep(0)
        assert site.client.transport.closed

    for play in (timed, many):
        assert played(play).said == ["open", "rejected 413", "over"]


def test_an_early_error_does_not_take_the_body_for_a_request() -> None:
    """The body of a rejected request that still arrives is dropped, and the next request is served."""

    async def play(site: Site) -> None:
        data = request(b"GET / HTTP/1.1\r\n\r\n", "/no")
        site.client.send(data[:-10])
        await asyncio.sleep(1)
        site.client.send(data[-10:] + WHOLE)

    site = played(play)
    assert site.statuses == [400, 200]
    assert site.said == ["open", "rejected 400", "over", "open", "answer", "over"]


@pytest.mark.parametrize(
    ("path", "statuses"), [("/bug", [500]), ("/late-bug", [500]), ("/begun-bug", [])], ids=["head", "body", "begun"]
)
def test_a_bug_is_an_internal_error(path: str, statuses: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """A request that meets a bug gets a 500, or the end of the connection; the log has the traceback."""

    async def play(site: Site) -> None:
        site.client.send(request(b"hello", path))

    site = played(play)
    assert site.statuses == statuses
    assert site.closed is not bool(statuses)
    assert [event.component for event in site.events if isinstance(event, ComponentFailed)] == ["race"]
    assert [bool(record.exc_info) for record in caplog.records] == [True]


@pytest.mark.parametrize("path", ["/a", "/large"], ids=["receiving", "rejected"])
def test_invalid_chunks_end_the_connection(path: str) -> None:
    """A body that is not HTTP gets one answer, and its request is abandoned."""

    async def play(site: Site) -> None:
        site.client.send(b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % path.encode())
        site.client.send(b"nonsense\r\n")

    site = played(play)
    assert site.statuses == [400 if path == "/a" else 413]
    assert (site.said[-1], site.closed) == ("over", True)
    assert "answer" not in site.said


@pytest.mark.parametrize(
    ("path", "leaves", "statuses", "said"),
    [
        ("/a", False, [200], ["open", "answer", "over"]),
        ("/late-bug", False, [500], ["open", "answer", "gone", "over"]),
        ("/a", True, [], ["open", "gone", "over"]),
    ],
)
def test_a_large_body_waits_for_its_turn(
    monkeypatch: pytest.MonkeyPatch, path: str, leaves: bool, statuses: list[int], said: list[str]
) -> None:
    """It is answered after those before it; nothing of it is held for a client that has left."""
    monkeypatch.setattr(exchange_module, "LARGE_MIN", 100)

    async def play(site: Site) -> None:
        site.bodies.turns.take(lambda: None)
        site.client.send(request(b"x" * 200, path))
        assert site.said == ["open"]
        if leaves:
            site.client.leave()

    site = played(play)
    assert (site.statuses, site.said) == (statuses, said)
