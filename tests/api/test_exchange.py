"""Exchanges on a connection: order, disconnects at any time, rejections, bugs; the transport is pretended."""

import asyncio

import pytest

from echo_exchange import ANSWER_S, WHOLE, Site, played
from gateway.api.http_protocol import PIPELINED_MAX
from gateway.events import ComponentFailed
from pretended_client import request


def test_requests_of_one_read_are_answered_in_order() -> None:
    """Requests of one read are answered one after the other, and nothing is read until then."""

    async def play(site: Site) -> None:
        paths = ("/a", "/b", "/c", "/d")
        site.client.send(b"".join(request(path.encode(), path) for path in paths))
        assert not site.client.transport.reading

    site = played(play)
    assert site.statuses == [200] * 4
    bodies = [answer.rpartition(b"\r\n\r\n")[2] for answer in site.written.split(b"HTTP/1.1 ")[1:]]
    assert bodies == [b"/a", b"/b", b"/c", b"/d"]
    assert site.said == ["open", "answer", "over"] * 4
    assert site.client.transport.reading


def test_rejections_of_one_read_are_bounded() -> None:
    """Requests that are rejected immediately are queued like others: of thousands in one read few are looked at."""

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


GONE = {
    "in the body": ([WHOLE[:-2]], ["open", "gone", "over"]),
    "while it is answered": ([WHOLE], ["open", "answer", "gone", "over"]),
    "with another one queued": ([WHOLE + WHOLE], ["open", "answer", "gone", "over"]),
    "with half a request queued": ([WHOLE + WHOLE[:-2]], ["open", "answer", "gone", "over"]),
    "while a body is discarded": ([request(b"x" * 90, "/large")[:-9]], ["open", "rejected 413", "gone", "over"]),
}


@pytest.mark.parametrize("eof", [False, True])
@pytest.mark.parametrize(("reads", "said"), GONE.values(), ids=GONE)
def test_a_disconnect_ends_the_request_at_once(reads: list[bytes], said: list[str], *, eof: bool) -> None:
    """The request under way is abandoned immediately, and once, also if others wait; those never begin."""

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
    """A queued request does not begin if its connection is lost in the turn in which it would begin."""

    async def play(site: Site) -> None:
        site.client.send(WHOLE + WHOLE)
        transport = site.client.transport
        transport.on_write = transport.close
        await asyncio.sleep(ANSWER_S + 1)

    assert played(play).said == ["open", "answer", "over"]


@pytest.mark.parametrize("resumed_s", [1.0, ANSWER_S + 1, 2 * ANSWER_S + 1], ids=["first", "second", "after both"])
def test_a_full_transport_pauses_the_current_response(resumed_s: float) -> None:
    """A queued request takes part in the pause that it meets at its turn, and not in one that was over by then."""

    async def play(site: Site) -> None:
        protocol = site.client.transport.protocol
        assert protocol is not None
        protocol.pause_writing()
        site.client.send(WHOLE + WHOLE)
        await asyncio.sleep(resumed_s)
        protocol.resume_writing()

    said = played(play).said
    assert said.count("pause") == {1.0: 0, ANSWER_S + 1: 1, 2 * ANSWER_S + 1: 2}[resumed_s]
    assert said.count("answer") == said.count("over") == 2


def test_a_transport_that_fills_up_pauses_the_queued_request_as_well() -> None:
    """A transport reports once that it is full, and perhaps before the response that is written next is known."""

    async def play(site: Site) -> None:
        protocol = site.client.transport.protocol
        assert protocol is not None
        site.client.send(WHOLE + WHOLE)
        protocol.pause_writing()
        await asyncio.sleep(2 * ANSWER_S - 1)
        assert "pause" in site.said

    assert played(play).said.count("pause") == 2


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
