"""Hedges the RPCs of one method over `grpc.aio`.

ADDRESS is the server's host and port, METHOD the full name of a method that may be carried out twice. The messages are
bytes here; a generated stub takes the same channel.
"""

import asyncio
import os

import grpc.aio

from ttft_gateway import HedgeConfig, Stats, async_hedging_interceptors

stats = Stats()
method = os.environ["METHOD"]
interceptors = async_hedging_interceptors(
    "search", {method}, HedgeConfig(budget_percent=5, warmup_delay=0.2), stats=stats
)


async def main() -> None:
    """Send 20 RPCs."""
    async with grpc.aio.insecure_channel(os.environ["ADDRESS"], interceptors=interceptors) as channel:
        search = channel.unary_unary(method)
        for _ in range(20):
            await search(b"query", timeout=5.0)


asyncio.run(main())
counts = stats.snapshot()
print(f"{counts.requests} RPCs, hedge rate {counts.hedge_rate:.1%}")
