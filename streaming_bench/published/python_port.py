"""The httpx rows of the Python port, run with the real package in an environment of its own.

Starts the driver there and reads its output. The package is no dependency of this project. Units: milliseconds.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from streaming_bench.errors import BenchError
from streaming_bench.progress import Progress
from streaming_bench.published.side_by_side import ReproducedRow
from streaming_bench.published.sources import PYTHON_PORT
from streaming_bench.simulation.summary import QUANTILES

SETUP: Final = "python -m venv port && port/bin/pip install 'hedge-python[httpx]'"

_DRIVER: Final = Path(__file__).with_name("port_driver.py")
_RUN_S_MAX: Final = 300.0


class PortError(BenchError):
    """The port cannot be run."""


def reproduce(
    python: Path, seeds: Sequence[int], at_a_time: int, progress: Progress, *, real_time: bool
) -> list[ReproducedRow]:
    """Run both rows.

    Args:
        python: interpreter of an environment with the port.
        seeds: one run for each seed.
        at_a_time: requests in flight.
        progress: called with the current seed and the share done.
        real_time: True for the machine's clock, False for virtual time.

    Raises:
        PortError: The environment has no port, or the port failed.
    """
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in PYTHON_PORT}
    for number, seed in enumerate(seeds):
        progress(f"seed {seed}", number / len(seeds))
        for name, row in _run(python, seed, at_a_time, real_time=real_time).items():
            figures = {key: float(np.quantile(row["times_ms"], q)) for key, q in QUANTILES.items()}
            runs[name].append({**figures, "extra": row["extra"]})
    progress("done", 1.0)
    return [_found(name, figures) for name, figures in runs.items()]


def _found(name: str, runs: Sequence[dict[str, float]]) -> ReproducedRow:
    here = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
    by = {key: (min(run[key] for run in runs), max(run[key] for run in runs)) for key in ("p95", "p99", "p999")}
    return ReproducedRow(name, here, {"port": PYTHON_PORT[name]}, by if len(runs) > 1 else {})


def _run(python: Path, seed: int, at_a_time: int, *, real_time: bool) -> dict[str, dict[str, float]]:
    # -P: files next to the driver must not shadow installed packages.
    command = [str(python), "-P", str(_DRIVER), f"--seed={seed}", f"--at-a-time={at_a_time}"]
    if real_time:
        command.append("--real-time")
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_S_MAX, check=True)
    except OSError as error:
        raise PortError(f"cannot start {python}: {error.strerror}; create the environment: {SETUP}") from error
    except subprocess.TimeoutExpired as error:
        raise PortError(f"the port did not end within {_RUN_S_MAX:g} s; use fewer requests in flight") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise PortError(f"the port failed: {last}; check its environment: {SETUP}") from error
    rows: dict[str, dict[str, float]] = json.loads(ran.stdout)
    return rows
