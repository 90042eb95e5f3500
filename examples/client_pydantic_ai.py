"""Streams one answer of a pydantic-ai agent; a late request is sent a second time, and the first content wins.

OPENAI_BASE_URL and OPENAI_API_KEY are the variables of OpenAI's SDK; OPENAI_MODEL is the model.
"""

import asyncio
import os

import openai
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from ttft_gateway import HedgeConfig, Stats, hedged

stats = Stats()


async def main() -> None:
    """Stream one answer."""
    async with hedged(openai.DefaultAsyncHttpxClient(), HedgeConfig(budget_percent=10), stats=stats) as http:
        model = OpenAIChatModel(
            os.environ.get("OPENAI_MODEL", "gpt-4o-mini"), provider=OpenAIProvider(http_client=http)
        )
        async with Agent(model).run_stream("Why is the slowest tenth of requests so slow?") as result:
            async for text in result.stream_text(delta=True):
                print(text, end="", flush=True)


asyncio.run(main())
counts = stats.snapshot()
print(f"\n{counts.requests} requests, {counts.hedges} backups, {counts.hedge_wins} won")
