"""Streams one answer with Instructor; a late request is sent a second time, and the first content wins.

OPENAI_BASE_URL and OPENAI_API_KEY are the variables of OpenAI's SDK; OPENAI_MODEL is the model. An object that is
streamed with `create_partial` is raced on its first piece.
"""

import os

import instructor
import openai

from ttft_gateway import HedgeConfig, Stats, hedged

stats = Stats()
http = hedged(openai.DefaultHttpxClient(), HedgeConfig(budget_percent=10), stats=stats)
with openai.OpenAI(http_client=http) as sdk:
    client = instructor.from_openai(sdk)
    stream = client.chat.completions.create(
        model=os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
        messages=[{"role": "user", "content": "Why is the slowest tenth of requests so slow?"}],
        response_model=None,  # text; `create_partial` streams an object
        stream=True,
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
counts = stats.snapshot()
print(f"\n{counts.requests} requests, {counts.hedges} backups, {counts.hedge_wins} won")
