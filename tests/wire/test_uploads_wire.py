"""Uploads over both HTTP clients: pieces are sent when they arrive, with a length or in chunks."""

import asyncio
import math

import pytest

from pretended_client import PretendedTransport
from providers.transport.http1 import Connection, WireClient
from providers.transport.httpx_client import HttpxClient
from providers.transport.origin import Origin
from running import run_real, run_virtual
from scripted_http import Recorder, until
from storing import storing
from ttft_gateway.apis.base import Request
from ttft_gateway.apis.upload import Upload

PIECES = [b"first", b"second" * 50_000, b"last"]


@pytest.mark.parametrize("kind", [WireClient, HttpxClient])
@pytest.mark.parametrize("sized", [True, False], ids=["with a length", "in chunks"])
def test_pieces_are_sent_when_they_arrive(kind: type[WireClient | HttpxClient], sized: bool) -> None:
    """Each piece reaches the server before the next one exists, and room is made known after each."""

    async def main() -> None:
        async with storing() as server, asyncio.TaskGroup() as tasks:
            body = b"".join(PIECES)
            client = kind(Origin("127.0.0.1", int(server.url.split(":")[2].split("/")[0])), tasks)
            rooms: list[int] = []
            upload = Upload(len(body) if sized else None, lambda: rooms.append(1))
            framing = b"content-length: %d" % len(body) if sized else b"transfer-encoding: chunked"
            sink = Recorder()
            client.send(Request(b"POST /v1/files HTTP/1.1\r\nhost: test\r\n%b\r\n\r\n" % framing, upload), sink)
            sent = 0
            for piece in PIECES:
                upload.feed(piece)
                sent += len(piece)
                await until(lambda size=sent: server.body_bytes == size)  # type: ignore[misc]
            assert (len(rooms), upload.waiting, upload.is_begun) == (3, 0, True)
            upload.complete()
            await sink.over.wait()
            assert (sink.status, sink.body, sink.error) == (200, body, None)
            client.close()

    run_real(main())


def test_an_upload_waits_for_a_new_connection() -> None:
    """A connection that becomes free goes to another request: its server may close it, and the upload is sent once."""

    async def never(*_where: object, **_how: object) -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> bytes:
        vars(asyncio.get_running_loop())["create_connection"] = never
        async with asyncio.TaskGroup() as tasks:
            client = WireClient(Origin("127.0.0.1", 1), tasks)
            head = b"POST /v1/files HTTP/1.1\r\nhost: test\r\ncontent-length: 1\r\n\r\n"
            bodies = (Upload(1, lambda: None), b"x", b"y")
            under_way = [client.send(Request(head, body), Recorder()) for body in bodies]
            connection, transport = Connection(client), PretendedTransport()
            connection.connection_made(transport)
            connection.fresh_until_s = math.inf
            client.release(connection)
            for each in under_way:
                each.abort()
            client.close()
        return b"".join(transport.written)[-1:]

    assert run_virtual(main()) == b"x"
