"""A long run of everything that leaves something behind if anything does, and then a look at what is left.

Hedges, answers cut in the middle, errors, clients that leave while they wait and while they read, and reloads of the
configuration; then a minute of silence. `scripts/soak` runs it; the gateway is a process of its own. Units: seconds,
bytes.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import random
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from counted_gateway import TELL
from raw_http import Cut, answer, asking, connect
from served import Served, gateway, replicas

_WARM = 5_000  # requests before the first look, with two reloads: code, pools and estimates are there by then
_AT_ONCE = 60
_IDLE_S = 75.0  # an idle connection to a replica is closed after a minute
_RELOAD_EVERY = 2_000  # requests
_TOLD_S = 10.0
_RSS_SHARE_MAX = 1.10
_PLAYED = frozenset(  # above info, these are about what was played
    {"config_reloaded", "breaker_changed", "health_changed", "request"}
)
_PROFILES: Mapping[str, Mapping[str, object]] = {
    "a": {"ttft": "2ms", "gap": "1ms", "tokens": 6, "stall": "10%:200ms"},
    "b": {"ttft": "3ms", "gap": "1ms", "tokens": 6, "stall": "10%:200ms", "faults": ["cut_rst:3 1%", "503 1%"]},
    "c": {"ttft": "3ms", "gap": "1ms", "tokens": 6, "faults": ["cut_chunked:2 1%", "reset 0.5%", "error_frame:2 0.5%"]},
}


@dataclass(frozen=True)
class Look:
    """What a process holds.

    Attributes:
        rss_bytes: resident memory.
        sockets: open ones.
        tasks, timers: of its loop.
    """

    rss_bytes: int
    sockets: int
    tasks: int
    timers: int


@dataclass
class Soaked:
    """What came of it.

    Attributes:
        ends: how requests ended, as their clients saw it.
        reloads: that were carried out.
        before, after: what the process held.
        under_way: attempts, requests waiting and bytes of bodies that the admin address tells of in the end.
        hedges: sent.
        above_info: log events that are neither info nor told of by what was played.
    """

    ends: Counter[str] = field(default_factory=Counter)
    reloads: int = 0
    before: Look | None = None
    after: Look | None = None
    under_way: float = 0.0
    hedges: float = 0.0
    above_info: Counter[str] = field(default_factory=Counter)


async def soak(served: Served, folder: Path, count: int, seed: int, idle_s: float) -> Soaked:
    """Send so many requests, wait, and look."""
    result, rand = Soaked(), random.Random(seed)
    port = urlsplit(served.url).port or 0
    await _load(port, min(_WARM, count), rand, result)
    for by_signal in (False, True):
        await _reload(served, folder, by_signal=by_signal, result=result)
    await asyncio.to_thread(_get, served.admin_url + "/metrics")
    await asyncio.sleep(idle_s)
    result.before = await _look(served)
    for start in range(0, count, _RELOAD_EVERY):
        await _load(port, min(_RELOAD_EVERY, count - start), rand, result)
        await _reload(served, folder, by_signal=bool(start // _RELOAD_EVERY % 2), result=result)
        sys.stderr.write(f"\r{start + _RELOAD_EVERY} of {count}, {_rss_bytes(served.pid) / 1e6:.1f} MB ")
    sys.stderr.write("\n")
    await asyncio.sleep(idle_s)
    result.after = await _look(served)
    metrics = await asyncio.to_thread(_get, served.admin_url + "/metrics")
    for name in ("in_flight", "queue_length", "request_body_bytes"):
        result.under_way += _sum(metrics, f"ttft_gateway_{name}")
    result.hedges = _sum(metrics, "ttft_gateway_hedges_total")
    for line in (folder / "gateway.log").read_bytes().splitlines():
        event = json.loads(line)
        if event["level"] != "info" and event["event"] not in _PLAYED:
            result.above_info[event["event"]] += 1
    return result


async def _load(port: int, count: int, rand: random.Random, result: Soaked) -> None:
    """Requests of all kinds, some at a time."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            result.ends[await _request(port, rand.random(), asking(stream=rand.random() < 0.8))] += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_ONCE):
            tasks.create_task(work())


