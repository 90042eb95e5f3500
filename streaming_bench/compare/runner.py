"""Runs the rows of a comparison, one after the other, over real sockets.

A row is a gateway process with one policy, or no gateway at all, before the same fleet of replicas: warmed up,
measured, counted by the replicas. Nothing else runs meanwhile: the replicas' process, the gateway's and this one share
the cores. Units: seconds.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from providers.base import Call
from streaming_bench.compare.experiment import Experiment
from streaming_bench.compare.gateway_process import SIGNALS
from streaming_bench.compare.processes import Counts, Fleet, Gateway, gateway
from streaming_bench.errors import BenchError
from streaming_bench.load.client import Client, PlannedRequest, Target
from streaming_bench.load.pacing import LoopLag, open_loop
from streaming_bench.report.records import Record, Run
from streaming_bench.report.stats import quantile

_SETTLE_S_MAX: Final = 10.0
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run.

    Attributes:
        mode: what replicas send before the first token, of `records.MODES`.
        policy: of `experiment.POLICIES`.
        warm: requests whose times are not kept.
        count: requests after those.
        part: of the comparison: "headers" or "episode".
        slow_s: when half of the replicas are slow, from the beginning of what is measured; None: never.
    """

    mode: str
    policy: str
    warm: int
    count: int
    part: str = "headers"
    slow_s: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """For tables and files."""
        return f"{self.policy}, {self.mode}" if self.part == "headers" else f"{self.policy}, {self.part}"


def measure_run(fleet: Fleet, scene: Experiment, row: RunSpec, progress: Callable[[int], None]) -> Run:
    """Run one row.

    Args:
        fleet: the replicas.
        scene: what they are like.
        row: what is run.
        progress: hears how many requests are over.
    """
    fleet.configure([{"episodes": [], "first_comment": "", **profile} for profile in scene.profiles(row.mode)])
    with _target(fleet, scene, row) as found, asyncio.Runner() as runner:
        return runner.run(_run(fleet, scene, row, found, progress))


@contextlib.contextmanager
def _target(fleet: Fleet, scene: Experiment, row: RunSpec) -> Iterator[Gateway | None]:
    if row.policy == "direct":
        yield None
    else:
        with gateway(fleet.urls, scene.hedge(row.policy), row.policy if row.policy in SIGNALS else None) as found:
            yield found


async def _run(
    fleet: Fleet, scene: Experiment, row: RunSpec, found: Gateway | None, progress: Callable[[int], None]
) -> Run:
    loop = asyncio.get_running_loop()
    run = Run(row.name)
    over = 0

    def done(record: Record) -> None:
        nonlocal over
        over += 1
        progress(over)
        if measuring:
            run.records.append(record)

    async with asyncio.TaskGroup() as tasks:
        begin_s = loop.time()
        urls, model = (fleet.urls, "any") if found is None else ([found.url], found.model)
        clients = [Client(Target(url, model, timeout_s=30.0), tasks, begin_s) for url in urls]
        try:
            measuring, warm_s = False, loop.time()
            await open_loop(_RoundRobin(clients), scene.requests(row.warm, "warm"), warm_s, done)
            before = await _settled(fleet)
            if row.slow_s is not None:
                slow_from_s, slow_to_s = row.slow_s
                since_s = loop.time() - warm_s
                fleet.slow_down(scene.replicas // 2, scene.slowness, since_s + slow_from_s, slow_to_s - slow_from_s)
            measuring = True
            lag, start_s = LoopLag(), loop.time()
            await open_loop(_RoundRobin(clients), scene.requests(row.count, "measured"), start_s, done)
            lag.stop()
            after = await _settled(fleet)
        finally:
            for client in clients:
                client.close()
    for record in run.records:
        _shift(record, start_s - begin_s)
    run.records.sort(key=lambda record: record.number)
    run.facts = {
        "part": row.part,
        "mode": row.mode,
        "policy": row.policy,
        "warm_requests": row.warm,
        **({} if row.slow_s is None else {"slow_from_s": row.slow_s[0], "slow_to_s": row.slow_s[1]}),
        "upstream_requests": after.requests - before.requests,
        "upstream_tokens": after.tokens - before.tokens,
        "cancelled": after.cancelled - before.cancelled,
        "learned_delay_ms": None if found is None else found.learned_delay_ms(),
        "lag_p99_ms": 1000 * quantile(lag.lags_s, 0.99).value,
    }
    return run


def _shift(record: Record, by_s: float) -> None:
    """Let a record's times count from the beginning of what was measured."""
    record.due_s -= by_s
    record.sent_s -= by_s
    record.end_s -= by_s
    for name in ("headers_s", "byte_s", "content_s", "last_s"):
        at_s = getattr(record, name)
        if at_s is not None:
            setattr(record, name, at_s - by_s)


async def _settled(fleet: Fleet) -> Counts:
    """The counts once no replica works on anything."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _SETTLE_S_MAX
    while (counts := fleet.counts()).in_flight:
        if loop.time() > end_s:
            raise BenchError(f"replicas still worked on {counts.in_flight} requests after {_SETTLE_S_MAX:g} s")
        await asyncio.sleep(_POLL_S)
    return counts


class _RoundRobin:
    """Several clients, each of which gets the next request: one, or for `direct` one for each replica."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients
        self._turn = cycle(clients)

    def call(self, planned: PlannedRequest) -> Call:
        """See `Client.call`."""
        return self._clients[0].call(planned)

    def send(self, planned: PlannedRequest, call: Call, due_s: float, done: Callable[[Record], None]) -> None:
        """See `Client.send`."""
        next(self._turn).send(planned, call, due_s, done)

    @property
    def under_way(self) -> int:
        """See `Client.under_way`."""
        return sum(client.under_way for client in self._clients)

    async def idle(self) -> None:
        """See `Client.idle`."""
        for client in self._clients:
            await client.idle()


def progress_spans(rows: Sequence[RunSpec]) -> Mapping[RunSpec, tuple[float, float]]:
    """Where each row begins and ends, as shares of all requests."""
    total, begin, found = sum(row.warm + row.count for row in rows), 0, {}
    for row in rows:
        end = begin + row.warm + row.count
        found[row] = begin / total, end / total
        begin = end
    return found
