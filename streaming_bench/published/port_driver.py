"""Runs the Python port's httpx transport over simulated answers, in the environment of the port.

The port's page gives: 500 requests, lognormal(5, 2) ms, 5 % stragglers ten times as slow, defaults for the rest. One
request at a time: with more, its default bucket (100 requests/s) could not have paid for the published 7 %. Virtual
time by default, so that the machine has no influence except a fixed overhead. Prints one JSON object. Started by
python_port.py as a script; it loads one file of this project, which needs no package, so that the packages of this
project do not conflict with those of the port. Units: seconds inside, milliseconds in the result.
"""

import argparse
import asyncio
import json
import math
import random
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import hedge
import httpx
from hedge.budget import _token_bucket
from hedge.transport import HedgedHttpxTransport, _base

_VIRTUAL_LOOP = Path(__file__).parents[1] / "simulation" / "virtual_loop.py"

MEAN_S, SD_S = 0.005, 0.002
STRAGGLERS, FACTOR = 0.05, 10
OVERHEAD_S = 0.0011  # of httpx and the event loop: the published p50 of 5.8 ms minus the distribution's, 4.64 ms


class SimulatedTransport(httpx.AsyncBaseTransport):
    """Answers after a drawn time."""

    def __init__(self, seed: int, overhead_s: float) -> None:
        self._overhead_s = overhead_s
        self._rng = random.Random(seed)
        variance = math.log(1 + (SD_S / MEAN_S) ** 2)
        self._mu, self._sigma = math.log(MEAN_S) - variance / 2, math.sqrt(variance)
        self.calls = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.calls += 1
        wait_s = self._rng.lognormvariate(self._mu, self._sigma)
        wait_s *= FACTOR if self._rng.random() < STRAGGLERS else 1
        await asyncio.sleep(wait_s + self._overhead_s)
        return httpx.Response(200, request=request)


async def run(args: argparse.Namespace, *, hedged: bool) -> dict[str, object]:
    """Send all requests, with or without the port's transport."""
    loop = asyncio.get_running_loop()
    times_ms: list[float] = []
    if args.virtual:
        _base.time = _token_bucket.time = SimpleNamespace(monotonic=loop.time)
    simulated = SimulatedTransport(args.seed, OVERHEAD_S if args.virtual else 0.0)
    transport = HedgedHttpxTransport(inner=simulated, config=hedge.HedgeConfig()) if hedged else simulated
    numbers = iter(range(args.requests))

    async def work(client: httpx.AsyncClient) -> None:
        for _ in numbers:
            began_s = loop.time()
            await client.get("http://replica.invalid/")
            times_ms.append(1000 * (loop.time() - began_s))

    async with httpx.AsyncClient(transport=transport) as client, asyncio.TaskGroup() as tasks:
        for _ in range(args.at_a_time):
            tasks.create_task(work(client))
    return {"times_ms": sorted(times_ms), "extra": simulated.calls / args.requests - 1}


async def main(args: argparse.Namespace) -> None:
    """Run both rows and print them."""
    rows = {"no hedging": await run(args, hedged=False), "adaptive": await run(args, hedged=True)}
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-a-time", type=int, default=1)
    parser.add_argument("--real-time", dest="virtual", action="store_false")
    given = parser.parse_args()
    factory = runpy.run_path(str(_VIRTUAL_LOOP))["VirtualLoop"] if given.virtual else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main(given))
