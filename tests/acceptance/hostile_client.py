"""A hostile client as a process of its own: `python -m hostile_client PORT BODY_BYTES CONNECTIONS`.

A line `on` of its input starts all attacks, and a line `off` ends them. The answer to `on` is a line as soon as all
attacks run; the answer to `off` is the statuses of the responses, in JSON. The end of the input ends the process.

The attacks: bodies of every hostile shape, one after the other; bodies that are announced and never sent; connections
that send nothing, and are opened again when they are closed; keys in trailers. Units: bytes, seconds.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final

from hostile_bodies import SHAPES
from raw_http import ASK, CHAT, Cut, connect, head, request_bytes

HOSTILE_KEY: Final = "sk-hostile"
_ANNOUNCED: Final = 52  # bodies of 9.8 MB, which together are all that `buffered_bodies_max` allows
_ANNOUNCED_BYTES: Final = 9_800_000
_PAUSE_S: Final = 0.3  # before a closed connection is opened again
_EACH_S: Final = 60.0
_NICE: Final = 10  # the processors of this machine are the gateway's; a hostile client has its own
_KEY: Final = {"authorization": f"Bearer {HOSTILE_KEY}"}


class _Attacks:
    """Attacks that run until they are cancelled.

    Attributes:
        statuses: number of responses by status.
        bodies: bodies of the hostile shapes that have had their response.
    """

    def __init__(self, port: int, payloads: Sequence[bytes], connections: int) -> None:
        self.statuses: Counter[int] = Counter()
        self.bodies = 0
        self._port = port
        self._payloads = payloads
        self._connections = connections
        self._opened = asyncio.Semaphore(0)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Attack while inside, where all floods are open and the first body has its response."""
        announced = request_bytes(b" ", headers={**_KEY, "content-length": str(_ANNOUNCED_BYTES)})
        floods = [*[announced] * _ANNOUNCED, *[b""] * self._connections]
        every = [*map(self._keep_open, floods), self._send_shapes(), self._send_trailers()]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in every]
            async with asyncio.timeout(_EACH_S):
                for _ in every:
                    await self._opened.acquire()
            yield
            for task in tasks:
                task.cancel()

    async def _keep_open(self, payload: bytes) -> None:
        """Send the payload and read, again and again."""
        first = True
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await connect(self._port)
                try:
                    writer.write(payload)
                    if first:
                        self._opened.release()
                    first = False
                    if line := await reader.readline():
                        self.statuses[int(line.split(b" ")[1])] += 1
                finally:
                    writer.transport.abort()
            await asyncio.sleep(_PAUSE_S)

    async def _send_shapes(self) -> None:
        while True:
            for payload in self._payloads:
                await self._ask(payload)
                self.bodies += 1
                if self.bodies == 1:
                    self._opened.release()

    async def _send_trailers(self) -> None:
        body = json.dumps({**ASK, "stream": False}).encode()
        lines = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        trailer = b"authorization: Bearer %b\r\n" % HOSTILE_KEY.encode()
        self._opened.release()
        while True:
            await self._ask(b"%b%x\r\n%b\r\n0\r\n%b\r\n" % (lines, len(body), body, trailer))
            await asyncio.sleep(_PAUSE_S / 10)

    async def _ask(self, payload: bytes) -> None:
        """Send a request; a response or a close ends it."""
        with contextlib.suppress(OSError, Cut):
            reader, writer = await connect(self._port)
            try:
                writer.write(payload)
                answer = await head(reader, writer, 0.0)
                self.statuses[answer.status] += 1
                await answer.body()
            finally:
                writer.transport.abort()


async def _run(port: int, body_bytes: int, connections: int) -> None:
    os.nice(_NICE)
    payloads = [request_bytes(make(body_bytes), f"/v1/{api.value}", headers=_KEY) for api, _, make in SHAPES.values()]
    while await asyncio.to_thread(sys.stdin.readline):
        attacks = _Attacks(port, payloads, connections)
        async with attacks.running():
            _answer({})
            await asyncio.to_thread(sys.stdin.readline)
        _answer({"bodies": attacks.bodies, "statuses": attacks.statuses})


def _answer(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_run(*map(int, sys.argv[1:4])))
