"""Instructions of a request and of a token, of the gateway and of nginx, each alone on its (simulated) processor.

A count repeats within 2 to 3 per cent on a busy machine, where CPU time does not. The gateway runs on the event loop
that it chooses, and then without uvloop if that is the loop. Units: thousands of instructions outside the kernel.
"""

import asyncio
import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from streaming_bench.errors import BenchError
from streaming_bench.research.overhead import proxies
from streaming_bench.research.overhead.backend import STEPPED
from streaming_bench.research.overhead.client import LoadResult, StreamLoad, send
from streaming_bench.research.overhead.counters import (
    CounterReader,
    callgrind_command,
    callgrind_counter,
    hardware_counter,
    has_hardware_counter,
)
from streaming_bench.research.overhead.processes import (
    KEY,
    REPLICAS,
    Backend,
    Machine,
    ProxyProcess,
    backend,
    gateway,
    limited_settings,
    settings,
)
from streaming_bench.research.overhead.rows import CostRow

_WARM: Final = StreamLoad(streams=16, tokens=20, requests=480, key=KEY)  # plans are made, caches are filled
_SHORT: Final = replace(_WARM, requests=192)
_LARGE: Final = replace(_WARM, requests=64, prompt_bytes=100_000)
_LONE: Final = StreamLoad(streams=1, tokens=100, gap_ms=STEPPED, key=KEY)  # each token is relayed alone
_LONG: Final = replace(_LONE, tokens=1100)
_IDLE_S: Final = 2.0
_BLOCKED: Final = 'raise ImportError("the bench measures without uvloop")\n'


class CountedProcess(NamedTuple):
    """A running process with a count of its instructions.

    Attributes:
        target: the process.
        read: returns its instructions since its start.
        idle_per_s: instructions in a second without requests.
    """

    target: ProxyProcess
    read: CounterReader
    idle_per_s: float


class CountingBench:
    """Starts counted processes in front of one back end, and sends loads to them."""

    def __init__(self, machine: Machine, back: Backend, folder: Path, rounds: int) -> None:
        self.machine = machine
        self.back = back
        self._folder = folder
        self._rounds = rounds
        self.wrapper = () if has_hardware_counter() else callgrind_command(folder)

    @contextlib.contextmanager
    def counted(self, target: ProxyProcess) -> Iterator[CountedProcess]:
        """Warm a process up and count its instructions while inside."""
        self._send(_WARM, target)
        counter = callgrind_counter(target.pid, self._folder) if self.wrapper else hardware_counter(target.pid)
        with counter as read:
            if read is None:
                raise BenchError("the hardware counters are not readable any more; run again")
            self._send(_SHORT, target)  # translated code is counted differently at first
            before = read()
            asyncio.run(asyncio.sleep(_IDLE_S))
            yield CountedProcess(target, read, (read() - before) / _IDLE_S)

    def request(self, process: CountedProcess, load: StreamLoad = _SHORT) -> float:
        """Return the thousands of instructions of a request of this load: the median of the rounds."""
        return statistics.median(
            count / seen.requests / 1000 for count, seen in (self._count(load, process) for _ in range(self._rounds))
        )

    def token(self, process: CountedProcess) -> float:
        """Return the thousands of instructions of a token that is relayed alone: the difference of two lengths."""
        tokens, found = _LONG.tokens - _LONE.tokens, []
        for _ in range(self._rounds):
            (few, _), (many, _) = self._count(_LONE, process), self._count(_LONG, process)
            found.append((many - few) / tokens / 1000)
        return statistics.median(found)

    def _count(self, load: StreamLoad, process: CountedProcess) -> tuple[float, LoadResult]:
        """Return the instructions of a load without the instructions of the idle process, and the answers."""
        before = process.read()
        seen, length_s = self._send(load, process.target)
        return process.read() - before - length_s * process.idle_per_s, seen

    def _send(self, load: StreamLoad, target: ProxyProcess) -> tuple[LoadResult, float]:
        self.back.pace(load.gap_ms)
        seen, length_s = asyncio.run(self._timed(load, target))
        if seen.errors:
            raise BenchError(f"{seen.errors} of {seen.errors + seen.requests} answers failed under {load}")
        return seen, length_s

    async def _timed(self, load: StreamLoad, target: ProxyProcess) -> tuple[LoadResult, float]:
        on_token = self.back.step if load.gap_ms == STEPPED else lambda: None
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        seen = await send(load, target.port, on_token)
        return seen, loop.time() - begin_s


