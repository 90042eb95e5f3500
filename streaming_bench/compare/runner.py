"""Measures the runs of a comparison, one after the other, over real sockets.

A run is a gateway process with one policy, or no gateway, in front of the same replicas: warm-up, measurement, and the
replicas' counts. The processes of the replicas, the gateway and the bench share the cores; nothing else should run.
Units: seconds.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from streaming_bench.compare.experiment import Experiment
from streaming_bench.compare.gateway_process import SIGNALS
from streaming_bench.compare.processes import MODEL, Counts, Fleet, gateway, learned_delay_ms
from streaming_bench.errors import BenchError
from streaming_bench.load.client import Client, PlannedRequest, Target
from streaming_bench.load.pacing import LoopLag, open_loop
from streaming_bench.processes import GatewayProcess
from streaming_bench.report.records import Record, Run
from streaming_bench.report.stats import quantile
from ttft_gateway.apis.base import Call

_SETTLE_S_MAX: Final = 10.0
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Specification of one run.

    Attributes:
        mode: bytes that replicas send before the first token; a key of `records.MODES`.
        policy: one of `experiment.POLICIES`.
        warm: number of warm-up requests, which are not recorded.
        count: number of recorded requests.
        part: part of the comparison, "headers" or "episode".
        slow_s: span in which half of the replicas are slow, since the first recorded request; None for no such span.
    """

    mode: str
    policy: str
    warm: int
    count: int
    part: str = "headers"
    slow_s: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """Name in tables and files."""
        return f"{self.policy}, {self.mode}" if self.part == "headers" else f"{self.policy}, {self.part}"


def measure_run(fleet: Fleet, experiment: Experiment, spec: RunSpec, progress: Callable[[int], None]) -> Run:
    """Measure one run.

    Args:
        progress: called with the number of finished requests.
    """
    fleet.configure([{"episodes": [], "first_comment": "", **profile} for profile in experiment.profiles(spec.mode)])
    with _target(fleet, experiment, spec) as process, asyncio.Runner() as runner:
        return runner.run(_run(fleet, experiment, spec, process, progress))


@contextlib.contextmanager
def _target(fleet: Fleet, experiment: Experiment, spec: RunSpec) -> Iterator[GatewayProcess | None]:
    if spec.policy == "direct":
        yield None
    else:
        signal = spec.policy if spec.policy in SIGNALS else None
        with gateway(fleet.urls, experiment.hedge(spec.policy), signal) as process:
            yield process


async def _run(
    fleet: Fleet,
    experiment: Experiment,
    spec: RunSpec,
    process: GatewayProcess | None,
    progress: Callable[[int], None],
) -> Run:
    loop = asyncio.get_running_loop()
    run = Run(spec.name)
    over = 0

    def done(record: Record) -> None:
        nonlocal over
        over += 1
        progress(over)
        if measuring:
            run.records.append(record)

    async with asyncio.TaskGroup() as tasks:
        measuring, warm_s = False, loop.time()
        urls = fleet.urls if process is None else [process.url]
        clients = [Client(Target(url, MODEL, timeout_s=30.0), tasks, warm_s) for url in urls]
        try:
            await open_loop(_RoundRobin(clients), experiment.requests(spec.warm, "warm"), warm_s, done)
            before = await _settled(fleet)
            if spec.slow_s is not None:
                slow_from_s, slow_to_s = spec.slow_s
                since_s = loop.time() - warm_s
                fleet.slow_down(
                    experiment.replicas // 2, experiment.slowness, since_s + slow_from_s, slow_to_s - slow_from_s
                )
            measuring, lag, start_s = True, LoopLag(), loop.time()
            for client in clients:
                client.begin_s = start_s
            await open_loop(_RoundRobin(clients), experiment.requests(spec.count, "measured"), start_s, done)
            lag.stop()
            after = await _settled(fleet)
        finally:
            for client in clients:
                client.close()
    run.records.sort(key=lambda record: record.number)
    run.facts = {
        "part": spec.part,
        "mode": spec.mode,
        "policy": spec.policy,
        "warm_requests": spec.warm,
        **({} if spec.slow_s is None else {"slow_from_s": spec.slow_s[0], "slow_to_s": spec.slow_s[1]}),
        "upstream_requests": after.requests - before.requests,
        "upstream_tokens": after.tokens - before.tokens,
        "cancelled": after.cancelled - before.cancelled,
        "learned_delay_ms": None if process is None else learned_delay_ms(process),
        "lag_p99_ms": 1000 * quantile(lag.lags_s, 0.99).value,
    }
    return run


async def _settled(fleet: Fleet) -> Counts:
    """Return the counts once no replica has a request in flight."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _SETTLE_S_MAX
    while (counts := fleet.counts()).in_flight:
        if loop.time() > end_s:
            raise BenchError(f"replicas still have {counts.in_flight} requests in flight after {_SETTLE_S_MAX:g} s")
        await asyncio.sleep(_POLL_S)
    return counts


class _RoundRobin:
    """Several clients that get requests in turn: one, or for `direct` one for each replica."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients
        self._turn = cycle(clients)

    def call(self, planned: PlannedRequest) -> Call:
        return self._clients[0].call(planned)

    def send(self, planned: PlannedRequest, call: Call, due_s: float, done: Callable[[Record], None]) -> None:
        next(self._turn).send(planned, call, due_s, done)

    @property
    def in_flight(self) -> int:
        return sum(client.in_flight for client in self._clients)

    async def idle(self) -> None:
        for client in self._clients:
            await client.idle()
