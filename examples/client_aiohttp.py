"""Streams answers with aiohttp; a late request is sent a second time, and the first content wins.

OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL are the variables of OpenAI's SDK.
"""

import asyncio
import os

import aiohttp

from ttft_gateway import HedgeConfig, HedgingSession

BODY = {
    "model": os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
    "messages": [{"role": "user", "content": "Why is the slowest tenth of requests so slow?"}],
    "stream": True,
}


async def main() -> None:
    """Stream one answer and print its lines."""
    async with HedgingSession(
        HedgeConfig(budget_percent=10),
        base_url=os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1").rstrip("/") + "/",
        headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
        timeout=aiohttp.ClientTimeout(total=60),
    ) as session:
        async with session.post("chat/completions", json=BODY, raise_for_status=True) as response:
            async for line in response.content:
                print(line.decode(), end="")
        counts = session.stats.snapshot()
        print(f"{counts.requests} requests, {counts.hedges} backups, {counts.hedge_wins} won")


asyncio.run(main())