def rows(machine: Machine, rounds: int) -> Iterator[CostRow]:
    """Measure all rows."""
    with tempfile.TemporaryDirectory(prefix="ttft-count-") as folder, backend(REPLICAS) as back:
        bench = CountingBench(machine, back, Path(folder), rounds)
        theirs = _nginx_figures(bench)
        loop, figures = _gateway_figures(bench)
        yield from _rows(loop, figures, theirs)
        if loop == "uvloop":
            yield from _rows(*_gateway_figures(bench, without_uvloop(Path(folder))), theirs)


def _rows(loop: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> Iterator[CostRow]:
    for name, figure in ours.items():
        yield CostRow(f"{name}, {loop}", "k instructions", figure, None, theirs.get(name))


_PLAIN: Final[Mapping[str, Callable[[CountingBench, CountedProcess], float]]] = {
    "request of 20 tokens": CountingBench.request,
    "paced token": CountingBench.token,
    "request of 100 kB": lambda bench, process: bench.request(process, _LARGE),
}


def _nginx_figures(bench: CountingBench) -> dict[str, float]:
    """Return the figures of nginx; empty if it is not installed."""
    if proxies.find(proxies.NGINX) is None:
        return {}

    def start(ports: list[int], *, tls: bool) -> contextlib.AbstractContextManager[ProxyProcess]:
        return proxies.run(bench.machine, proxies.NGINX, ports, tls=tls, wrapper=bench.wrapper)

    with start(bench.back.ports, tls=False) as target, bench.counted(target) as process:
        figures = {name: measured(bench, process) for name, measured in _PLAIN.items()}
    if bench.back.tls_ports:
        with start(bench.back.tls_ports, tls=True) as target, bench.counted(target) as process:
            figures |= _tls_figures(bench.token(process), figures)
    return figures


def _gateway_figures(
    bench: CountingBench, environment: Mapping[str, str] | None = None
) -> tuple[str, dict[str, float]]:
    """Return the gateway's event loop and its figures; with an environment, the figures of one configuration."""
    back = bench.back

    def start(
        config: Mapping[str, object], certificate: str | None = None
    ) -> contextlib.AbstractContextManager[ProxyProcess]:
        return gateway(bench.machine, config, certificate, environment=environment, wrapper=bench.wrapper)

    with start(settings(back.ports)) as target, bench.counted(target) as process:
        loop = event_loop(target.pid)
        figures = {name: measured(bench, process) for name, measured in _PLAIN.items()}
    if environment is not None:
        return loop, figures
    with start(limited_settings(back.ports)) as target, bench.counted(target) as process:
        figures["request with keys, limits, prices, quotas"] = bench.request(process)
    if back.tls_ports:
        with start(settings(back.tls_ports, tls=True), back.certificate) as target, bench.counted(target) as process:
            figures |= _tls_figures(bench.token(process), figures)
    return loop, figures


def _tls_figures(token: float, plain: Mapping[str, float]) -> dict[str, float]:
    return {"paced token, TLS upstream": token, "the same, more than without TLS": token - plain["paced token"]}


def event_loop(pid: int) -> str:
    """Return the name of a gateway's event loop: uvloop if its library is loaded, else asyncio."""
    return "uvloop" if "uvloop" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8") else "asyncio"


def without_uvloop(folder: Path) -> dict[str, str]:
    """Return environment variables with which uvloop cannot be imported."""
    (folder / "uvloop.py").write_text(_BLOCKED, encoding="utf-8")
    others = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{others}" if others else str(folder)}
