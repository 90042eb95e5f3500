"""The races of the session for aiohttp, through sockets; test_races.py has the cases of all transports."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import client_fixtures

pytest.importorskip("aiohttp")

import aiohttp

from aiohttp_client import CALL, SOON, SessionKit, chat, in_flight, run
from client_replicas import Replicas
from ttft_gateway import HedgingSession

site = client_fixtures.site

CHAT = "/chat/completions"


def test_a_compressed_stream_is_raced(site: Replicas) -> None:
    """The content of a compressed stream wins, decompressed by aiohttp or left as it is."""
    assert SessionKit().chat(site.add("late_headers", "packed"))[0] == "Hello"
    again = site.add("late_headers", "packed")

    async def work(session: HedgingSession) -> bytes:
        async with session.post(again.url + CHAT, json=CALL, auto_decompress=False) as response:
            return await response.content.read()

    assert run(work, again).startswith(b"\x1f\x8b")


async def _lines(response: Any) -> bytes:
    return b"".join([line async for line in response.content])


async def _any(response: Any) -> bytes:
    return b"".join([piece async for piece in response.content.iter_any()])


async def _sized(response: Any) -> bytes:
    pieces = [piece async for piece in response.content.iter_chunked(7)]
    assert max(map(len, pieces)) <= 7
    return b"".join(pieces)


async def _chunks(response: Any) -> bytes:
    pieces = [piece async for piece in response.content.iter_chunks()]
    assert [piece[:6] for piece, is_end in pieces if is_end and piece] == [b"data: "] * 4
    return b"".join(piece for piece, _ in pieces)


async def _events(response: Any) -> bytes:
    events: list[bytes] = []
    while event := await response.content.readuntil(b"\n\n"):
        assert event.startswith(b"data: ")
        events.append(event)
    assert len(events) == 5
    return b"".join(events)


async def _exactly(response: Any) -> bytes:
    head: bytes = await response.content.readexactly(200)
    assert len(head) == 200
    return b"".join([head, await response.content.read()])


async def _by_line(response: Any) -> bytes:
    line: bytes = await response.content.readline()
    assert line.endswith(b"\n")
    return b"".join([line, await response.content.readany(), await response.read()])


async def _text(response: Any) -> bytes:
    text: str = await response.text()
    return text.encode()


@pytest.mark.parametrize("read", [_lines, _any, _sized, _chunks, _events, _exactly, _by_line, _text])
def test_a_raced_answer_is_read_as_any_other(site: Replicas, read: Callable[[Any], Awaitable[bytes]]) -> None:
    """Each way to read a response returns the whole body of the winner, with the same pieces."""
    replica = site.add("late_headers", "quick")

    async def work(session: HedgingSession) -> bytes:
        async with session.post(replica.url + CHAT, json=CALL) as response:
            assert isinstance(response, aiohttp.ClientResponse)
            found = await read(response)
            assert response.content.at_eof()
            assert response.content.is_eof()  # an attribute of the reader
            return found

    body = run(work, replica)
    assert body.startswith(b'data: {"choices": [{"index": 0, "delta": {"role"')
    assert body.endswith(b"data: [DONE]\n\n")
    assert (body.count(b"Hel"), body.count(b'"lo"')) == (1, 1)


def test_json_is_read(site: Replicas) -> None:
    """A raced embedding is decoded, and a caller may await the response without entering it."""
    replica = site.add("late_headers", "vectors")

    async def work(session: HedgingSession) -> Any:
        response = await session.post(f"{replica.url}/embeddings", json={"model": "m", "input": "text"})
        return await response.json()

    assert run(work, replica)["data"][0]["embedding"] == [0.5]


@pytest.mark.parametrize("how", ["leaves", "cancels", "closes"])
def test_an_answer_that_is_given_up_is_ended(site: Replicas, how: str) -> None:
    """A caller that reads no further closes the connection, and the policy has no attempt under way."""
    replica = site.add("late_headers", "cut")

    async def read(session: HedgingSession) -> None:
        response = await session.post(replica.url + CHAT, json=CALL)
        if how == "closes":
            response.close()
            with pytest.raises(aiohttp.ClientConnectionError):
                await response.content.readany()
            return
        async with response:
            async for line in response.content:
                if how == "leaves" and b"Hel" in line:
                    break

    async def work(session: HedgingSession) -> None:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(read(session))
            while how == "cancels" and not session.stats.snapshot().hedge_wins:
                await asyncio.sleep(0.001)
            if how == "cancels":
                await asyncio.sleep(0.01)
                task.cancel()
        assert in_flight(session) == 0

    run(work, replica)
    assert all(seen.closed.wait() for seen in replica.seen)


def test_a_response_is_freed_when_it_is_dropped(site: Replicas) -> None:
    """A response is in no cycle of references, as a response of aiohttp: it waits for no garbage collection."""
    replica = site.add("quick")

    async def work(session: HedgingSession) -> bool:
        response = await session.post(replica.url + CHAT, json=CALL)
        await response.read()
        dropped = weakref.ref(response)
        del response
        return dropped() is None

    gc.disable()
    try:
        assert run(work)
    finally:
        gc.enable()


def test_a_caller_that_is_cancelled_ends_all_attempts(site: Replicas) -> None:
    """A cancelled race leaves no connection, and the cancellation is the caller's own."""
    replica = site.add("headers", "role")

    async def work(session: HedgingSession) -> None:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(chat(session, replica.url))
            while len(replica.seen) < 2:
                await asyncio.sleep(0.001)
            task.cancel()
        assert task.cancelled()

    run(work, replica)
    assert all(seen.closed.wait() for seen in replica.seen)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        ({"total": 0.3}, TimeoutError),
        ({"sock_read": 0.3}, aiohttp.SocketTimeoutError),
    ],
)
def test_a_timeout_ends_all_attempts(site: Replicas, timeout: dict[str, float], error: type[Exception]) -> None:
    """The client's own timeout is reported, a backup has the time that is left, and no attempt outlives it."""
    replica = site.add("late_headers")

    async def work(session: HedgingSession) -> None:
        with pytest.raises(error):
            await session.get(replica.url, timeout=aiohttp.ClientTimeout(**timeout))
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run(work)
    assert all(seen.closed.wait() for seen in replica.seen)


