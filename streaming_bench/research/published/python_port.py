"""The Python port's benchmark, run with the real package, with `ttft_gateway` and without hedging, on the same numbers.

Starts the driver once for each row and seed and reads its output. The package runs in an environment of its own; it is
no dependency of this project. Units: milliseconds.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from streaming_bench.errors import BenchError
from streaming_bench.processes import ROOT
from streaming_bench.progress import Progress
from streaming_bench.report.stats import Estimate, geometric_mean, ratio_of_sums
from streaming_bench.report.tables import with_interval
from streaming_bench.research.published.side_by_side import ReproducedRow
from streaming_bench.research.published.sources import FRAMEWORKS
from streaming_bench.simulation.summary import QUANTILES

SETUP: Final = "python -m venv port && port/bin/pip install 'hedge-python[all]'"
PORT, OWN = "hedge-python", "ttft_gateway"
CLIENTS: Final = ("httpx", "aiohttp", "grpc-unary", "grpc-stream")

_DRIVER: Final = Path(__file__).with_name("library_driver.py")
_RUN_S_MAX: Final = 300.0
_SPANS: Final = ("p95", "p99", "p999", "extra")

Figures = Mapping[str, float]


class PortError(BenchError):
    """The port cannot be run."""


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """One row.

    Attributes:
        name: name of the row.
        library: PORT, OWN, or "none".
        policy: "adaptive", or "static" for a delay of 10 ms without a budget.
        published: key of the published row; empty for a row that is not published.
    """

    name: str
    library: str
    policy: str = "adaptive"
    published: str = ""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Setting of a run.

    Attributes:
        python: interpreter of an environment with the port; None: without its row.
        requests: number of requests of each run.
        at_a_time: requests in flight.
        budget: budget of the adaptive row of `ttft_gateway`, as a fraction of the requests; the port's is 10 %.
        real_time: True for real connections and the machine's clock, False for virtual time.
    """

    python: Path | None
    requests: int = 500
    at_a_time: int = 1
    budget: float = 0.1
    real_time: bool = False


class _Ran(NamedTuple):
    """The output of the driver: times in ascending order, and attempts beyond one per request."""

    times_ms: list[float]
    extra: float


ROWS: Final = (
    LibraryRow("no hedging", "none", published="no hedging"),
    LibraryRow("static 10 ms, ttft_gateway", OWN, "static"),
    LibraryRow("adaptive, hedge-python", PORT, published="adaptive"),
    LibraryRow("adaptive, ttft_gateway", OWN),
)


def measure(
    benchmark: Benchmark, client: str, seeds: Sequence[int], progress: Progress
) -> dict[LibraryRow, list[Figures]]:
    """Run all rows of a client library; the same seed gives every row the same random numbers.

    Returns:
        The figures of each seed by row; empty if the client library is not installed here.

    Raises:
        PortError: The environment has no port, or a run failed.
    """
    rows = [row for row in ROWS if row.library != PORT or benchmark.python is not None]
    found: dict[LibraryRow, list[Figures]] = {row: [] for row in rows}
    if not _is_installed(client):
        return {}
    for number, seed in enumerate(seeds):
        for turn, row in enumerate(rows):
            progress(f"{client}, {row.name}, seed {seed}", (number + turn / len(rows)) / len(seeds))
            ran = _run(benchmark, client, row, seed)
            quantiles = {key: float(np.quantile(ran.times_ms, q)) for key, q in QUANTILES.items()}
            found[row].append({**quantiles, "extra": ran.extra})
    progress("done", 1.0)
    return found


def reproduced(client: str, runs: Mapping[LibraryRow, Sequence[Figures]]) -> list[ReproducedRow]:
    """Return the means over the seeds next to the published figures of a client library."""
    published = FRAMEWORKS.get(client, {})
    rows = []
    for row, figures in runs.items():
        here = {key: float(np.mean([one[key] for one in figures])) for key in figures[0]}
        spans = {key: (min(one[key] for one in figures), max(one[key] for one in figures)) for key in _SPANS}
        expected = {"port": published[row.published]} if row.published in published else {}
        rows.append(
            ReproducedRow(row.name, here, expected, spans if len(figures) > 1 and row.library != "none" else {})
        )
    return rows


@dataclass(frozen=True, slots=True)
class Verdict:
    """The figures of `ttft_gateway` next to the figures of the port.

    Attributes:
        p99_ratio: ratio of the means of p99, with its interval over the seeds.
        p99_ratio_paired: geometric mean of the seeds' ratios of p99, with its interval.
        extra: means of the requests added, ours and the port's.
        better: seeds with a p99 at most 1 % above the port's.
    """

    p99_ratio: Estimate
    p99_ratio_paired: Estimate
    extra: tuple[float, float]
    better: int

    def line(self, seeds: int) -> str:
        """Return the verdict as a line of text."""
        own, port = (f"{100 * extra:.2f}%" for extra in self.extra)
        means, paired = (with_interval(each, "x") for each in (self.p99_ratio, self.p99_ratio_paired))
        return (
            f"p99 of {OWN} / {PORT}: {means} of the means, {paired} geometric mean of the seeds' ratios, "
            f"at most 1.01 on {self.better} of {seeds} seeds; requests + {own} and {port}"
        )


def verdict(runs: Mapping[LibraryRow, Sequence[Figures]]) -> Verdict | None:
    """Compare the adaptive rows of both libraries; None without the port."""
    by_library = {row.library: figures for row, figures in runs.items() if row.policy == "adaptive"}
    if PORT not in by_library:
        return None
    own, port = by_library[OWN], by_library[PORT]
    own_ms, port_ms = ([one["p99"] for one in figures] for figures in (own, port))
    own_extra, port_extra = (float(np.mean([one["extra"] for one in figures])) for figures in (own, port))
    ratios = [a / b for a, b in zip(own_ms, port_ms, strict=True)]
    return Verdict(
        ratio_of_sums(own_ms, port_ms),
        geometric_mean(ratios),
        (own_extra, port_extra),
        sum(ratio <= 1.01 for ratio in ratios),
    )


def _is_installed(client: str) -> bool:
    """Return True if the client library, and a transport for it, are installed here."""
    if client == "aiohttp":
        command = "import aiohttp; from ttft_gateway import HedgingSession"
    else:
        command = "import httpx" if client == "httpx" else "import grpc.aio"
    return subprocess.run([sys.executable, "-c", command], capture_output=True, cwd=ROOT, check=False).returncode == 0


def _run(benchmark: Benchmark, client: str, row: LibraryRow, seed: int) -> _Ran:
    python = str(benchmark.python) if row.library == PORT else sys.executable
    # -P: files next to the driver must not shadow installed packages.
    command = [python, "-P", str(_DRIVER), f"--library={row.library}", f"--client={client}", f"--policy={row.policy}"]
    command += [f"--seed={seed}", f"--requests={benchmark.requests}", f"--at-a-time={benchmark.at_a_time}"]
    if row.library == OWN:
        command.append(f"--budget-percent={100 * benchmark.budget}")
    if benchmark.real_time:
        command.append("--real-time")
    own_path = {"PYTHONPATH": str(ROOT)} if row.library == OWN else {}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own_path
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_S_MAX, check=True, env=environment)
    except OSError as error:
        raise PortError(f"cannot start {python}: {error.strerror}; create the environment: {SETUP}") from error
    except subprocess.TimeoutExpired as error:
        raise PortError(f"a run did not end within {_RUN_S_MAX:g} s; use fewer requests in flight") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise PortError(f"{row.library} failed: {last}; check its environment: {SETUP}") from error
    return _Ran(**json.loads(ran.stdout))
