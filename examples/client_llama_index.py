"""Streams one answer with LlamaIndex's `OpenAI`; a late request is sent a second time, and the first content wins.

OPENAI_BASE_URL and OPENAI_API_KEY are the variables of OpenAI's SDK. LlamaIndex knows models by their names.
"""

import os

import openai
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai import OpenAI

from ttft_gateway import HedgeConfig, Stats, hedged

config, stats = HedgeConfig(budget_percent=10), Stats()
model = OpenAI(
    model="gpt-4o-mini",
    api_base=os.environ.get("OPENAI_BASE_URL"),
    http_client=hedged(openai.DefaultHttpxClient(), config, stats=stats),
    async_http_client=hedged(openai.DefaultAsyncHttpxClient(), config, stats=stats),  # of astream_chat
)
for chunk in model.stream_chat([ChatMessage(role="user", content="Why is the slowest tenth of requests so slow?")]):
    print(chunk.delta or "", end="", flush=True)
counts = stats.snapshot()
print(f"\n{counts.requests} requests, {counts.hedges} backups, {counts.hedge_wins} won")
