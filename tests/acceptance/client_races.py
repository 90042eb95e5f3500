"""Races of the client library with errors, resets, silences and cancellations, and a search for what they leave.

    python tests/acceptance/client_races.py --races 10000

Ten thousand races through each client library, 16 at a time. Afterwards no connection, slot of a connection pool,
thread, task, open file or attempt in the policy may be left. Scripts/nightly runs it; tests/client/test_leaks.py is its
short form. With `--bare` the client libraries of HTTP send alone: httpx loses slots when its requests are cancelled.
"""

import argparse
import asyncio
import gc
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import httpx
import httpx2

import rpc_races
from client_replicas import SILENT, ScriptedReplica, replicas
from many_races import in_tasks, in_threads
from ttft_gateway import (
    AsyncHedgingTransport,
    AsyncHedgingTransport2,
    HedgeConfig,
    HedgingSession,
    HedgingTransport,
    HedgingTransport2,
    StatsSnapshot,
)

TRANSPORTS: Final = ("sync", "async", "sync httpx2", "async httpx2", "aiohttp", "grpc sync", "grpc async")

_CONFIG: Final = HedgeConfig(warmup_delay=0.01, warmup_requests=100_000, budget_percent=100.0, max_hedges=2)
_CALL: Final = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
_MODELS: Final = 200  # so that errors of one rarely stop its backups
_WORDS: Final = (*["quick"] * 8, *SILENT, "empty", "error_event", "error_500", "limited", "reset", "dies", "cut")
_PLAN: Final = 4_000  # behaviours, drawn once and then repeated
_FILES: Final = Path("/proc/self/fd")


Run = tuple["Counter[str]", list[Any], int]
"""Outcomes, the hedgers of the client, and slots of its pool that no request uses and that are taken."""


def run(transport: str, races: int, seed: int = 1, *, raced: bool = True) -> list[str]:
    """Run races through one of `TRANSPORTS`; print a line that counts the outcomes, and return what was left."""
    rand = random.Random(seed)
    if transport.startswith("grpc"):
        rpc_races.warm_up()
    gc.collect()
    files, threads = _files(), threading.active_count()
    if transport.startswith("grpc"):
        work = rpc_races.threads if transport == "grpc sync" else rpc_races.tasks
        (counts, hedgers), slots = work(_CONFIG, races, rand), 0
    else:
        counts, hedgers, slots = _http(transport, races, rand, raced=raced)
    gc.collect()
    pools = [each.pool for hedger in hedgers for each in hedger._populations.values()]
    left = {
        "slots of the pool": slots,
        "attempts in the policy": sum(replica.in_flight for pool in pools for replica in pool.replicas),
        "open files": _settled(lambda: _files() - files),
        "threads": threading.active_count() - threads,
    }
    snapshot = hedgers[0].stats.snapshot() if hedgers else StatsSnapshot()
    line = f"{transport}: {races} races, {snapshot.hedges} backups, {snapshot.hedge_wins} wins; {dict(counts)}"
    sys.stdout.write(f"{line}\n")
    return [f"{transport}: {number} {name} left" for name, number in left.items() if number]


def _http(transport: str, races: int, rand: random.Random, *, raced: bool) -> Run:
    """Race over HTTP."""
    with replicas() as site:
        replica = site.add(*(_WORDS[int(rand.random() * len(_WORDS))] for _ in range(_PLAN)))
        replica.repeats = True
        if transport.startswith("sync"):
            found = _threads(transport, replica, races, rand, raced=raced)
        elif transport.startswith("async"):
            found = asyncio.run(_tasks(transport, replica, races, rand, raced=raced))
        else:
            found = asyncio.run(_sessions(replica, races, rand, raced=raced))
        _until(lambda: replica.open_connections == 0)
    return found


