"""Growth of the gateway's cost with streams, token rate, prompts, replicas and models, and the cost of a scrape.

Units: as in rows.py.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from streaming_bench.research.overhead.client import StreamLoad, send
from streaming_bench.research.overhead.processes import (
    REPLICAS,
    Backend,
    Machine,
    ProxyProcess,
    backend,
    gateway,
    settings,
)
from streaming_bench.research.overhead.proxies import NGINX, nginx
from streaming_bench.research.overhead.rows import (
    GATEWAY,
    SHORT,
    CostRow,
    cost_row,
    measure,
    measure_rounds,
)
from streaming_bench.research.overhead.usage import process_usage

_LENGTH_MS: Final = 3000  # length of a paced stream
_TOKENS_PER_S: Final = 15_000  # of all streams together; within the load client's capacity
_FIRST_S: Final = 0.08  # warm-up per model, about a hundred requests


def _paced(streams: int, gap_ms: int) -> StreamLoad:
    return StreamLoad(streams, _LENGTH_MS // gap_ms, gap_ms)


@contextlib.contextmanager
def _both(machine: Machine, back: Backend) -> Iterator[dict[str, ProxyProcess]]:
    """Run a gateway, and nginx if it is installed."""
    with gateway(machine, settings(back.ports)) as ours, nginx(machine, back.ports) as theirs:
        yield {GATEWAY: ours, **({} if theirs is None else {NGINX: theirs})}


def streams(machine: Machine, count: int) -> Iterator[CostRow]:
    """Measure numbers of streams at about the same total token rate."""
    with backend(REPLICAS) as back, _both(machine, back) as targets:
        for number in (1, 10, 100, 1000, 5000):
            load = _paced(number, max(20, 1000 * number // _TOKENS_PER_S))
            idle_mb = process_usage(targets[GATEWAY].pid).rss_mb
            samples = measure_rounds(load, targets, back, count)
            yield cost_row(
                f"{number:,} stream{'s' if number > 1 else ''}, {load.gap_ms} ms between tokens", "token", samples
            )
            most_mb = max(each.rss_mb for each in samples[GATEWAY])
            if number >= 1000:
                yield CostRow(f"memory of one of {number:,} streams", "kB", 1024 * (most_mb - idle_mb) / number)


def rates(machine: Machine, count: int) -> Iterator[CostRow]:
    """Measure token rates of the same streams."""
    with backend(REPLICAS) as back, _both(machine, back) as targets:
        for gap_ms in (200, 100, 50, 20, 10):
            samples = measure_rounds(_paced(100, gap_ms), targets, back, count)
            yield cost_row(f"100 streams, {1000 // gap_ms} tokens a second each", "token", samples)


def prompts(machine: Machine, count: int) -> Iterator[CostRow]:
    """Measure lengths of prompts."""
    with backend(REPLICAS) as back, _both(machine, back) as targets:
        for size in (1_000, 10_000, 100_000, 1_000_000):
            load = replace(SHORT, streams=16, prompt_bytes=size)
            samples = measure_rounds(load, targets, back, count)
            yield cost_row(f"prompts of {size // 1000:,} kB", "request", samples)


def replicas(machine: Machine, count: int) -> Iterator[CostRow]:
    """Measure numbers of replicas of one model."""
    numbers = (2, 3, 20, 200)
    with backend(max(numbers)) as back, contextlib.ExitStack() as stack:
        targets = {
            str(number): stack.enter_context(gateway(machine, settings(back.ports[:number]))) for number in numbers
        }
        samples = measure_rounds(SHORT, targets, back, count)
        for name in targets:
            yield cost_row(f"{name} replicas", "request", samples, name)


def models(machine: Machine, count: int) -> Iterator[CostRow]:
    """Measure numbers of models with three replicas each, requested in turn."""
    numbers = (1, 10, 100, 500)
    with backend(REPLICAS) as back, contextlib.ExitStack() as stack:
        targets = {
            f"{number} model{'s' if number > 1 else ''}": stack.enter_context(
                gateway(machine, settings(back.ports, models=number))
            )
            for number in numbers
        }
        for target in targets.values():  # so that each model has learned, and has metrics
            measure(replace(SHORT, length_s=len(target.models) * _FIRST_S), target, back)
        samples = measure_rounds(SHORT, targets, back, count)
        for name in targets:
            yield cost_row(name, "request", samples, name)
        most = f"{numbers[-1]} models"
        yield CostRow(f"memory with {most}", "MB", max(each.rss_mb for each in samples[most]))
        yield CostRow(f"from start to ready with {most}", "s", targets[most].start_s)


def scrapes(machine: Machine, count: int) -> Iterator[CostRow]:
    """Measure the longest pause of streams with and without constant scrapes of the metrics of 50 models."""
    load = _paced(100, 20)
    with backend(REPLICAS) as back, gateway(machine, settings(back.ports, models=50)) as target:
        measure(SHORT, target, back)  # so that all models have metrics
        for name, scraping in (
            ("metrics of 50 models, not scraped", False),
            ("metrics of 50 models scraped without pause", True),
        ):
            pauses: list[float] = []
            back.pace(load.gap_ms)
            for _ in range(count):
                pauses += asyncio.run(_paused(load, target, scraping=scraping))
            pauses.sort()
            yield CostRow(f"longest pause of 100 streams, {name}, p50", "ms", 1000 * pauses[len(pauses) // 2])
            yield CostRow(f"longest pause of 100 streams, {name}, max", "ms", 1000 * pauses[-1])


async def _paused(load: StreamLoad, target: ProxyProcess, *, scraping: bool) -> list[float]:
    """Return the longest pause of each stream."""
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(send(load, target.port, target.models[:1]))
        while not sending.done():
            if scraping:
                reader, writer = await asyncio.open_connection("127.0.0.1", target.admin_port)
                writer.write(b"GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")
                while await reader.read(65_536):
                    pass
                writer.close()
            await asyncio.wait([sending], timeout=0.1)
    return sending.result().gaps_s


PARTS: Final[dict[str, Callable[[Machine, int], Iterator[CostRow]]]] = {
    "streams": streams,
    "rates": rates,
    "prompts": prompts,
    "replicas": replicas,
    "models": models,
    "scrapes": scrapes,
}


def rows(machine: Machine, parts: Sequence[str], count: int) -> Iterator[CostRow]:
    """Measure these parts of the table."""
    for part in parts:
        yield from PARTS[part](machine, count)
