"""Hedges the RPCs of one method over a synchronous channel of gRPC.

ADDRESS is the server's host and port, METHOD the full name of a method that may be carried out twice. The messages are
bytes here; a generated stub takes the same channel.
"""

import os

import grpc

from ttft_gateway import HedgeConfig, Stats, hedging_channel

stats = Stats()
method = os.environ["METHOD"]
config = HedgeConfig(budget_percent=5, warmup_delay=0.2)
with hedging_channel(grpc.insecure_channel(os.environ["ADDRESS"]), "search", {method}, config, stats=stats) as channel:
    search = channel.unary_unary(method)
    for _ in range(20):
        search(b"query", timeout=5.0)
counts = stats.snapshot()
print(f"{counts.requests} RPCs, hedge rate {counts.hedge_rate:.1%}")
