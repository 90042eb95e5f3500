"""Runs a hedging session of aiohttp against scripted replicas."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp

from client_replicas import ScriptedReplica
from ttft_gateway import HedgingSession, StatsSnapshot
from ttft_gateway.client.config import HedgeConfig

SOON = HedgeConfig(warmup_delay=0.02, budget_percent=100.0)
CALL = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
_T = TypeVar("_T")


def run(
    work: Callable[[HedgingSession], Awaitable[_T]],
    late_at: ScriptedReplica | None = None,
    config: HedgeConfig = SOON,
    **options: Any,
) -> _T:
    """Open a session, call `work`, and close the session; no task, thread or attempt may be left.

    Args:
        late_at: replica with a first request that is late immediately; None: times are real.
    """

    async def main() -> _T:
        async with HedgingSession(config, **options) as session:
            if late_at is not None:
                session.hedger.clock = lambda: 1.0 if late_at.seen else 0.0
            found = await work(session)
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
        assert in_flight(session) == 0
        return found

    found = asyncio.run(main())
    assert not [each.name for each in threading.enumerate() if each.name.startswith("ttft-hedge")]
    return found


def in_flight(session: HedgingSession) -> int:
    """Return the number of attempts that the policy takes for unfinished."""
    pools = [found.pool for found in session.hedger._populations.values()]
    return sum(replica.in_flight for pool in pools for replica in pool.replicas)


async def chat(session: HedgingSession, url: str, **options: Any) -> str:
    """Stream one chat completion; return its text."""
    parts: list[str] = []
    async with session.post(f"{url}/chat/completions", json=CALL, raise_for_status=True, **options) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise aiohttp.ClientPayloadError(event["error"]["message"])
                parts += [choice["delta"].get("content") or "" for choice in event["choices"]]
    return "".join(parts)


class SessionKit:
    """The session in the tests of all transports (`client_kits.Kit`)."""

    error = aiohttp.ClientResponseError

    def chat(self, replica: ScriptedReplica, config: HedgeConfig = SOON) -> tuple[str, StatsSnapshot]:
        """Stream one completion that is late when it has reached the replica; return its text and the counts."""

        async def work(session: HedgingSession) -> tuple[str, StatsSnapshot]:
            return await chat(session, replica.url), session.stats.snapshot()

        return run(work, replica, config)
