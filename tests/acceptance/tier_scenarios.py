"""Tiers of a simulated provider over sockets: the bill against the usual tier, and the requests above the target.

Laws of C1 (streaming_bench) with all times divided by four. Units: seconds; shares are fractions of 1.
"""

import asyncio
import json
from typing import Final, NamedTuple

from gateway.events import RequestEnded
from gateway_fixture import serving
from raw_http import ASK, answer, request_bytes

TARGET_S: Final = 0.75
PER_S: Final = 20.0
_FLEX: Final = {
    "calm": "flex: lognormal_median:175ms,0.62 | 3% pareto:2.5s,1.2",
    "usual": "flex: lognormal_median:300ms,0.7 | 10% pareto:2.5s,1.2, 3% refused",
    "busy": "flex: lognormal_median:750ms,0.7 | 30% pareto:2.5s,1.2, 10% refused",
}
_OTHERS: Final = ("default: lognormal_median:100ms,0.32 | 2% pareto:350ms,1.3", "priority: lognormal_median:45ms,0.3")
_MODEL: Final = {
    "recovery": "off",
    "prices": {"prompt": 6, "completion": 1},
    "hedge": {"prefer": "cost", "ttft_target": f"{TARGET_S:g}s"},
}


class Tiered(NamedTuple):
    """Result of one law, of the requests after the first third.

    Attributes:
        bill: bill as a multiple of the bill on the usual tier.
        missed: share of the requests above the target.
        failed: number of requests without an answer.
    """

    bill: float
    missed: float
    failed: int


async def tiered(law: str, for_s: float) -> Tiered:
    """Send requests, 20 a second, to a provider with three tiers."""
    own = {"a": {"kind": "openai", "tiers": ["flex", "default", "priority"]}}
    profiles = {"a": {"tiers": [_FLEX[law], *_OTHERS], "tokens": 8}}
    async with serving(profiles, model=_MODEL, own=own) as site:
        statuses: list[int] = []
        async with asyncio.TaskGroup() as tasks:
            for _ in range(round(for_s * PER_S)):
                tasks.create_task(_ask(site.port, statuses))
                await asyncio.sleep(1 / PER_S)
        ended = [event for event in site.events if isinstance(event, RequestEnded)]
    judged = ended[len(ended) // 3 :]
    cost = sum(each.charge.cost or 0.0 for event in judged for each in event.attempts)
    usual = sum(event.usual_cost or 0.0 for event in judged)
    missed = sum(event.ttft_s is None or event.ttft_s > TARGET_S for event in judged)
    return Tiered(cost / usual, missed / len(judged), sum(status != 200 for status in statuses))


async def _ask(port: int, statuses: list[int]) -> None:
    async with answer(port, request_bytes(json.dumps(ASK).encode())) as got:
        statuses.append(got.status)
        await got.body()
