"""The gateway next to other proxies, which relay the same streams in the same run.

A hundred paced streams, not a thousand: a slow proxy is saturated by more, and then relays several tokens at a time,
which looks cheaper than it is. Units: as in rows.py.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from streaming_bench.report.grid import Grid, short
from streaming_bench.research.overhead import proxies
from streaming_bench.research.overhead.client import StreamLoad
from streaming_bench.research.overhead.processes import REPLICAS, Machine, ProxyProcess, backend, gateway, settings
from streaming_bench.research.overhead.rows import GATEWAY, SHORT, Cost, added_ms, measure_rounds, median_cost
from streaming_bench.research.overhead.usage import process_usage

_HEADS: Final = (
    *("", "us a request", "k instr.", "of nginx", "us a paced token", "k instr.", "of nginx"),
    *("added to the first token, ms: p50", "p99", "memory, MB: idle", "100 streams", "start, s"),
)
_PACED: Final = StreamLoad(streams=100, tokens=60, gap_ms=50)


class PeerFigures(NamedTuple):
    """Figures of one program.

    Attributes:
        name: name of the program.
        request: cost of a request of 20 tokens without pauses.
        token: cost of a paced token.
        added_ms: time added to the first token, p50 and p99.
        idle_mb: resident memory after the start.
        streams_mb: resident memory with 100 streams.
        start_s: time from its start until it listens.
        foreign: highest share of the core used by other processes.
    """

    name: str
    request: Cost
    token: Cost
    added_ms: tuple[float, float]
    idle_mb: float
    streams_mb: float
    start_s: float
    foreign: float


def measure(machine: Machine, programs: Mapping[str, str | None], count: int) -> Iterator[PeerFigures]:
    """Measure the gateway and these proxies.

    Args:
        machine: cores of this machine.
        programs: path of the program by its name in `proxies.PROXIES`; None to search for it.
        count: number of rounds.

    Raises:
        BenchError: A proxy is not installed, did not start, or failed under the load.
    """
    with backend(REPLICAS) as back, contextlib.ExitStack() as stack:
        targets: dict[str, ProxyProcess] = {GATEWAY: stack.enter_context(gateway(machine, settings(back.ports)))}
        for name, program in programs.items():
            targets[name] = stack.enter_context(proxies.run(machine, name, back.ports, program=program))
        idle_mb = {name: process_usage(target.pid).rss_mb for name, target in targets.items()}
        short_samples = measure_rounds(SHORT, targets, back, count)
        paced_samples = measure_rounds(_PACED, targets, back, count)
        added = added_ms(targets, back, count)
        for name, target in targets.items():
            samples = (*short_samples[name], *paced_samples[name])
            yield PeerFigures(
                name,
                median_cost(short_samples[name], "request"),
                median_cost(paced_samples[name], "token"),
                added[name],
                idle_mb[name],
                max(each.rss_mb for each in paced_samples[name]),
                target.start_s,
                max(each.foreign for each in samples),
            )


def table(figures: Sequence[PeerFigures]) -> Grid:
    """Return one line for each program; a ratio above 1 means dearer than nginx."""
    nginx = next((each for each in figures if each.name == proxies.NGINX), None)
    lines = [
        (
            each.name,
            *_cost_cells(each.request, None if nginx is None else nginx.request),
            *_cost_cells(each.token, None if nginx is None else nginx.token),
            *(f"{value:.2f}" for value in each.added_ms),
            short(each.idle_mb),
            short(each.streams_mb),
            short(each.start_s),
        )
        for each in figures
    ]
    columns = [position for position in range(len(_HEADS)) if any(line[position] for line in lines)]
    heads, *cells = [tuple(line[position] for position in columns) for line in (_HEADS, *lines)]
    return Grid(heads, cells)


def _cost_cells(cost: Cost, nginx: Cost | None) -> tuple[str, str, str]:
    counted = "" if cost.instructions is None else short(cost.instructions)
    return short(cost.cpu_us), counted, "" if nginx is None else short(cost.cpu_us / nginx.cpu_us)
