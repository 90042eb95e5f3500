"""The races of client_races.py over gRPC, synchronous and asynchronous: RPCs with one response, and streams."""

import asyncio
import gc
import random
import threading
from collections import Counter
from typing import Any, Final

import grpc.aio

from grpc_replicas import STREAM, UNARY, grpc_site
from many_races import in_tasks, in_threads
from ttft_gateway import HedgeConfig, async_hedging_interceptors, hedging_channel

_METHODS: Final = [
    f"{name}{number}" for name in (UNARY, STREAM) for number in range(100)
]  # errors of one stop its backups
_WORDS: Final = (
    *["quick"] * 8,
    *["silent", "opened"] * 2,
    "held",
    "empty",
    "UNAVAILABLE",
    "NOT_FOUND",
    "RESOURCE_EXHAUSTED",
)
_PLAN: Final = 4_000  # behaviours, drawn once and then repeated

Races = tuple["Counter[str]", list[Any]]
"""Outcomes of races, and the hedgers of their client."""


def warm_up() -> None:
    """Start what grpc keeps for the life of a process."""
    with grpc_site() as replica, grpc.insecure_channel(replica.address) as channel:
        _callable(channel, UNARY)(b"Hello")
    asyncio.run(_aio())


async def _aio() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1"):
        pass


def threads(config: HedgeConfig, races: int, rand: random.Random) -> Races:
    """Race in threads; a third has little time, a third is cancelled or dropped in the middle."""
    with grpc_site(*_plan(rand), repeats=True) as replica:
        inner = grpc.insecure_channel(replica.address)
        with hedging_channel(inner, "a", _METHODS, config) as channel:
            made: Any = channel
            calls = {method: _callable(channel, method) for method in _METHODS}

            def one(draw: float) -> str:
                method, timeout = _method(draw), 0.3 if draw < 0.66 else 0.02
                if method.startswith(STREAM):
                    for _ in calls[method](b"Hello", timeout=timeout):
                        if draw < 0.33:
                            return "left"
                    return "OK"
                call = calls[method].future(b"Hello", timeout=timeout)
                if draw < 0.33:
                    threading.Event().wait(draw / 10)
                    return f"cancelled {call.cancel()}"
                call.result()
                return "OK"

            counts = in_threads(one, races, rand, (grpc.RpcError, grpc.FutureCancelledError))
        _until_idle(replica)
        return counts, list(made._policy.hedgers.values())


def tasks(config: HedgeConfig, races: int, rand: random.Random) -> Races:
    """Race in tasks; a third is cancelled at a random time, and a third dropped in the middle."""
    with grpc_site(*_plan(rand), repeats=True) as replica:

        async def main() -> Races:
            interceptors: Any = async_hedging_interceptors("a", _METHODS, config)
            async with grpc.aio.insecure_channel(replica.address, interceptors=interceptors) as channel:
                calls = {method: _callable(channel, method) for method in _METHODS}

                async def one(draw: float) -> str:
                    method = _method(draw)
                    call = calls[method](b"Hello", timeout=0.3)
                    if not method.startswith(STREAM):
                        await call
                        return "OK"
                    async for _ in call:
                        if draw < 0.33:
                            call.cancel()
                            return "left"
                    return "OK"

                counts = await in_tasks(one, races, rand, (grpc.RpcError,))
            gc.collect()
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0)
            return counts, list(interceptors[0]._policy.hedgers.values())

        found = asyncio.run(main())
        _until_idle(replica)
        return found


def _plan(rand: random.Random) -> list[str]:
    return [_WORDS[int(rand.random() * len(_WORDS))] for _ in range(_PLAN)]


def _method(draw: float) -> str:
    return _METHODS[int(draw * 1e6) % len(_METHODS)]


def _callable(channel: Any, method: str) -> Any:
    return channel.unary_stream(method) if method.startswith(STREAM) else channel.unary_unary(method)


def _until_idle(replica: Any) -> None:
    """Wait until the server has no RPC; the caller's time limit bounds it."""
    pause = threading.Event()
    while replica.open:
        pause.wait(0.01)
