"""Processes of a fleet with one engine: `engine SOCKET`, and `process SOCKET NAME LIMIT PER_S START_S FOR_S SEED`.

The engine is the hub of one host on a Unix socket; SIGUSR1 delays its replies by 200 ms, SIGUSR2 ends that. A process
has its own leases, asker and traffic, and prints what it admitted as one line of JSON. Units: seconds of the machine's
monotonic clock.
"""

import asyncio
import json
import random
import signal
import sys
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, cast, get_args

import msgspec

from gateway.admission.caller_limits import CallerLimits
from gateway.share.asker import AskResult
from gateway.share.hub import ShareHub
from gateway.share.messages import Answered, Ask, Reply
from leased_fleet import FleetProcess, Meter

SLOW_S: Final = 0.2
_LENGTH_BYTES: Final = 4
_CONNECT_S: Final = 0.05  # between attempts

_encode = msgspec.msgpack.Encoder().encode
_decode_asks = msgspec.msgpack.Decoder(tuple[str, list[Ask]]).decode
_decode_reply = msgspec.msgpack.Decoder(Reply).decode


class Framed(asyncio.Protocol):
    """A connection that carries messages with their length."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._received[:_LENGTH_BYTES], "little")
            if len(self._received) < end:
                return
            message = bytes(self._received[_LENGTH_BYTES:end])
            del self._received[:end]
            self.on_message(message)

    def on_message(self, message: bytes) -> None:
        """Receive a message."""

    def send(self, message: bytes) -> None:
        """Send a message, if there is a connection."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(len(message).to_bytes(_LENGTH_BYTES, "little") + message)


class EngineConnection(Framed):
    """A process's connection, in the engine."""

    hub: ShareHub
    delay_s = 0.0

    def on_message(self, message: bytes) -> None:
        loop = asyncio.get_running_loop()
        process, asks = _decode_asks(message)
        reply = _encode(self.hub.answer(loop.time(), process, asks))
        if self.delay_s:
            loop.call_later(self.delay_s, self.send, reply)
        else:
            self.send(reply)


async def serve(path: str) -> None:
    """Answer on a Unix socket until the process is killed."""
    EngineConnection.hub = ShareHub()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: setattr(EngineConnection, "delay_s", SLOW_S))
    loop.add_signal_handler(signal.SIGUSR2, lambda: setattr(EngineConnection, "delay_s", 0.0))
    server = await loop.create_unix_server(EngineConnection, path)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


class SocketEngine(Framed):
    """The connection of one process, which connects again and again."""

    def __init__(self, path: str, process: str) -> None:
        super().__init__()
        self._path = path
        self._process = process
        self._waiting: deque[Answered] = deque()
        self._lost = asyncio.Event()

    async def stay_connected(self) -> None:
        """Connect, and again after each end."""
        loop = asyncio.get_running_loop()
        while True:
            self._lost.clear()
            try:
                await loop.create_unix_connection(lambda: self, self._path)
            except OSError:
                await asyncio.sleep(_CONNECT_S)
            else:
                await self._lost.wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._lost.set()
        self._received.clear()
        while self._waiting:
            self._waiting.popleft()(None)

    def on_message(self, message: bytes) -> None:
        self._waiting.popleft()(_decode_reply(message))

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        """Send a batch."""
        if self.transport is None or self.transport.is_closing():
            asyncio.get_running_loop().call_soon(answered, None)
            return
        self._waiting.append(answered)
        self.send(_encode((self._process, list(asks))))

    def close(self) -> None:
        """Leave the connection to the end of the process."""


async def process(path: str, name: str, limit: int, per_s: float, start_s: float, for_s: float, seed: str) -> None:
    """Offer traffic to one gateway, and print what it did with it."""
    async with asyncio.TaskGroup() as tasks:
        engine = SocketEngine(path, name)
        connecting = tasks.create_task(engine.stay_connected())
        await asyncio.sleep(0.2)
        told = await offer(engine, limit, per_s, start_s, for_s, random.Random(f"{seed} {name}"))
        connecting.cancel()
    sys.stdout.write(json.dumps(told) + "\n")


async def offer(
    engine: SocketEngine, limit: int, per_s: float, start_s: float, for_s: float, rand: random.Random
) -> dict[str, object]:
    """Offer the traffic, and return what was done with it."""
    loop = asyncio.get_running_loop()
    one = FleetProcess(engine, CallerLimits(requests_per_min=limit), loop, rand)
    results, took_s = Counter[AskResult](), list[float]()

    def on_result(result: AskResult, reply_s: float | None) -> None:
        results[result] += 1
        took_s.append(reply_s or 0.0)

    one.asker.on_result = on_result
    await one.asker.start()
    await asyncio.sleep(start_s - loop.time())
    meter = Meter(limit, start_s)
    at_s = start_s
    while True:  # from a clock of its own, so that a late process offers as much
        at_s += rand.expovariate(per_s)
        if at_s >= start_s + for_s:
            break
        await asyncio.sleep(max(0.0, at_s - loop.time()))
        one.request(meter)
    await asyncio.sleep(0.3)
    return {
        "admitted": meter.admitted,
        "longest_wait_s": max(one.waits, default=0.0),
        "refused": one.refused,
        "bugs": [repr(error) for error in one.errors],
        "changes": one.changes,
        "asks": {result: results[result] for result in get_args(AskResult)},
        "ask_s": sum(took_s) / max(1, results["ok"]),
    }


def main() -> None:
    """Run the role that the command line names."""
    role, path, *rest = sys.argv[1:]
    if role == "engine":
        asyncio.run(serve(path))
    else:
        name, limit, per_s, start_s, for_s, seed = rest
        asyncio.run(process(path, name, int(limit), float(per_s), float(start_s), float(for_s), seed))


if __name__ == "__main__":
    main()
