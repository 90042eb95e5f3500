"""Four gateways that share a limit over a real Redis server in trouble, and the cost of a thousand for the server.

All are in this process, with a connection each. Of the thousand, each sends the asks of a gateway with 16 replicas and
one busy pool: a gauge in every period, and once a second a slice of 30 bins, switches and a lease. Units: seconds.
"""

import asyncio
import random
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import redis

from gateway.admission.caller_limits import CallerLimits
from gateway.share.address import read_address
from gateway.share.messages import BIN_S, Ask, BucketAsk, GaugeAsk, SliceAsk, SwitchesAsk, pack
from gateway.share.redis import LIBRARY, Login, RedisEngine
from gateway.share.sync import CORE_SHARE, batch_s
from leased_fleet import FleetProcess, Meter, offer
from redis_server import RedisServer, redis_server
from unused_ports import unused_port

REDIS_LIMIT: Final = 3000  # a minute
TROUBLES: Final = ("none", "killed", "hung", "slow")
_PROCESSES: Final = 4
_BURST: Final = 1.2  # of the limit, offered at first, so that it is used up
_BURST_PARTS: Final = 0.6
_DELAY_S: Final = 0.1  # each way
_REPLICAS: Final = 16
_BINS: Final = 30
_BATCHES: Final = 100
_PARTS: Final = b"*7\r\n"  # of a command
_WARM_S: Final = 2.0
_PERIOD_S: Final = 0.1


class ProcessesCost(NamedTuple):
    """Measured over all processes.

    Attributes:
        batch_s: CPU time of the server for a batch.
        batch_bytes: bytes of a batch, both ways.
        sent: number of batches sent per second and process; fewer than `due` where this machine is too slow.
        due: number of batches per second and process that so many processes send.
    """

    batch_s: float
    batch_bytes: float
    sent: float
    due: float


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


def _arguments(*arguments: str | bytes) -> bytes:
    encoded = [each.encode() if isinstance(each, str) else each for each in arguments]
    return b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in encoded)


def _batches(rand: random.Random, *, is_full: bool) -> list[bytes]:
    """Return the last arguments of different batches."""
    batches = []
    for _ in range(_BATCHES):
        rows = {f"10.0.3.{replica}:8000": (rand.randrange(9), rand.randrange(9000)) for replica in range(_REPLICAS)}
        asks: list[Ask] = [GaugeAsk("llama-70b:16", rows)]
        if is_full:
            added = {f"e{rand.randrange(380, 460)}": rand.randrange(1, 9) for _ in range(_BINS)}
            since = int(datetime.now(UTC).timestamp() / BIN_S)
            asks += [SliceAsk("llama-70b", added, since), SwitchesAsk(), BucketAsk("quota:azure", 60_000, 60, want=10)]
        batches.append(_arguments(*pack(asks)))
    return batches


async def crowd(folder: Path, processes: int, seconds: float) -> ProcessesCost:
    """Measure a number of processes for some time."""
    loop, rand = asyncio.get_running_loop(), random.Random(1)
    rows = dict.fromkeys(map(str, range(_REPLICAS)), (0,))
    period_s = max(_PERIOD_S, processes * batch_s([GaugeAsk("", rows)]) / CORE_SHARE)
    with redis_server(folder, "--maxclients", str(processes + 100)) as server:
        admin = redis.Redis(unix_socket_path=str(server.socket), protocol=2)
        admin.function_load(LIBRARY, replace=True)
        path = str(server.socket)
        connections = [(await loop.create_unix_connection(asyncio.Protocol, path))[0] for _ in range(processes)]
        names = [
            _arguments("FCALL", "ttft2_ask", "1", "ttft2:{prod}:processes", f"process-{process:04}")
            for process in range(processes)
        ]
        loads, all_kinds, bin_s = _batches(rand, is_full=False), _batches(rand, is_full=True), loop.time()
        due = deque((loop.time() + period_s * place / processes, place) for place in range(processes))
        full_s = [loop.time() + place / processes for place in range(processes)]
        warm_s = loop.time() + _WARM_S
        end_s, before = warm_s + seconds, dict[str, float]()
        while (now_s := loop.time()) < end_s:
            if not before and now_s >= warm_s:
                before = _counts(admin)
            if now_s >= bin_s + 1.0:
                all_kinds, bin_s = _batches(rand, is_full=True), now_s
            while due and due[0][0] <= now_s:
                at_s, place = due.popleft()
                batches = loads
                if now_s >= full_s[place]:
                    batches, full_s[place] = all_kinds, full_s[place] + 1.0
                connections[place].write(_PARTS + names[place] + batches[rand.randrange(_BATCHES)])
                due.append((max(at_s + period_s, now_s), place))
            await asyncio.sleep(0.001)
        after = _counts(admin)
        admin.close()
        for each in connections:
            each.abort()
        await asyncio.sleep(0)
    spent = {name: after[name] - before[name] for name in before}
    calls = spent["calls"]
    return ProcessesCost(spent["cpu_s"] / calls, spent["bytes"] / calls, calls / seconds / processes, 1 / period_s)


def _counts(admin: redis.Redis) -> dict[str, float]:
    info = admin.info("everything")
    return {
        "cpu_s": info["used_cpu_user"] + info["used_cpu_sys"],
        "bytes": info["total_net_input_bytes"] + info["total_net_output_bytes"],
        "calls": info["cmdstat_fcall"]["calls"],
    }
