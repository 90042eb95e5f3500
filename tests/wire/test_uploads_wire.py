"""Uploads over both HTTP clients: pieces are sent when they arrive, with a length or in chunks."""

import asyncio

import pytest

from providers.transport.http1 import WireClient
from providers.transport.httpx_client import HttpxClient
from providers.transport.origin import Origin
from running import run_real
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
