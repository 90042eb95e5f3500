"""CPU time of a request that is not hedged: the client library compared with bare httpx and bare aiohttp.

    PYTHONPATH=.:tests:tests/support python tests/acceptance/client_cost.py --requests 300 --rounds 15

Each round measures both in turn over streams of a replica in another process; the cost is the median of the rounds'
differences, printed with their quartiles. The policy learns and plans as usual, and no request is late. Units:
microseconds of CPU time of this process. tests/client/test_cost.py holds the number of calls.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import aiohttp
import httpx

from checkout import ROOT
from ttft_gateway import AsyncHedgingTransport, HedgeConfig, HedgingSession, HedgingTransport

_PROFILE: Final = '[{"ttft": "0ms", "gap": "0ms", "tokens": "4"}]'
_BODY: Final = json.dumps(
    {
        "model": "m",
        "messages": [{"role": "user", "content": "Write two sentences about the tail of a latency distribution."}],
        "stream": True,
    },
    separators=(",", ":"),  # as SDKs send it
).encode()
_NEVER_LATE: Final = HedgeConfig(min_delay=3600.0)
_HEADERS: Final = {"authorization": "Bearer k", "content-type": "application/json", "x-stainless-retry-count": "0"}


def _block(transport: httpx.BaseTransport, url: str) -> Callable[[int], float]:
    client = httpx.Client(transport=transport, timeout=7200.0)

    def run(requests: int) -> float:
        start_s = time.process_time()
        for _ in range(requests):
            client.post(url, content=_BODY, headers=_HEADERS)
        return (time.process_time() - start_s) / requests * 1e6

    return run


def _async_block(runner: asyncio.Runner, transport: httpx.AsyncBaseTransport, url: str) -> Callable[[int], float]:
    client = httpx.AsyncClient(transport=transport, timeout=7200.0)

    async def work(requests: int) -> None:
        for _ in range(requests):
            await client.post(url, content=_BODY, headers=_HEADERS)

    def run(requests: int) -> float:
        start_s = time.process_time()
        runner.run(work(requests))
        return (time.process_time() - start_s) / requests * 1e6

    return run


def _session_block(runner: asyncio.Runner, kind: Callable[[], Any], url: str) -> Callable[[int], float]:
    async def work(requests: int) -> float:
        async with kind() as session:
            start_s = time.process_time()
            for _ in range(requests):
                async with session.post(url, data=_BODY, headers=_HEADERS) as response:
                    await response.read()
            return (time.process_time() - start_s) / requests * 1e6

    return lambda requests: runner.run(work(requests))


def _compare(
    name: str, bare: Callable[[int], float], raced: Callable[[int], float], requests: int, rounds: int
) -> None:
    times = [(bare(requests), raced(requests)) for _ in range(rounds + 1)][1:]  # the first one warms up
    low, cost, high = statistics.quantiles((raced - bare for bare, raced in times), n=4)
    bare_us = statistics.median(bare for bare, _ in times)
    least = min(raced for _, raced in times) - min(bare for bare, _ in times)
    shown = f"{cost:+.0f} us a request (quartiles {low:+.0f} and {high:+.0f}; of the quickest rounds {least:+.0f})"
    sys.stdout.write(f"{name}: bare {bare_us:.0f}, hedging {shown}\n")


def main() -> None:
    """Measure each client library and print the difference."""
    parser = argparse.ArgumentParser(description="CPU time of a request that is not hedged.")
    parser.add_argument("--requests", type=int, default=300, help="requests of a round")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    command = [sys.executable, "-m", "gateway.simulated.fleet", _PROFILE]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as replica:
        assert replica.stdout is not None
        [[port, _]] = json.loads(replica.stdout.readline())
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        raced = HedgingTransport(_NEVER_LATE)
        _compare("sync", _block(httpx.HTTPTransport(), url), _block(raced, url), args.requests, args.rounds)
        with asyncio.Runner() as runner:
            inner: Any = AsyncHedgingTransport(_NEVER_LATE, stats=raced.stats)
            bare = _async_block(runner, httpx.AsyncHTTPTransport(), url)
            _compare("async", bare, _async_block(runner, inner, url), args.requests, args.rounds)
            bare = _session_block(runner, aiohttp.ClientSession, url)
            session = partial(HedgingSession, _NEVER_LATE, stats=raced.stats)
            _compare("aiohttp", bare, _session_block(runner, session, url), args.requests, args.rounds)
        counts = raced.stats.snapshot()
        sys.stdout.write(f"{counts.hedges} of {counts.requests} requests were hedged\n")
        assert replica.stdin is not None
        replica.stdin.close()


if __name__ == "__main__":
    main()