def test_a_full_pool_has_no_backup(site: Replicas) -> None:
    """With one connection, a late request has no backup, and frees the connection when it is given up."""
    replica = site.add("late_headers", "quick")

    async def main() -> str:
        async with HedgingSession(SOON, connector=aiohttp.TCPConnector(limit=1)) as session:
            session.hedger.clock = lambda: 1.0 if replica.seen else 0.0
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(chat(session, replica.url))
                while not session.stats.snapshot().denied:
                    await asyncio.sleep(0.001)
                task.cancel()
            assert (len(replica.seen), in_flight(session)) == (1, 0)
            return await chat(session, replica.url)

    assert asyncio.run(main()) == "Hello"


@pytest.mark.parametrize("where", ["session", "call", "function"])
def test_an_error_status_is_raised_after_the_race(site: Replicas, where: str) -> None:
    """`raise_for_status` concerns the answer: a backup may replace an error of the primary."""

    async def check(response: Any) -> None:
        if response.status >= 400:
            raise RuntimeError("checked")

    given: Any = check if where == "function" else True
    options = {"raise_for_status": given} if where == "session" else {}

    async def work(session: HedgingSession) -> bytes:
        calls: Any = {} if where == "session" else {"raise_for_status": given}
        async with session.get(good.url, **calls) as response:
            body = await response.read()
        session.hedger.clock = lambda: 2.0 if bad.seen else 1.0
        with pytest.raises(RuntimeError if where == "function" else aiohttp.ClientResponseError):
            await session.get(bad.url, **calls)
        return body

    good, bad = site.add("late:error_500", "patient:plain"), site.add("late:error_500", "error_500")
    assert run(work, good, **options) == b"hello"


def test_a_redirect_is_followed_in_its_attempt(site: Replicas) -> None:
    """A race includes the redirects of each attempt; the request after a redirect has no race of its own."""
    away = site.add("late_headers", "plain")
    home = site.add("moved", headers=f"location: {away.url}/there\r\n".encode())

    async def work(session: HedgingSession) -> tuple[bytes, int, int]:
        async with session.get(f"{home.url}/here") as response:
            return await response.read(), len(response.history), session.stats.snapshot().requests

    assert run(work, away) == (b"hello", 1, 1)
    assert (len(home.seen), len(away.seen)) == (2, 2)


def test_traces_see_each_attempt(site: Replicas) -> None:
    """An attempt is a request for the traces of a session; the loser ends with an exception."""
    replica, seen = site.add("late_headers", "quick"), []
    trace = aiohttp.TraceConfig()

    def add(name: str) -> Any:
        async def note(_session: Any, _context: Any, _parameters: Any) -> None:
            seen.append(name)

        return note

    for name in ("start", "end", "exception"):
        getattr(trace, f"on_request_{name}").append(add(name))

    async def work(session: HedgingSession) -> str:
        return await chat(session, replica.url)

    assert run(work, replica, trace_configs=[trace]) == "Hello"
    assert sorted(seen) == ["end", "exception", "start", "start"]


def test_it_has_the_attributes_of_a_session(site: Replicas) -> None:
    """SDKs that check its class take it, attributes are the inner session's, and errors are aiohttp's."""
    replica = site.add("empty_head")

    async def work(session: HedgingSession) -> None:
        given: Any = session
        assert isinstance(given, aiohttp.ClientSession)
        assert session.headers["x-a"] == "1"
        with pytest.raises(aiohttp.NonHttpUrlClientError):
            await session.get("ftp://host")
        with pytest.raises(ValueError, match="can not be used at the same time"):
            await session.post(replica.url, json={}, data=b"")
        with pytest.raises(TypeError, match="not JSON serializable"):
            await session.post(replica.url, json={"a": object()})
        for method in ("get", "options", "head", "put", "patch", "delete", "post"):
            async with getattr(session, method)("files", params={"q": "1"}) as response:
                assert (response.status, response.method) == (200, method.upper())
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(session.get("files"))
        task.result().release()
        assert not session.closed

    run(work, headers={"x-a": "1"}, base_url=f"{replica.url}/")
    assert {seen.head.split(" ")[1] for seen in replica.seen} == {"/v1/files?q=1", "/v1/files"}
