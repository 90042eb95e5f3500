"""Hedges plain HTTP requests: GET at any address, raced on the headers of the response.

URL is the address; the counts are exported for Prometheus by `StatsCollector(stats)`.
"""

import os

import httpx

from ttft_gateway import HedgeConfig, HedgingTransport, Stats

stats = Stats()
config = HedgeConfig(policy="percentile", percentile=0.95, budget_percent=5, warmup_delay=0.5)
with httpx.Client(transport=HedgingTransport(config, stats=stats)) as client:
    for _ in range(50):
        client.get(os.environ["URL"]).raise_for_status()
counts = stats.snapshot()
print(f"{counts.requests} requests, hedge rate {counts.hedge_rate:.1%}, {counts.saved_s:.2f} s saved")
