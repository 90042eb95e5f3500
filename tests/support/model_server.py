"""Replicas on sockets that play the scripted model: their requests, and a delay before the content. Units: seconds."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple

from scripted_http import Script, read_request, serving
from scripted_model import Json, response


class Received(NamedTuple):
    """A request that a replica received.

    Attributes:
        head: request line and headers.
        body: the body.
    """

    head: bytes
    body: Json


@dataclass
class ModelReplica:
    """A replica.

    Attributes:
        ttft_s: delay of the first content.
        folder: folder of the file that the model reads.
        url: base URL.
        received: requests, in order.
        answered: number of responses that were written to their end.
    """

    ttft_s: float
    folder: str
    url: str = ""
    received: list[Received] = field(default_factory=list)
    answered: int = 0

    def script(self) -> Script:
        """Return the script of its connections."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                head, raw = await read_request(reader)
                body: Json = json.loads(raw or b"{}")
                self.received.append(Received(head, body))
                kind, pieces = response(head.split()[1].decode(), body, self.folder)
                writer.write(
                    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: %b\r\n\r\n" % kind.encode()
                )
                for number, piece in enumerate(pieces):
                    if number == min(1, len(pieces) - 1) and await _left(reader, self.ttft_s):
                        return
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
                self.answered += 1

        return serve


async def _left(reader: asyncio.StreamReader, delay_s: float) -> bool:
    """Wait; return True if the client disconnects before the end of the delay."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(reader.read(1), delay_s)
        return True
    return False


@contextlib.asynccontextmanager
async def model_replicas(folder: str, **ttft_s: float) -> AsyncIterator[dict[str, ModelReplica]]:
    """Replicas by name while inside.

    Args:
        folder: folder of the file that the model reads.
        ttft_s: delay of the first content of each replica.
    """
    replicas = {name: ModelReplica(delay_s, folder) for name, delay_s in ttft_s.items()}
    async with contextlib.AsyncExitStack() as opened:
        for replica in replicas.values():
            server = await opened.enter_async_context(serving(replica.script()))
            replica.url = f"http://127.0.0.1:{server.port}/v1"
        yield replicas