def _threads(name: str, replica: ScriptedReplica, races: int, rand: random.Random, *, raced: bool) -> Run:
    """Race in threads; a third is given up by a timeout, and a third closed in the middle."""
    library, made = (httpx2, HedgingTransport2) if name.endswith("2") else (httpx, HedgingTransport)
    http: Any = library
    inner: Any = http.HTTPTransport(verify=False)
    transport: Any = made(_CONFIG, transport=inner) if raced else inner

    def one(client: Any, draw: float) -> str:
        timeout = 0.3 if draw < 0.66 else 0.02
        with client.stream("POST", f"{replica.url}/chat/completions", json=_call(draw), timeout=timeout) as response:
            for _ in response.iter_bytes():
                if draw < 0.33:
                    break
        return str(response.status_code)

    with http.Client(transport=transport) as client:
        counts = in_threads(partial(one, client), races, rand, (http.HTTPError,))
        return counts, [transport.hedger] if raced else [], _settled(lambda: _taken(inner._pool))


async def _tasks(name: str, replica: ScriptedReplica, races: int, rand: random.Random, *, raced: bool) -> Run:
    """Race in tasks through httpx or httpx2."""
    library, made = (httpx2, AsyncHedgingTransport2) if name.endswith("2") else (httpx, AsyncHedgingTransport)
    http: Any = library
    inner: Any = http.AsyncHTTPTransport(verify=False)
    transport: Any = made(_CONFIG, transport=inner) if raced else inner

    async def one(client: Any, draw: float) -> str:
        async with client.stream("POST", f"{replica.url}/chat/completions", json=_call(draw), timeout=0.3) as response:
            async for _ in response.aiter_bytes():
                if draw < 0.33:
                    break
        return str(response.status_code)

    async with http.AsyncClient(transport=transport) as client:
        counts = await in_tasks(partial(one, client), races, rand, (http.HTTPError,))
        await _alone()
        taken = _taken(inner._pool)
    await _alone()
    return counts, [transport.hedger] if raced else [], taken


async def _sessions(replica: ScriptedReplica, races: int, rand: random.Random, *, raced: bool) -> Run:
    """Race in tasks through aiohttp."""

    async def one(session: Any, draw: float) -> str:
        url, timeout = f"{replica.url}/chat/completions", aiohttp.ClientTimeout(total=0.3)
        async with session.post(url, json=_call(draw), timeout=timeout) as response:
            async for _ in response.content:
                if draw < 0.33:
                    break
            return str(response.status)

    made: Any = HedgingSession(_CONFIG) if raced else aiohttp.ClientSession()
    async with made as session:
        counts = await in_tasks(partial(one, session), races, rand, (aiohttp.ClientError,))
        await _alone()
        taken = len(session.connector._acquired)
    await _alone()
    return counts, [session.hedger] if raced else [], taken


async def _alone() -> None:
    """Wait for the end of all other tasks; generators that were left in the middle end in tasks."""
    gc.collect()
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)


def _taken(pool: Any) -> int:
    """Return the number of connections of httpcore's pool that are neither idle nor closed, after all requests."""
    return sum(not (each.is_idle() or each.is_closed()) for each in pool._connections)


def _settled(count: Callable[[], int]) -> int:
    """Return what stays of a number: threads of losers, and grpc's, may end some milliseconds after the last race."""
    pause = threading.Event()
    for _ in range(500):
        if not count():
            break
        pause.wait(0.01)
    return count()


def _call(draw: float) -> dict[str, object]:
    return {**_CALL, "model": f"m{int(draw * 1e6) % _MODELS}"}


def _until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; the caller's time limit bounds it."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)


def _files() -> int:
    return len(list(_FILES.iterdir())) if _FILES.is_dir() else 0


def main() -> int:
    """Run all transports and print what was left."""
    parser = argparse.ArgumentParser(description="Races of the client library, and a search for what they leave.")
    parser.add_argument("--races", type=int, default=10_000, help="races through each transport")
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=TRANSPORTS)
    parser.add_argument("--bare", action="store_true", help="without races")
    args = parser.parse_args()
    left = [line for transport in args.transports for line in run(transport, args.races, raced=not args.bare)]
    sys.stdout.write("\n".join(left or ["nothing was left"]) + "\n")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
