"""Races two replicas with keys and model names of their own, from asyncio.

FIRST_URL, FIRST_KEY, FIRST_MODEL and the same with SECOND describe them. The SDK gets the address and the key of the
first one; the second one's key is sent to its own host only.
"""

import asyncio
import os

import openai

from ttft_gateway import Stats, Target, hedged


def target(name: str) -> Target:
    """Read one replica from the environment."""
    key, model = os.environ.get(f"{name}_KEY"), os.environ.get(f"{name}_MODEL")
    return Target(os.environ[f"{name}_URL"], api_key=key, model=model, name=name.lower())


async def main() -> None:
    """Send twenty requests and print which replica had the first content how often."""
    first, second, stats = target("FIRST"), target("SECOND"), Stats()
    http = hedged(openai.DefaultAsyncHttpxClient(), replicas=[first, second], stats=stats)
    async with openai.AsyncOpenAI(base_url=first.base_url, api_key=first.api_key or "none", http_client=http) as client:
        for number in range(20):
            stream = await client.chat.completions.create(
                model=first.model or "m",
                messages=[{"role": "user", "content": f"Count to {number}."}],
                stream=True,
            )
            async for _ in stream:
                pass
    for name, counts in stats.snapshot().targets.items():
        print(f"{name}: {counts.requests} attempts, {counts.hedges} of them backups, {counts.wins} won")


asyncio.run(main())
