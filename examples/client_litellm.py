"""Streams one answer with LiteLLM as a library; a late request is sent a second time, and the first content wins.

OPENAI_BASE_URL and OPENAI_API_KEY are the variables of OpenAI's SDK; OPENAI_MODEL is the model.
"""

import asyncio
import os

import httpx
import litellm

from ttft_gateway import HedgeConfig, Stats, hedged

config, stats = HedgeConfig(budget_percent=10), Stats()
litellm.client_session = hedged(httpx.Client(), config, stats=stats)
litellm.aclient_session = hedged(httpx.AsyncClient(), config, stats=stats)


async def main() -> None:
    """Stream one answer; `litellm.completion` takes the other session."""
    stream = await litellm.acompletion(
        model=f"openai/{os.environ.get('OPENAI_MODEL', 'gpt-4o-mini')}",
        messages=[{"role": "user", "content": "Why is the slowest tenth of requests so slow?"}],
        stream=True,
    )
    async for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)


asyncio.run(main())
counts = stats.snapshot()
print(f"\n{counts.requests} requests, {counts.hedges} backups, {counts.hedge_wins} won")
