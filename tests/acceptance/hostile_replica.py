"""A hostile replica as a process of its own: `python -m hostile_replica SIZE`; its first line of output is the port.

The path of a request begins with the number of a shape of `hostile_answers`; the answer is sent as fast as it is read.
Units: bytes.
"""

import asyncio
import contextlib
import json
import os
import re
import sys
from typing import Final

from hostile_answers import DOCUMENTS, STREAMS, HostileAnswer

SHAPES: Final = {**DOCUMENTS, **STREAMS}
_NICE: Final = 10  # the processors of this machine are the gateway's
_PIECE: Final = 2**18
_LENGTH: Final = re.compile(rb"content-length: (\d+)")


class _Replica:
    def __init__(self, size: int) -> None:
        self._size = size
        self._made: dict[int, tuple[bytes, bytes]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = _LENGTH.search(head)
                await reader.readexactly(int(found[1]) if found else 0)
                start, body = self._answer(int(head.split(b"/")[1]))
                writer.write(start)
                for at in range(0, len(body), _PIECE):
                    writer.write(body[at : at + _PIECE])
                    await writer.drain()
        writer.transport.abort()

    def _answer(self, number: int) -> tuple[bytes, bytes]:
        if number not in self._made:
            self._made.clear()
            self._made[number] = _response(list(SHAPES.values())[number], self._size)
        return self._made[number]


def _response(shape: HostileAnswer, size: int) -> tuple[bytes, bytes]:
    body = shape.make(min(size, shape.most or size))
    kind = b"application/json" if shape.is_json else b"text/event-stream"
    framing = b"content-length: %d" % len(body)
    if shape.chunk:
        framing = b"transfer-encoding: chunked"
        body = b"".join([b"1\r\n%c\r\n" % byte for byte in body]) + b"0\r\n\r\n"
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n\r\n" % (kind, framing), body


async def _run(size: int) -> None:
    os.nice(_NICE)
    server = await asyncio.start_server(_Replica(size).serve, "127.0.0.1", 0)
    sys.stdout.write(json.dumps(server.sockets[0].getsockname()[1]) + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1])))
