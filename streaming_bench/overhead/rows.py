"""The rows of the cost bench: loads against gateways, and against nginx.

All targets of a group run at the same time and take turns within each round, so that changes of the machine's speed
affect all of them; the median of the rounds counts. Units: microseconds of CPU time unless a row has another unit.
"""

import asyncio
import contextlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple

from streaming_bench.errors import BenchError
from streaming_bench.overhead.client import LoadResult, StreamLoad, send
from streaming_bench.overhead.processes import (
    KEY,
    Backend,
    Machine,
    ProxyProcess,
    backend,
    gateway,
    limited_settings,
    nginx,
    settings,
)
from streaming_bench.overhead.usage import core_usage, process_usage

GATEWAY: Final[str] = "gateway"
NGINX: Final[str] = "nginx"
_SHORT: Final = StreamLoad(streams=64, tokens=20, length_s=2.0)
_PACED: Final = StreamLoad(streams=1000, tokens=60, gap_ms=50)
_SECURE: Final = StreamLoad(streams=300, tokens=100, gap_ms=30)  # the handshakes of a thousand would load the back end
_ALONE: Final = StreamLoad(streams=1, tokens=1, length_s=1.5)
_REPLICAS: Final = 3
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
    """

    seen: LoadResult
    cpu_s: float
    user_share: float
    rss_mb: float
    upstream: int
    foreign: float


class CostRow(NamedTuple):
    """One line of the table.

    Attributes:
        name: description of the load.
        unit: unit of the figures.
        ours: figure of the gateway.
        user: part of `ours` spent in the program; None if it is not CPU time.
        nginx: figure of nginx; None without one.
        nginx_user: part of `nginx` spent in the program; None if it is not CPU time.
        foreign: highest share of the core used by other processes, which make caches cold and figures high.
    """

    name: str
    unit: str
    ours: float
    user: float | None = None
    nginx: float | None = None
    nginx_user: float | None = None
    foreign: float = 0.0


SamplesByTarget = Mapping[str, Sequence[CostSample]]
"""Samples by the name of the target."""


def measure(load: StreamLoad, target: ProxyProcess, back: Backend) -> CostSample:
    """Run a load.

    Raises:
        BenchError: More than one answer in a thousand failed.
    """
    requests = back.pace(load.gap_ms)
    before, core_before = process_usage(target.pid), core_usage(target.pid)
    seen, rss_mb = asyncio.run(_send(load, target))
    after, core_after = process_usage(target.pid), core_usage(target.pid)
    if seen.errors > seen.requests // 1000:
        raise BenchError(f"{seen.errors} of {seen.errors + seen.requests} answers failed under {load}")
    user_s, kernel_s = after.user_s - before.user_s, after.kernel_s - before.kernel_s
    share = user_s / (user_s + kernel_s) if user_s + kernel_s else 0.0
    cpu_s, busy_s = after.cpu_s - before.cpu_s, core_after.busy_s - core_before.busy_s
    foreign = max(0.0, busy_s - cpu_s) / max(0.01, busy_s + core_after.idle_s - core_before.idle_s)
    return CostSample(seen, cpu_s, share, rss_mb, back.pace(load.gap_ms) - requests, foreign)


async def _send(load: StreamLoad, target: ProxyProcess) -> tuple[LoadResult, float]:
    """Send a load, and watch the target's memory."""
    peak_mb = 0.0
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(send(load, target.port, target.models))
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


def cost_row(name: str, per: Literal["request", "token"], samples: SamplesByTarget, ours: str = GATEWAY) -> CostRow:
    """Return a row of CPU time for each request or token: the median over the rounds."""
    own, own_user = _cost(samples[ours], per)
    theirs, theirs_user = _cost(samples[NGINX], per) if NGINX in samples else (None, None)
    foreign = max(each.foreign for found in samples.values() for each in found)
    return CostRow(name, f"us a {per}", own, own_user, theirs, theirs_user, foreign)


