"""Streams one answer with Anthropic's SDK; a late request is sent a second time, and the first content wins.

ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY are the SDK's own variables; ANTHROPIC_MODEL is the model.
"""

import os

import anthropic

from ttft_gateway import HedgeConfig, Stats, hedged

stats = Stats()
http = hedged(anthropic.DefaultHttpxClient(), HedgeConfig(budget_percent=10), stats=stats)
with (
    anthropic.Anthropic(http_client=http) as client,
    client.messages.stream(
        model=os.environ.get("ANTHROPIC_MODEL", "claude-haiku-4-5"),
        max_tokens=200,
        messages=[{"role": "user", "content": "Why is the slowest tenth of requests so slow?"}],
    ) as stream,
):
    for text in stream.text_stream:
        print(text, end="", flush=True)
counts = stats.snapshot()
print(f"\n{counts.requests} requests, {counts.hedges} backups, {counts.hedge_wins} won")
