"""Request bodies of exchanges: in pieces, late, rejected, and in turns."""

import asyncio

import pytest

from echo_exchange import ANSWER_S, WHOLE, Site, played
from gateway.api import body_reader
from gateway.api import exchange as exchange_module
from pretended_client import request


def test_a_body_comes_in_pieces() -> None:
    """The body is the same however it is cut, with a length or in chunks."""

    async def play(site: Site) -> None:
        chunks = b"2\r\nhe\r\n3;a=b\r\nllo\r\n0\r\nx: y\r\n\r\n"
        chunked = b"POST /b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunks
        for data in (WHOLE, chunked):
            for start in range(len(data)):
                site.client.send(data[start : start + 1])
            assert site.memory.arriving == 0
            await asyncio.sleep(ANSWER_S + 1)

    site = played(play)
    assert site.statuses == [200, 200]
    assert site.written.count(b"\r\n\r\nhello") == 2


def test_a_client_that_waits_for_a_100_gets_it_once() -> None:
    """The 100 is sent when the head is accepted, when its turn has come, and never before a rejection."""

    async def play(site: Site) -> None:
        waiting = {"expect": "100-continue"}
        for path in ("/a", "/no"):
            site.client.send(request(b"hello", path, waiting))
            await asyncio.sleep(ANSWER_S + 1)

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


def test_a_body_for_which_the_memory_ends_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request gets a 500 once, and its bytes count no more, so that they leave room for the next body."""

    def no_memory(_pieces: bytearray) -> bytes:
        raise MemoryError

    async def play(site: Site) -> None:
        monkeypatch.setattr(body_reader, "bytes", no_memory, raising=False)
        site.client.send(WHOLE[:-2])
        site.client.send(WHOLE[-2:])

    site = played(play)
    assert site.statuses == [500]
    assert site.said == ["open", "gone", "over"]


def test_the_rest_of_a_rejected_body_is_dropped_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is sent immediately; the connection ends after a time, or after a number of bytes."""
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


def test_a_chunk_that_is_invalid_from_the_start_is_never_awaited() -> None:
    """If the first chunk of a body came with the head, and is not HTTP, nothing more of the body is received."""

    async def play(site: Site) -> None:
        head = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        site.client.send(head + b"2\r\nhe\r\nnonsense\r\n")
        assert (site.memory.held, site.memory.arriving) == (0, 0)

    site = played(play)
    assert (site.statuses, site.said, site.closed) == ([400], ["open", "gone", "over"], True)


def test_a_body_that_is_announced_too_large_gets_no_100() -> None:
    """A client that waits for a 100 gets the error instead, and the connection ends."""

    async def play(site: Site) -> None:
        head = b"POST /a HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1001\r\n\r\n"
        site.client.send(head)

    site = played(play)
    assert (site.statuses, site.said, site.closed) == ([413], ["open", "rejected 413", "over"], True)
    assert b"is 1001 bytes" in site.written


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
