"""The total and the direct effect of hedging before real engines: a switchback, and measured requests inside of it.

Replicas and load are defined in `engine_hedging.py`, for as long as `ttft-gateway switchback` runs. Then
`ttft-gateway prove` reports the direct effect in the blocks with hedging. Units: seconds.
"""

import asyncio
import random
import sys
from collections.abc import Mapping
from typing import Final

from checkout import ROOT
from engine_hedging import LEARNING, LONG_EVERY_S, LONG_TOKENS, REQUESTS_PER_S, SHORT_TOKENS
from engine_replicas import read_long
from engine_site import Site

MODEL: Final = "switched"
POLICY: Final[Mapping[str, object]] = {
    "routing": "round_robin",
    "budget": "20%",
    "measure": {"losers": "20%", "holdout": "20%", "slo": "500ms"},
}
_ANSWER_TOKENS: Final = 4


async def switched(site: Site, admin_url: str, blocks: int, block_s: float) -> tuple[str, str]:
    """Run the experiment; return the printed reports of `switchback` and of `prove`."""
    draw = random.Random(MODEL)
    for _ in range(LEARNING):
        await site.ttft_s(SHORT_TOKENS, MODEL, draw)
    counted = ("--blocks", str(blocks), "--length", f"{block_s:g}s", "--seed", "1")
    async with asyncio.TaskGroup() as tasks:
        load = tasks.create_task(_load(site, draw))
        total = await _command("switchback", "--admin", admin_url, "--model", MODEL, *counted)
        load.cancel()
    return total, await _command("prove", "--admin", admin_url, "--model", MODEL)


async def _load(site: Site, draw: random.Random) -> None:
    """Send short requests to the gateway and long prompts to the first engine until it is cancelled."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_longs(site, draw.randrange(1 << 30), tasks))
        while True:
            await asyncio.sleep(draw.expovariate(REQUESTS_PER_S))
            tasks.create_task(site.ttft_s(SHORT_TOKENS, MODEL, draw, max_tokens=_ANSWER_TOKENS))


async def _longs(site: Site, seed: int, tasks: asyncio.TaskGroup) -> None:
    """Send a long prompt in each period, at a random time, that the gateway does not see."""
    draw = random.Random(seed)
    while True:
        before_s = LONG_EVERY_S * draw.random()
        await asyncio.sleep(before_s)
        tasks.create_task(asyncio.to_thread(read_long, site.engines[0], LONG_TOKENS, draw.randrange(1 << 30)))
        await asyncio.sleep(LONG_EVERY_S - before_s)


async def _command(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"`ttft-gateway {arguments[0]}` ended with exit code {process.returncode}")
    return printed.decode()
