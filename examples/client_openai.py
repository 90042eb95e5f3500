"""Streams one answer with OpenAI's SDK; a late request is sent a second time, and the first content wins.

OPENAI_BASE_URL and OPENAI_API_KEY are the SDK's own variables; OPENAI_MODEL is the model.
"""

import os

import openai

from ttft_gateway import HedgeConfig, Stats, hedged

stats = Stats()
http = hedged(openai.DefaultHttpxClient(), HedgeConfig(budget_percent=10), stats=stats)
with openai.OpenAI(http_client=http) as client:
    stream = client.chat.completions.create(
        model=os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
        messages=[{"role": "user", "content": "Why is the slowest tenth of requests so slow?"}],
        stream=True,
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
counts = stats.snapshot()
print(f"\n{counts.requests} requests, {counts.hedges} backups, {counts.hedge_wins} won")