def _cost(samples: Sequence[CostSample], per: Literal["request", "token"]) -> tuple[float, float]:
    costs = []
    for each in samples:
        count = each.seen.requests if per == "request" else each.seen.tokens
        costs.append((1e6 * each.cpu_s / count, each.user_share))
    middle, share = sorted(costs)[len(costs) // 2]
    return middle, middle * share


def standard(machine: Machine, count: int) -> Iterator[CostRow]:
    """Measure the table that is compared with the recorded one."""
    with backend(_REPLICAS) as back:
        yield from _plain(machine, back, count)
        if back.tls_ports:
            yield from _secure(machine, back, count)


def _plain(machine: Machine, back: Backend, count: int) -> Iterator[CostRow]:
    """Measure without TLS."""
    with contextlib.ExitStack() as stack:
        targets = {
            GATEWAY: stack.enter_context(gateway(machine, settings(back.ports))),
            "off": stack.enter_context(gateway(machine, settings(back.ports, policy="off"))),
            "limited": stack.enter_context(gateway(machine, limited_settings(back.ports))),
        }
        yield CostRow("from start to ready", "s", targets[GATEWAY].start_s)
        yield CostRow("memory, idle", "MB", process_usage(targets[GATEWAY].pid).rss_mb)
        beside = stack.enter_context(nginx(machine, back.ports))
        if beside is not None:
            targets[NGINX] = beside
        short = measure_rounds(replace(_SHORT, key=KEY), targets, back, count)
        yield cost_row("64 streams of 20 tokens", "request", short)
        yield cost_row("the same, hedging off", "request", short, "off")
        yield cost_row("the same, keys, limits, prices, quotas", "request", short, "limited")
        few = {name: targets[name] for name in (GATEWAY, NGINX) if name in targets}
        paced = measure_rounds(_PACED, few, back, count)
        yield cost_row("1,000 paced streams", "token", paced)
        yield _memory_row("memory, 1,000 streams", paced)
        yield from _first_tokens(few, back, count)


def _memory_row(name: str, samples: SamplesByTarget) -> CostRow:
    theirs = max(each.rss_mb for each in samples[NGINX]) if NGINX in samples else None
    return CostRow(name, "MB", max(each.rss_mb for each in samples[GATEWAY]), None, theirs)


def _first_tokens(targets: Mapping[str, ProxyProcess], back: Backend, count: int) -> Iterator[CostRow]:
    """Measure the time added to the first token of sequential streams, compared with the back end alone."""
    direct = ProxyProcess(back.ports[0], targets[GATEWAY].pid)  # its CPU time is not used
    samples = measure_rounds(_ALONE, {"direct": direct, **targets}, back, count)
    for title, cut in (("p50", 0.5), ("p99", 0.99)):
        found = {
            name: statistics.median(_quantile(each.seen.ttfts_s, cut) for each in of) for name, of in samples.items()
        }
        added = {name: 1000 * (value - found["direct"]) for name, value in found.items()}
        yield CostRow(f"added to the first token, {title}", "ms", added[GATEWAY], None, added.get(NGINX))


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _secure(machine: Machine, back: Backend, count: int) -> Iterator[CostRow]:
    """Measure with TLS to the replicas."""
    with contextlib.ExitStack() as stack:
        config = settings(back.tls_ports, tls=True)
        targets = {GATEWAY: stack.enter_context(gateway(machine, config, back.certificate))}
        beside = stack.enter_context(nginx(machine, back.tls_ports, tls=True))
        if beside is not None:
            targets[NGINX] = beside
        short = measure_rounds(_SHORT, targets, back, count)
        yield cost_row("64 streams of 20 tokens, TLS upstream", "request", short)
        paced = measure_rounds(_SECURE, targets, back, count)
        yield cost_row("300 paced streams, TLS upstream", "token", paced)
