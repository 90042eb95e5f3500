"""Several workers, measured: spread of connections, failures, signals, memory and CPU. Real processes and sockets.

Units: seconds, bytes.
"""

import asyncio
import os
import re
import signal
import tempfile
from pathlib import Path
from typing import NamedTuple

from spawned import request, stream, until
from worker_site import ended, site

_REFUSED_EVERY_S = 0.02


class Spread(NamedTuple):
    """Connections of the workers: of the busiest, and the mean."""

    most: int
    mean: float

    @property
    def ratio(self) -> float:
        """Connections of the busiest worker, as a multiple of the mean."""
        return self.most / self.mean


class Killed(NamedTuple):
    """Result of killing a worker.

    Attributes:
        own: its streams.
        broken: streams that broke, of all workers.
        streams: all streams.
        refused: connections that were refused meanwhile.
        tried: connections that were tried meanwhile.
        back_s: time until a new worker took connections.
    """

    own: int
    broken: int
    streams: int
    refused: int
    tried: int
    back_s: float


class Usage(NamedTuple):
    """Use of the machine by requests.

    Attributes:
        per_s: requests a second.
        cpu_s: CPU time of a request, of all processes of the gateway.
        pss_bytes: memory of each worker, shared pages in part.
    """

    per_s: float
    cpu_s: float
    pss_bytes: list[int]


async def spread(workers: int, count: int, *, pause_s: float = 0.0) -> Spread:
    """Open connections, one after another with a pause or all at the same time; return how the workers share them."""
    with tempfile.TemporaryDirectory() as folder:
        async with site(Path(folder), workers) as home:
            if pause_s:
                opened = []
                for _ in range(count):
                    opened.append(await asyncio.open_connection("127.0.0.1", home.port))
                    await asyncio.sleep(pause_s)
            else:
                opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", home.port) for _ in range(count)))

            async def complete() -> bool:
                return sum(await home.connections()) >= count

            await until(complete)
            connections = await home.connections()
            for _, writer in opened:
                writer.close()
            return Spread(max(connections), sum(connections) / workers)


async def killed(workers: int, count: int) -> Killed:
    """Kill a worker under streams, and connect all the while."""
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as folder:
        async with site(Path(folder), workers, ttft="20ms", gap="20ms", tokens=250) as home:
            streams = [await stream(home.port) for _ in range(count)]
            own = (await home.connections())[0]
            ending = asyncio.gather(*(ended(*each) for each in streams))
            process, begin_s = await home.process(1), loop.time()
            os.kill(process, signal.SIGKILL)
            trying = asyncio.gather(*(_connects(home.port, number) for number in range(150)))

            async def replaced() -> bool:
                return await home.process(1) not in (0, process)

            await until(replaced)
            back_s = loop.time() - begin_s
            tried = await trying
            whole = await ending
            return Killed(own, whole.count(False), count, tried.count(False), len(tried), back_s)


async def _connects(port: int, number: int) -> bool:
    await asyncio.sleep(number * _REFUSED_EVERY_S)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("m", 2))
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
    except (OSError, asyncio.IncompleteReadError):
        return False
    return b" 200 " in head


async def broken_by(number: signal.Signals, workers: int, count: int) -> int:
    """Send a signal under streams; return the number of those that broke."""
    with tempfile.TemporaryDirectory() as folder:
        async with site(Path(folder), workers, ttft="20ms", gap="20ms", tokens=200) as home:
            streams = [await stream(home.port) for _ in range(count)]
            home.gateway.process.send_signal(number)
            return (await asyncio.gather(*(ended(*each) for each in streams))).count(False)


async def usage(workers: int, seconds: float, clients: int) -> Usage:
    """Send short requests over kept-alive connections, as fast as they are answered; the best of four rounds counts."""
    loop, rates, costs_s = asyncio.get_running_loop(), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        async with site(Path(folder), workers, ttft="1ms", gap="1ms", tokens=4) as home:
            top = home.gateway.process.pid
            for _ in range(4):
                before_s, begin_s = _cpu_s(top), loop.time()
                counts = await asyncio.gather(*(_asks(home.port, begin_s + seconds) for _ in range(clients)))
                rates.append(sum(counts) / (loop.time() - begin_s))
                costs_s.append((_cpu_s(top) - before_s) / sum(counts))
            processes = [row["process"] for row in (await home.get("/admin/workers"))["workers"]]
            return Usage(max(rates), min(costs_s), [_pss_bytes(process) for process in processes])


async def _asks(port: int, until_s: float) -> int:
    """Ask until then; return the number of answers."""
    loop, count = asyncio.get_running_loop(), 0
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while loop.time() < until_s:
        writer.write(request("m", 4))
        await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        count += 1
    writer.close()
    return count


def _cpu_s(top: int) -> float:
    """Return the CPU time of a process and of its living children."""
    tasks = Path(f"/proc/{top}/task/{top}/children").read_text(encoding="ascii").split()
    ticks = 0
    for process in (str(top), *tasks):
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _pss_bytes(process: int) -> int:
    text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    return sum(int(kilobytes) * 1024 for kilobytes in re.findall(r"^Pss: +(\d+) kB", text, re.MULTILINE))
