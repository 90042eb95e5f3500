"""Hedging before real engines of which one reads a long prompt now and then, as a fleet's replicas do.

Short requests arrive at times of their own, whether earlier ones were answered or not. Each policy gets the same
arrivals and the same long prompts, in blocks that take turns, so that what else the machine does hits all of them.
Units: seconds; the tables have milliseconds.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine_replicas import busy_slots, read_long
from engine_site import Site, until

# The defaults, but for what the names say. Round robin is what a plain load balancer does: it sends a third of the
# requests to the busy replica, and a tenth of them does not pay for all that are late, where other work on the
# machine makes some of the rest late, too.
POLICIES: Final[Mapping[str, Mapping[str, object]]] = {
    "round_robin_off": {"policy": "off", "routing": "round_robin"},
    "round_robin_adaptive": {"routing": "round_robin", "budget": "20%"},
    "predicted_off": {"policy": "off"},
    "predicted_adaptive": {},
}
SHORT_TOKENS, LONG_TOKENS = 60, 3000
BLOCK_S, REQUESTS_PER_S, LONG_EVERY_S = 10.0, 5.0, 10.0
LEARNING = 30  # requests to each policy before anything counts
_LOG_S = 0.3  # the gateway writes its log a tenth of a second late


@dataclass(slots=True)
class Row:
    """What one policy did.

    Attributes:
        ttfts_s: of every request, as its client saw it.
        hedged: requests that were sent twice.
        won: of them, the requests answered by the backup.
        denials: why a late request was not sent twice, or not immediately; each reason counts once a request.
    """

    ttfts_s: list[float] = field(default_factory=list)
    hedged: int = 0
    won: int = 0
    denials: Counter[str] = field(default_factory=Counter)

    def quantile_s(self, part: float) -> float:
        """The least of them that so large a part does not exceed."""
        ordered = sorted(self.ttfts_s)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


async def compared(site: Site, rounds: int) -> Mapping[str, Row]:
    """Every policy's figures.

    Args:
        rounds: blocks for each policy.
    """
    for model in POLICIES:
        draw = random.Random(model)
        for _ in range(LEARNING):
            await site.ttft_s(SHORT_TOKENS, model, draw)
    await asyncio.sleep(_LOG_S)
    seen = site.log.stat().st_size
    rows = {model: Row() for model in POLICIES}
    for number in range(rounds):
        for model in _in_turn(list(POLICIES), number):
            await until(lambda: sum(map(busy_slots, site.engines)) == 0)
            rows[model].ttfts_s += await _block(site, model, number)
    await asyncio.sleep(_LOG_S)
    _count(rows, site.log, seen)
    return rows


async def _block(site: Site, model: str, number: int) -> list[float]:
    """One block: its arrivals and long prompts are drawn from its number alone."""
    loop = asyncio.get_running_loop()
    times, text = random.Random(number), random.Random(f"{model} {number}")
    began_s = loop.time()

    async def long(at_s: float) -> None:
        await asyncio.sleep(began_s + at_s - loop.time())
        await asyncio.to_thread(read_long, site.engines[0], LONG_TOKENS, text.randrange(1 << 30))

    async def short(at_s: float) -> float:
        await asyncio.sleep(began_s + at_s - loop.time())
        return await site.ttft_s(SHORT_TOKENS, model, text, max_tokens=4)

    async with asyncio.TaskGroup() as tasks:
        for at_s in _arrivals(times, 1 / LONG_EVERY_S):
            tasks.create_task(long(at_s))
        calls = [tasks.create_task(short(at_s)) for at_s in _arrivals(times, REQUESTS_PER_S)]
    return [call.result() for call in calls]


def _arrivals(draw: random.Random, per_s: float) -> Iterator[float]:
    """Times within a block: one at some time in each of its equal parts."""
    for part in range(round(BLOCK_S * per_s)):
        yield (part + draw.random()) / per_s


def _in_turn(models: Sequence[str], number: int) -> Sequence[str]:
    """Another one is first in each round."""
    first = number % len(models)
    return [*models[first:], *models[:first]]


def _count(rows: Mapping[str, Row], log: Path, seen: int) -> None:
    """What the gateway's log says of the requests behind so many bytes of it."""
    with log.open("rb") as lines:
        lines.seek(seen)
        for line in lines:
            said: dict[str, Any] = json.loads(line)
            if said["event"] == "request" and said["model"] in rows:
                row = rows[said["model"]]
                row.hedged += any(each["role"] == "backup" for each in said["attempts"])
                row.won += said["result"] == "backup_won"
                row.denials.update(said.get("denials", ()))
