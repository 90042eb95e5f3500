"""Streams one answer with LangChain's `ChatOpenAI`; a late request is sent a second time, and the first content wins.

OPENAI_BASE_URL and OPENAI_API_KEY are the variables of OpenAI's SDK; OPENAI_MODEL is the model.
"""

import os

import httpx2
from langchain_openai import ChatOpenAI

from ttft_gateway import AsyncHedgingTransport2, HedgeConfig, HedgingTransport2, Stats

config, stats = HedgeConfig(budget_percent=10), Stats()
model = ChatOpenAI(
    model=os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
    base_url=os.environ.get("OPENAI_BASE_URL"),
    http_client=httpx2.Client(transport=HedgingTransport2(config, stats=stats)),
    http_async_client=httpx2.AsyncClient(transport=AsyncHedgingTransport2(config, stats=stats)),  # of astream, ainvoke
)
for chunk in model.stream("Why is the slowest tenth of requests so slow?"):
    print(chunk.text, end="", flush=True)
counts = stats.snapshot()
print(f"\n{counts.requests} requests, {counts.hedges} backups, {counts.hedge_wins} won")
