"""Attacks with the answers of replicas: documents and streams that are expensive to read. Units: seconds, bytes.

The gateway, both replicas and the hostile clients are processes of their own.
Times are judged only on an idle machine: `machine.py` measures the load before and after.
"""

import asyncio
import contextlib
import json
import statistics
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attack_beside import Watched, watched
from attack_bodies import Probe
from attack_rows import Row, Scale
from gateway_fixture import fronting
from hostile_answers import STREAMS, HostileAnswer
from hostile_replica import SHAPES
from line_process import LineProcess, process
from machine import busy_share, is_idle
from raw_http import answer, request_bytes
from ttft_gateway.apis.base import Api

_HELD_MS_MAX: Final = 20
_RATIO_MAX: Final = 1.5
_DOCUMENT_BYTES: Final = 60_000_000
_EVENTS_BYTES: Final = 9_000_000
_STREAM_BYTES: Final = 20_000_000
_SHORT_BYTES: Final = 2_000_000
_ROUNDS: Final = 3
_FLOODS: Final = 2  # connections of the hostile key
_WAIT_S: Final = 120.0
_KEYS: Final = [{"name": "hostile", "key": "sk-hostile"}, {"name": "watched", "key": "sk-watched"}]
_KEY: Final = {"authorization": "Bearer sk-hostile"}
_APIS: Final = ["chat/completions", "embeddings", "rerank"]
_ASKED: Final[Mapping[Api, Mapping[str, object]]] = {
    Api.EMBEDDINGS: {"input": "x"},
    Api.RERANK: {"query": "a", "documents": ["b"]},
}


@dataclass(frozen=True)
class _Site:
    port: int
    pid: int
    client: LineProcess


def _request(number: int, shape: HostileAnswer) -> bytes:
    fields = _ASKED.get(shape.api) or {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 9,
        "stream": shape.stream,
    }
    return request_bytes(
        json.dumps({"model": f"h{number}", **fields}).encode(),
        f"/v1/{shape.api.value}",
        headers={**_KEY, "connection": "close"},
    )


@contextlib.asynccontextmanager
async def _site(size: int, workers: int) -> AsyncIterator[_Site]:
    """A gateway with one model of a usual replica, `m`, and one for each shape."""
    async with contextlib.AsyncExitStack() as opened:
        hostile = await opened.enter_async_context(process("hostile_replica", str(size)))
        hostile_port = await hostile.read()
        usual = json.dumps([{"ttft": "30ms", "tokens": 4}])
        [[port, _]] = await (await opened.enter_async_context(process("gateway.simulated.fleet", usual))).read()
        models = [
            {
                "name": f"h{number}",
                "hedge": {"policy": "off"},
                "replicas": [
                    {
                        "name": f"r{number}",
                        "kind": "compatible",
                        "apis": _APIS,
                        "base_url": f"http://127.0.0.1:{hostile_port}/{number}/v1",
                    }
                ],
            }
            for number in range(len(SHAPES))
        ]
        site = await opened.enter_async_context(
            fronting({"a": f"http://127.0.0.1:{port}/v1"}, process=True, keys=_KEYS, workers=workers, beside=models)
        )
        client = await opened.enter_async_context(process("answer_client", str(site.port)))
        yield _Site(site.port, site.pid, client)


async def documents(scale: Scale) -> list[Row]:
    """One answer of each shape: the longest wait of another client, and the memory of the process."""
    rows = []
    for number, (name, shape) in enumerate(SHAPES.items()):
        size = _SHORT_BYTES if scale.short else _DOCUMENT_BYTES if shape.is_json else _EVENTS_BYTES
        bytes_sent = min(size, shape.most or size)
        async with _site(size, 1) as site:
            payload = _request(number, shape)
            is_idle_before = await is_idle()
            before_mb = _reset_peak_mb(site.pid)
            probe = Probe()
            async with asyncio.timeout(_WAIT_S), probe.running(site.port, 0.002), answer(site.port, payload) as got:
                body = await got.body()
            grown_mb, most_mb = _peak_mb(site.pid) - before_mb, 3 * bytes_sent / 2**20 + 16
            held_ms = 1000 * probe.longest_s
            judged = not scale.short and is_idle_before and await is_idle()
        what = f"{name}, {bytes_sent / 1e6:g} MB"
        note = "" if judged or scale.short else " (machine not idle: not judged)"
        fine = not judged or held_ms <= _HELD_MS_MAX
        rows.append(
            Row(
                what,
                f"<= {_HELD_MS_MAX} ms for others",
                f"{held_ms:.1f} ms; {got.status}, {len(body)} bytes{note}",
                fine,
            )
        )
        rows.append(
            Row("the same: memory", f"<= 3 x + 16 = {most_mb:.0f} MB", f"{grown_mb:.0f} MB", grown_mb <= most_mb)
        )
    return rows


async def streams(scale: Scale) -> list[Row]:
    """Two connections of one key that read answers as fast as they can; a second key streams."""
    rows = []
    size = _SHORT_BYTES if scale.short else _STREAM_BYTES
    for workers in (1,) if scale.short else (1, 2):
        async with _site(size, workers) as site:
            for name, shape in STREAMS.items():
                number = list(SHAPES).index(name)
                rows += await _flooded(scale, site, f"{name}, workers: {workers}", _request(number, shape))
    return rows


async def _flooded(scale: Scale, site: _Site, what: str, payload: bytes) -> list[Row]:
    idle = [await is_idle()]
    alone, beside, read_bytes = list[Watched](), list[Watched](), 0
    for _ in range(1 if scale.short else _ROUNDS):
        alone.append(await watched(site.port, scale.requests))
        await site.client.ask(json.dumps([_FLOODS, payload.decode()]))
        beside.append(await watched(site.port, scale.requests))
        read_bytes = await site.client.ask("")
    idle.append(await is_idle())
    refused = sum(each.refused for each in (*alone, *beside))
    ratios = [
        statistics.median(of(other) / of(one) for one, other in zip(alone, beside, strict=True))
        for of in (Watched.median_s, Watched.p99_s)
    ]
    judged = not scale.short and all(idle)
    note = "" if judged or scale.short else f" (machine {100 * await busy_share():.0f} % busy: not judged)"
    fine = refused == 0 and (not judged or max(ratios) <= _RATIO_MAX)
    measured = f"{ratios[0]:.2f} and {ratios[1]:.2f} x, {refused} refused; {read_bytes / 1e6:.0f} MB read{note}"
    return [Row(f"beside {_FLOODS} x {what}"[:80], f"p50, p99 <= {_RATIO_MAX} x", measured, fine)]


def _reset_peak_mb(pid: int) -> float:
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
    return _peak_mb(pid)


def _peak_mb(pid: int) -> float:
    """Return the largest resident memory since the last reset."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))
