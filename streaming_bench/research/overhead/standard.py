"""The table of the cost bench that is compared with the recorded one.

Units: as in rows.py.
"""

import asyncio
import contextlib
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from streaming_bench.errors import BenchError
from streaming_bench.processes import ROOT
from streaming_bench.research.overhead.client import StreamLoad, send
from streaming_bench.research.overhead.processes import (
    KEY,
    REPLICAS,
    Backend,
    Machine,
    backend,
    gateway,
    limited_settings,
    settings,
)
from streaming_bench.research.overhead.proxies import NGINX, nginx
from streaming_bench.research.overhead.rows import (
    GATEWAY,
    SHORT,
    CostRow,
    SamplesByTarget,
    added_ms,
    cost_row,
    measure_rounds,
    median_cost,
)
from streaming_bench.research.overhead.usage import process_usage

_PACED: Final = StreamLoad(streams=1000, tokens=60, gap_ms=50)
_SECURE: Final = StreamLoad(streams=300, tokens=100, gap_ms=30)  # the handshakes of a thousand would load the back end
_LARGE: Final = replace(SHORT, streams=16, prompt_bytes=100_000)
_PACKAGES: Final = ("gateway", "providers", "ttft_gateway")
_CONTRACT: Final = "openapi.yaml"  # served by the gateway
_ONE: Final = StreamLoad(streams=1, tokens=1)
WITHOUT_BYTECODE: Final = {"PYTHONDONTWRITEBYTECODE": "1"}
WITH_BYTECODE: Final = {"PYTHONDONTWRITEBYTECODE": ""}
_PLAIN: Final = " without TLS"  # ends the name of a target next to one with TLS


def rows(machine: Machine, count: int) -> Iterator[CostRow]:
    """Measure all rows."""
    with backend(REPLICAS) as back:
        yield from _starts(machine, back, count)
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
        yield CostRow("memory, idle", "MB", process_usage(targets[GATEWAY].pid).rss_mb)
        beside = stack.enter_context(nginx(machine, back.ports))
        if beside is not None:
            targets[NGINX] = beside
        short = measure_rounds(replace(SHORT, key=KEY), targets, back, count)
        yield cost_row("64 streams of 20 tokens", "request", short)
        yield cost_row("the same, hedging off", "request", short, "off")
        yield cost_row("the same, keys, limits, prices, quotas", "request", short, "limited")
        few = {name: targets[name] for name in (GATEWAY, NGINX) if name in targets}
        yield cost_row("prompts of 100 kB", "request", measure_rounds(_LARGE, few, back, count))
        paced = measure_rounds(_PACED, few, back, count)
        yield cost_row("1,000 paced streams", "token", paced)
        theirs = max(each.rss_mb for each in paced[NGINX]) if NGINX in paced else None
        yield CostRow("memory, 1,000 streams", "MB", max(each.rss_mb for each in paced[GATEWAY]), None, theirs)
        added = added_ms(few, back, count)
        for position, quantile in enumerate(("p50", "p99")):
            theirs = added[NGINX][position] if NGINX in added else None
            yield CostRow(f"added to the first token, {quantile}", "ms", added[GATEWAY][position], None, theirs)


def _secure(machine: Machine, back: Backend, count: int) -> Iterator[CostRow]:
    """Measure with TLS to the replicas, and paced streams without TLS at the same time."""
    with contextlib.ExitStack() as stack:
        config = settings(back.tls_ports, tls=True)
        secure = {GATEWAY: stack.enter_context(gateway(machine, config, back.certificate))}
        plain = {GATEWAY + _PLAIN: stack.enter_context(gateway(machine, settings(back.ports)))}
        for targets, ports, name in ((secure, back.tls_ports, NGINX), (plain, back.ports, NGINX + _PLAIN)):
            beside = stack.enter_context(nginx(machine, ports, tls=targets is secure))
            if beside is not None:
                targets[name] = beside
        yield cost_row("64 streams of 20 tokens, TLS upstream", "request", measure_rounds(SHORT, secure, back, count))
        paced = measure_rounds(_SECURE, {**secure, **plain}, back, count)
        yield cost_row("300 paced streams, TLS upstream", "token", paced)
        ours, theirs = _more(paced, GATEWAY), _more(paced, NGINX) if NGINX in secure else None
        yield CostRow("the same, more than without TLS", "us a token", ours, None, theirs)


def _more(samples: SamplesByTarget, name: str) -> float:
    """Return the CPU time of a token with TLS minus that without TLS."""
    secure, plain = (median_cost(samples[each], "token").cpu_us for each in (name, name + _PLAIN))
    return secure - plain


def _starts(machine: Machine, back: Backend, count: int) -> Iterator[CostRow]:
    """Measure the time from the start of a gateway to its first streamed answer, with and without compiled bytecode.

    Each start runs a copy of the packages, because bytecode in the checkout depends on what ran there before. The
    libraries have their bytecode in both cases, as after an installation.
    """
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
        seen = asyncio.run(send(_ONE, target.port))
    if seen.errors:
        raise BenchError("the first answer of a gateway failed; run `python -m gateway demo`")
    return target.start_s + seen.ttfts_s[0]
