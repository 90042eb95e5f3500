"""Requests for an ASGI application on a pretended connection: bodies, slow clients, disconnects, bugs."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.api.asgi import UNREAD_BYTES_MAX, Application, Message, Receive, Scope, Send
from pretended_client import PretendedClient, answering, connected_to, request
from running import run_virtual

_GET = b"%b /a%%20b?c=d HTTP/1.1\r\nhost: x\r\n\r\n"
_END = {"type": "http.response.body", "body": b""}


def _played(application: Application, play: Callable[[PretendedClient], Awaitable[None]]) -> PretendedClient:
    """Play a scenario to the end of the application."""

    async def main() -> PretendedClient:
        async with asyncio.TaskGroup() as tasks:
            client = connected_to(answering(application, tasks))
            await play(client)
            await asyncio.sleep(1)
            client.leave()
        await asyncio.sleep(0)
        return client

    return run_virtual(main())


def _start(length: int | None = None) -> Message:
    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def _sending(*messages: Message) -> Application:
    async def application(_scope: Scope, _receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    return application


def _written(client: PretendedClient) -> bytes:
    return b"".join(client.transport.written)


@pytest.mark.parametrize("length", [2, None])
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_a_response(method: bytes, length: int | None) -> None:
    """A response has its length or chunks; that to HEAD has the same head, and nothing else."""

    async def play(client: PretendedClient) -> None:
        client.send(_GET % method)

    written = _written(_played(_sending(_start(length), {**_END, "body": b"ok"}), play))
    head, _, body = written.partition(b"\r\n\r\n")
    assert (b"content-length: 2" in head, b"transfer-encoding: chunked" in head) == (bool(length), not length)
    assert body == (b"" if method == b"HEAD" else b"ok" if length else b"2\r\nok\r\n0\r\n\r\n")


def test_the_scope_and_a_body_in_pieces() -> None:
    """The application gets the decoded path, the query and the whole body; after the response, a disconnect."""
    seen: list[object] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["path"], scope["raw_path"], scope["query_string"]))
        body = b""
        while (message := await receive())["more_body"]:
            body += message["body"]
        seen.append(body + message["body"])
        await send(_start(0))
        await send(_END)
        seen.append((await receive())["type"])

    async def play(client: PretendedClient) -> None:
        whole = request(b"hello", "/a%20b?c=d")
        for piece in (whole[:-3], whole[-3:-1], whole[-1:]):
            client.send(piece)
            await asyncio.sleep(1)

    _played(application, play)
    assert seen == [("/a b", b"/a%20b", b"c=d"), b"hello", "http.disconnect"]


def test_a_body_that_waits_is_bounded() -> None:
    """Of a body that the application does not receive, a bounded part is kept."""
    seen: list[int] = []

    async def application(_scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.5)
        seen.append(len((await receive())["body"]))
        await send(_start(0))
        await send(_END)

    async def play(client: PretendedClient) -> None:
        client.send(request(b"x" * (3 * UNREAD_BYTES_MAX)))

    _played(application, play)
    assert seen == [UNREAD_BYTES_MAX]


def test_a_feed_begins_at_once_and_waits_for_a_slow_client() -> None:
    """The head leaves before the first event, and `send` waits while the transport is full."""
    sent: list[int] = []

    async def application(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send(_start())
        for number in range(3):
            await asyncio.sleep(0.1)
            await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})
            sent.append(number)
        await send(_END)

    async def play(client: PretendedClient) -> None:
        client.send(_GET % b"GET")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert _written(client).endswith(b"\r\n\r\n")
        protocol = client.transport.protocol
        assert protocol is not None
        protocol.pause_writing()
        await asyncio.sleep(5)
        assert sent == []
        protocol.resume_writing()

    client = _played(application, play)
    assert sent == [0, 1, 2]
    assert _written(client).endswith(b"1\r\n0\r\n1\r\n1\r\n1\r\n2\r\n0\r\n\r\n")


def test_a_disconnect_reaches_the_application() -> None:
    """The application receives the disconnect, and what it sends after that is dropped."""
    seen: list[str] = []

    async def application(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        seen.append((await receive())["type"])
        await send(_start())
        await send(_END)

    async def play(client: PretendedClient) -> None:
        client.send(_GET % b"GET")
        await asyncio.sleep(0)
        client.leave()

    assert _written(_played(application, play)) == b""
    assert seen == ["http.disconnect"]


@pytest.mark.parametrize("begun", [False, True])
def test_a_bug_of_the_application(caplog: pytest.LogCaptureFixture, *, begun: bool) -> None:
    """A bug is a 500, or the end of the connection in a response that has begun; the log has the traceback."""

    async def application(_scope: Scope, _receive: Receive, send: Send) -> None:
        if begun:
            await send(_start(5))
        raise ZeroDivisionError

    async def play(client: PretendedClient) -> None:
        client.send(_GET % b"GET")
        await asyncio.sleep(0.1)
        assert client.transport.closed is begun

    assert (b" 500 " in _written(_played(application, play))) is not begun
    assert [bool(record.exc_info) for record in caplog.records] == [True]
