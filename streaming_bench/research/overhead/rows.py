"""The rows of the cost bench: one load against a gateway, and against other proxies.

All targets of a group run at the same time and take turns within each round, so that changes of the machine's speed
affect all of them; the median of the rounds counts. Units: microseconds of CPU time unless a row has another unit.
"""

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple

from streaming_bench.errors import BenchError
from streaming_bench.research.overhead.client import LoadResult, StreamLoad, send
from streaming_bench.research.overhead.counters import hardware_counter
from streaming_bench.research.overhead.processes import Backend, ProxyProcess
from streaming_bench.research.overhead.proxies import NGINX
from streaming_bench.research.overhead.usage import core_usage, process_usage

GATEWAY: Final[str] = "gateway"
SHORT: Final = StreamLoad(streams=64, tokens=20, length_s=2.0)
_ALONE: Final = StreamLoad(streams=1, tokens=1, length_s=1.5)
_WARM_S: Final = 0.7
_MEMORY_S: Final = 0.25  # between two readings


class CostSample(NamedTuple):
    """Result of one load against one target.

    Attributes:
        seen: counts and times at the client.
        cpu_s: CPU time of the target.
        user_share: share of the CPU time spent in the program, not in the kernel.
        rss_mb: peak of the target's resident memory.
        upstream: requests received by the back end.
        foreign: share of the target's core used by other processes.
        instructions: executed outside the kernel; None without hardware counters.
    """

    seen: LoadResult
    cpu_s: float
    user_share: float
    rss_mb: float
    upstream: int
    foreign: float
    instructions: int | None = None


class CostRow(NamedTuple):
    """One line of the table.

    Attributes:
        name: description of the load.
        unit: unit of the figures.
        ours: figure of the gateway.
        user: part of `ours` spent in the program; None if it is not CPU time.
        nginx: figure of nginx; None if nginx was not measured.
        nginx_user: part of `nginx` spent in the program; None if it is not CPU time.
        foreign: highest share of the core used by other processes, which make caches cold and figures high.
        instructions: thousands of instructions of `ours` outside the kernel; None without hardware counters.
        nginx_instructions: the same of `nginx`.
    """

    name: str
    unit: str
    ours: float
    user: float | None = None
    nginx: float | None = None
    nginx_user: float | None = None
    foreign: float = 0.0
    instructions: float | None = None
    nginx_instructions: float | None = None


SamplesByTarget = Mapping[str, Sequence[CostSample]]
"""Samples by the name of the target."""


def measure(load: StreamLoad, target: ProxyProcess, back: Backend) -> CostSample:
    """Run a load.

    Raises:
        BenchError: More than one answer in a thousand failed.
    """
    requests, counted = back.pace(load.gap_ms), None
    with hardware_counter(target.pid) as read:
        before, core_before = process_usage(target.pid), core_usage(target.pid)
        seen, rss_mb = asyncio.run(_send(load, target))
        after, core_after = process_usage(target.pid), core_usage(target.pid)
        if read is not None:
            counted = read()
    if seen.errors > seen.requests // 1000:
        raise BenchError(f"{seen.errors} of {seen.errors + seen.requests} answers failed under {load}")
    user_s, kernel_s = after.user_s - before.user_s, after.kernel_s - before.kernel_s
    share = user_s / (user_s + kernel_s) if user_s + kernel_s else 0.0
    cpu_s, busy_s = after.cpu_s - before.cpu_s, core_after.busy_s - core_before.busy_s
    foreign = max(0.0, busy_s - cpu_s) / max(0.01, busy_s + core_after.idle_s - core_before.idle_s)
    return CostSample(seen, cpu_s, share, rss_mb, back.pace(load.gap_ms) - requests, foreign, counted)


async def _send(load: StreamLoad, target: ProxyProcess) -> tuple[LoadResult, float]:
    """Send a load, and watch the target's memory."""
    peak_mb = 0.0
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(send(load, target.port))
        while not sending.done():
            await asyncio.wait([sending], timeout=_MEMORY_S)
            peak_mb = max(peak_mb, process_usage(target.pid).rss_mb)
    return sending.result(), peak_mb


def measure_rounds(
    load: StreamLoad, targets: Mapping[str, ProxyProcess], back: Backend, count: int
) -> dict[str, list[CostSample]]:
    """Warm up, then run a load against each target in turn, `count` times."""
    for target in targets.values():
        measure(replace(load, streams=min(64, load.streams), tokens=20, gap_ms=0, length_s=_WARM_S), target, back)
    found: dict[str, list[CostSample]] = {name: [] for name in targets}
    for _ in range(count):
        for name, target in targets.items():
            found[name].append(measure(load, target, back))
    return found


class Cost(NamedTuple):
    """Cost of a request or a token.

    Attributes:
        cpu_us: CPU time.
        user_us: part of `cpu_us` spent in the program.
        instructions: thousands of instructions outside the kernel; None without hardware counters.
    """

    cpu_us: float
    user_us: float
    instructions: float | None


def median_cost(samples: Sequence[CostSample], per: Literal["request", "token"]) -> Cost:
    """Return the cost in the sample with the median CPU time."""
    costs = []
    for each in samples:
        count = each.seen.requests if per == "request" else each.seen.tokens
        cpu_us = 1e6 * each.cpu_s / count
        thousands = None if each.instructions is None else each.instructions / count / 1000
        costs.append(Cost(cpu_us, cpu_us * each.user_share, thousands))
    return sorted(costs, key=lambda cost: cost.cpu_us)[len(costs) // 2]


def cost_row(name: str, per: Literal["request", "token"], samples: SamplesByTarget, ours: str = GATEWAY) -> CostRow:
    """Return a row of CPU time for each request or token: the median over the rounds."""
    own = median_cost(samples[ours], per)
    foreign = max(each.foreign for found in samples.values() for each in found)
    row = CostRow(name, f"us a {per}", own.cpu_us, own.user_us, foreign=foreign, instructions=own.instructions)
    if NGINX not in samples:
        return row
    theirs = median_cost(samples[NGINX], per)
    return row._replace(nginx=theirs.cpu_us, nginx_user=theirs.user_us, nginx_instructions=theirs.instructions)


def added_ms(targets: Mapping[str, ProxyProcess], back: Backend, count: int) -> dict[str, tuple[float, float]]:
    """Return p50 and p99 of the time added to the first token of sequential streams, compared with the back end."""
    direct = ProxyProcess(back.ports[0], next(iter(targets.values())).pid)  # its CPU time is not used
    samples = measure_rounds(_ALONE, {"direct": direct, **targets}, back, count)

    def quantile(name: str, share: float) -> float:
        return 1000 * statistics.median(_quantile(each.seen.ttfts_s, share) for each in samples[name])

    return {
        name: (quantile(name, 0.5) - quantile("direct", 0.5), quantile(name, 0.99) - quantile("direct", 0.99))
        for name in targets
    }


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
