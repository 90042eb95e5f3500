"""Time from the start of a gateway to its first streamed answer, with and without compiled bytecode.

Each start runs a copy of the packages, because bytecode in the checkout depends on what ran there before. The libraries
have their bytecode in both cases, as after an installation. Units: seconds.
"""

import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from streaming_bench.errors import BenchError
from streaming_bench.processes import ROOT
from streaming_bench.research.overhead.client import StreamLoad, send
from streaming_bench.research.overhead.processes import Backend, Machine, gateway, settings
from streaming_bench.research.overhead.rows import CostRow

_PACKAGES: Final = ("gateway", "providers")
_CONTRACT: Final = "openapi.yaml"  # served by the gateway
_ONE: Final = StreamLoad(streams=1, tokens=1)
WITHOUT_BYTECODE: Final = {"PYTHONDONTWRITEBYTECODE": "1"}
WITH_BYTECODE: Final = {"PYTHONDONTWRITEBYTECODE": ""}


def rows(machine: Machine, back: Backend, count: int) -> Iterator[CostRow]:
    """Measure both in turn."""
    with tempfile.TemporaryDirectory(prefix="ttft-start-") as folder:
        compiled, bare = Path(folder, "with"), Path(folder, "without")
        copy_packages(compiled)
        copy_packages(bare)
        first_answer_s(machine, back, compiled, WITH_BYTECODE)  # writes the bytecode
        with_s, without_s = [], []
        for _ in range(count):
            with_s.append(first_answer_s(machine, back, compiled, WITH_BYTECODE))
            without_s.append(first_answer_s(machine, back, bare, WITHOUT_BYTECODE))
    yield CostRow("from start to the first answer", "s", statistics.median(with_s))
    yield CostRow("the same, without bytecode", "s", statistics.median(without_s))


def copy_packages(folder: Path) -> None:
    """Copy all that a gateway needs of the checkout, without bytecode."""
    folder.mkdir()
    for name in _PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / _CONTRACT, folder)


def first_answer_s(machine: Machine, back: Backend, folder: Path, environment: Mapping[str, str]) -> float:
    """Start a gateway from a folder, send one request, and return the time from the start to the first token."""
    back.pace(0)
    with gateway(machine, settings(back.ports), environment=environment, folder=folder) as target:
        seen = asyncio.run(send(_ONE, target.port, target.models))
    if seen.errors:
        raise BenchError("the first answer of a gateway failed; run `python -m gateway demo`")
    return target.start_s + seen.ttfts_s[0]
