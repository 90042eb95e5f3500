"""Four gateways that share a limit over a real Redis server in trouble; all are in this process. Units: seconds."""

import asyncio
import random
from pathlib import Path
from typing import Final, NamedTuple

from gateway.admission.caller_limits import CallerLimits
from gateway.share.address import read_address
from gateway.share.redis import Login, RedisEngine
from leased_fleet import FleetProcess, Meter, offer
from redis_server import RedisServer, redis_server
from unused_ports import unused_port

REDIS_LIMIT: Final = 3000  # a minute
TROUBLES: Final = ("none", "killed", "hung", "slow")
_PROCESSES: Final = 4
_BURST: Final = 1.2  # of the limit, offered at first, so that it is used up
_BURST_PARTS: Final = 0.6
_DELAY_S: Final = 0.1  # each way


class LimitSeen(NamedTuple):
    """What came of a limit.

    Attributes:
        over: deepest debt of one true bucket that is charged for all that was admitted.
        admitted: part of what such a bucket allows.
        wait_s: longest wait of an admitted request.
        errors: number of bugs, and of rejections for another reason than the limit.
        back_s: time after the trouble until all processes are answered again.
    """

    over: float
    admitted: float
    wait_s: float
    errors: int
    back_s: float


class _Wire:
    """A way to the server that may be slow.

    Attributes:
        delay_s: time that bytes take.
        connections: number of open connections.
    """

    def __init__(self, server: RedisServer) -> None:
        self.delay_s = 0.0
        self.connections = 0
        self._server = server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass the bytes of one connection on."""
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._server.port)
        except OSError:
            writer.close()
            return
        self.connections += 1
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pass(reader, back))
            group.create_task(self._pass(there, writer))
        self.connections -= 1

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        try:
            while content := await reader.read(65_536):
                loop.call_later(self.delay_s, writer.write, content)
        except OSError:
            pass
        writer.close()


async def shared(folder: Path, trouble: str, limit: int = REDIS_LIMIT, part_s: float = 5.0) -> LimitSeen:
    """Offer four processes twice the limit of a key, before, during and after a trouble.

    Args:
        folder: for the server's files.
        trouble: one of TROUBLES.
        limit: requests a minute.
        part_s: time before, during and after the trouble.
    """
    loop, rand = asyncio.get_running_loop(), random.Random(trouble)
    with redis_server(folder) as server:
        wire, port = _Wire(server), unused_port()
        address = read_address(f"redis://127.0.0.1:{port}")
        engines = [
            RedisEngine(address, Login(), "prod", f"process-{place}", rand.random) for place in range(_PROCESSES)
        ]
        processes = [FleetProcess(engine, CallerLimits(limit, None, None), loop, rand) for engine in engines]
        back_s = 0.0
        async with await asyncio.start_server(wire.serve, "127.0.0.1", port), asyncio.TaskGroup() as group:
            for engine in engines:
                group.create_task(engine.run())
            while any(engine.fault for engine in engines):
                await asyncio.sleep(0.01)
            await asyncio.gather(*(process.asker.start() for process in processes))
            meter = Meter(limit, loop.time())
            burst_s = _BURST_PARTS * part_s
            await offer(processes, [_BURST * limit / burst_s / _PROCESSES] * _PROCESSES, burst_s, meter, 0)
            load = group.create_task(offer(processes, [2 * limit / 60 / _PROCESSES] * _PROCESSES, 3 * part_s, meter, 1))
            await asyncio.sleep(part_s)
            _begin(trouble, server, wire)
            await asyncio.sleep(part_s)
            _end(trouble, server, wire)
            ended_s = loop.time()
            while any(process.fleet.is_alone for process in processes):
                await asyncio.sleep(0.01)
            back_s = loop.time() - ended_s
            await load
            now_s = loop.time()
            for process in processes:
                process.asker.close()
        while wire.connections:
            await asyncio.sleep(0.01)
    waits = [wait_s for process in processes for wait_s in process.waits]
    refused = sum(
        number for process in processes for code, number in process.refused.items() if code != "rate_limit_exceeded"
    )
    errors = refused + sum(len(process.errors) for process in processes)
    return LimitSeen(meter.over, len(waits) / meter.allowed(now_s), max(waits), errors, back_s)


def _begin(trouble: str, server: RedisServer, wire: _Wire) -> None:
    if trouble == "killed":
        server.kill()
    elif trouble == "hung":
        server.hang()
    elif trouble == "slow":
        wire.delay_s = _DELAY_S


def _end(trouble: str, server: RedisServer, wire: _Wire) -> None:
    if trouble == "killed":
        server.start()
    elif trouble == "hung":
        server.go_on()
    wire.delay_s = 0.0
