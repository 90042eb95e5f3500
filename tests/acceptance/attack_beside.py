"""One hostile client and one watched client: times and refusals of the watched client. Units: seconds, bytes.

The gateway, the simulated replica, the hostile client and the watched client are four processes, so that the watched
client measures the gateway and not the work of the other clients. Rounds with and without attacks take turns, because
the load of the machine changes; each ratio is the median of the rounds.
"""

import asyncio
import contextlib
import json
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from attack_rows import Row, Scale
from gateway_fixture import fronting
from hostile_client import HOSTILE_KEY
from line_process import process
from raw_http import ASK, Cut, answer, request_bytes

_WATCHED_KEY: Final = "sk-watched"
_TTFT: Final = "300ms"  # a usual time of hosted models; the replica draws no other
_RATIO_MAX: Final = 1.5
_STREAMS: Final = 8  # of the watched client at the same time
_ROUNDS: Final = 5
_WAIT_S: Final = 60.0


@dataclass
class Watched:
    """Times to the first content and refusals in a round.

    Attributes:
        ttfts_s: one for each response.
        refused: requests with another status than 200, or without a response.
    """

    ttfts_s: list[float] = field(default_factory=list)
    refused: int = 0

    def median_s(self) -> float:
        return statistics.median(self.ttfts_s)

    def p99_s(self) -> float:
        return sorted(self.ttfts_s)[max(0, -(-99 * len(self.ttfts_s) // 100) - 1)]


async def two_clients(scale: Scale) -> list[Row]:
    """All attacks with bodies and connections together, with one key; a second key streams."""
    rounds, requests = (1, scale.requests) if scale.short else (_ROUNDS, scale.requests // 2)
    alone, beside, sent = [], [], Counter[str]()
    async with contextlib.AsyncExitStack() as opened:
        profile = {"ttft": _TTFT, "tokens": 4}
        replica = await opened.enter_async_context(process("gateway.simulated.fleet", json.dumps([profile])))
        [[port, _]] = await replica.read()
        keys = [{"name": "hostile", "key": HOSTILE_KEY}, {"name": "watched", "key": _WATCHED_KEY}]
        site = await opened.enter_async_context(fronting({"a": f"http://127.0.0.1:{port}/v1"}, process=True, keys=keys))
        arguments = (str(site.port), str(scale.body_bytes), str(scale.clients))
        hostile = await opened.enter_async_context(process("hostile_client", *arguments))
        for _ in range(rounds):
            alone.append(await watched(site.port, requests))
            await hostile.ask("on")
            beside.append(await watched(site.port, requests))
            ended = await hostile.ask("off")
            sent["bodies"] += ended["bodies"]
            sent.update(ended["statuses"])
    refused = sum(each.refused for each in (*alone, *beside))
    total = 2 * rounds * (requests // _STREAMS) * _STREAMS
    many = f"{sent['bodies']} bodies of {scale.body_bytes / 1e6:g} MB, {scale.clients} idle, 52 announced, trailers"
    rows = [Row(f"beside {many}"[:80], "0 refused", f"{refused} of {total}", refused == 0)]
    for name, of in (("median", Watched.median_s), ("p99", Watched.p99_s)):
        pairs = [
            (of(one), of(other)) for one, other in zip(alone, beside, strict=True) if one.ttfts_s and other.ttfts_s
        ]
        ratio = statistics.median([other / one for one, other in pairs]) if pairs else float("inf")
        ms = [f"{1000 * statistics.median(column):.0f}" for column in zip(*pairs, strict=True)]
        fine = bool(pairs) and (scale.short or ratio <= _RATIO_MAX)
        rows.append(
            Row(
                f"the watched client's {name}", f"<= {_RATIO_MAX} x alone", f"{ratio:.2f} x, {' to '.join(ms)} ms", fine
            )
        )
    return rows


async def watched(port: int, requests: int) -> Watched:
    """Stream requests one after the other on each of some connections."""
    seen = Watched()
    payload = request_bytes(json.dumps(ASK).encode(), headers={"authorization": f"Bearer {_WATCHED_KEY}"})

    async def stream() -> None:
        for _ in range(requests // _STREAMS):
            try:
                async with asyncio.timeout(_WAIT_S), answer(port, payload) as got:
                    if got.status == 200:
                        seen.ttfts_s.append(await got.ttft_s())
                    else:
                        seen.refused += 1
            except (OSError, Cut, TimeoutError):
                seen.refused += 1

    await asyncio.gather(*(stream() for _ in range(_STREAMS)))
    return seen