async def _request(port: int, chance: float, payload: bytes) -> str:
    """One request and how it ended; chance decides whether its client stays."""
    if chance < 0.05:
        _, writer = await connect(port)
        writer.write(payload)
        await asyncio.sleep(0.02 * chance)  # at some point before the first content
        writer.transport.abort()
        return "left while it waited"
    try:
        async with asyncio.timeout(30), answer(port, payload) as got:
            async with contextlib.aclosing(got.pieces()) as pieces:
                async for piece in pieces:
                    if chance < 0.10:
                        return "left in the middle"
                    if b'"error"' in piece:
                        return "error"
            return str(got.status)
    except Cut:
        return "cut"


async def _reload(served: Served, folder: Path, *, by_signal: bool, result: Soaked) -> None:
    """Change the configuration, and have it read again."""
    file = folder / "gateway.yaml"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["models"][0]["hedge"]["budget"] = "30%" if config["models"][0]["hedge"]["budget"] == "20%" else "20%"
    file.write_text(json.dumps(config), encoding="utf-8")
    if by_signal:
        os.kill(served.pid, signal.SIGHUP)
    else:
        await asyncio.to_thread(_get, served.admin_url + "/admin/reload", b"")
    result.reloads += 1


async def _look(served: Served) -> Look:
    told = len(served.stderr)
    os.kill(served.pid, TELL)
    async with asyncio.timeout(_TOLD_S):
        while not (lines := [line for line in served.stderr[told:] if line.startswith('{"tasks"')]):
            await asyncio.sleep(0.05)
    counts: dict[str, int] = json.loads(lines[0])
    return Look(_rss_bytes(served.pid), _sockets(served.pid), counts["tasks"], counts["timers"])


def _rss_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    return int(found[1]) * 1024 if found else 0


def _sockets(pid: int) -> int:
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            count += str(link.readlink()).startswith("socket:")
    return count


def _get(url: str, data: bytes | None = None) -> str:
    where = urlsplit(url)
    with contextlib.closing(http.client.HTTPConnection(where.netloc, timeout=_TOLD_S)) as connection:
        connection.request("GET" if data is None else "POST", where.path, data)
        answered = connection.getresponse()
        text = answered.read().decode()
    if answered.status != 200:
        raise RuntimeError(f"{url} said {answered.status}: {text}")
    return text


def _sum(metrics: str, name: str) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in metrics.splitlines() if re.match(rf"{name}[ {{]", line))


def _lines(result: Soaked, count: int, idle_s: float) -> Iterator[tuple[str, str, bool]]:
    """What was found: what, how much, whether that is right."""
    before, after = result.before, result.after
    assert before is not None
    assert after is not None
    yield "requests", ", ".join(f"{number} {end}" for end, number in result.ends.most_common()), True
    yield "hedges, reloads", f"{result.hedges:.0f}, {result.reloads}", result.hedges > count / 100
    share = after.rss_bytes / before.rss_bytes
    rss = f"{before.rss_bytes / 1e6:.1f} MB, then {after.rss_bytes / 1e6:.1f} ({share:.2f}x)"
    yield f"memory, <= {_RSS_SHARE_MAX:g}x", rss, share <= _RSS_SHARE_MAX
    yield "tasks", f"{before.tasks}, then {after.tasks}", after.tasks <= before.tasks
    yield "timers", f"{before.timers}, then {after.timers}", after.timers <= before.timers
    sockets = f"{before.sockets}, then {after.sockets}"
    yield "sockets", sockets, after.sockets <= before.sockets or idle_s < _IDLE_S
    yield "attempts, waiting, bodies held", f"{result.under_way:g}", result.under_way == 0
    yield "above info but what was played", str(dict(result.above_info) or 0), not result.above_info


def main() -> int:
    """Soak, and tell; the exit code is 1 when something is left."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    idle = f"seconds of silence before each look; below {_IDLE_S:g} sockets are shown and not judged"
    parser.add_argument("--idle", type=float, default=_IDLE_S, help=idle)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with contextlib.ExitStack() as opened:
        urls = opened.enter_context(replicas(**_PROFILES))
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        rows = [{"name": name, "kind": "simulated", "base_url": url} for name, url in urls.items()]
        hedge: dict[str, Any] = {"policy": "static", "delay": "100ms", "budget": "20%"}
        config = {"models": [{"name": "m", "replicas": rows, "hedge": hedge}]}
        served = opened.enter_context(gateway(config, folder, module="counted_gateway"))
        result = asyncio.run(soak(served, folder, given.requests, given.seed, given.idle))
    fine = True
    for what, measured, holds in _lines(result, given.requests, given.idle):
        fine = fine and holds
        sys.stdout.write(f"{'ok  ' if holds else 'FAIL'}  {what:<34}  {measured}\n")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
