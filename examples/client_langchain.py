"""Streams one answer with LangChain's `ChatOpenAI`; a late request is sent a second time, and the first content wins.

OPENAI_BASE_URL and OPENAI_API_KEY are the variables of OpenAI's SDK; OPENAI_MODEL is the model.
"""

import os

import openai
from langchain_openai import ChatOpenAI

from ttft_gateway import HedgeConfig, Stats, hedged

config, stats = HedgeConfig(budget_percent=10), Stats()
model = ChatOpenAI(
    model=os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
    base_url=os.environ.get("OPENAI_BASE_URL"),
    http_client=hedged(openai.DefaultHttpxClient(), config, stats=stats),
    http_async_client=hedged(openai.DefaultAsyncHttpxClient(), config, stats=stats),  # of astream, ainvoke
)
for chunk in model.stream("Why is the slowest tenth of requests so slow?"):
    print(chunk.text, end="", flush=True)
counts = stats.snapshot()
print(f"\n{counts.requests} requests, {counts.hedges} backups, {counts.hedge_wins} won")
