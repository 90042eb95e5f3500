"""The channels that race, over `grpc.aio` and synchronous, under one interface for tests."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import grpc
import grpc.aio

from grpc_replicas import STREAM, UNARY, GrpcReplica, grpc_site
from ttft_gateway import Stats, async_hedging_interceptors, hedging_channel
from ttft_gateway.client.config import HedgeConfig
from ttft_gateway.client.hedger import Hedger

SOON: Final = HedgeConfig(warmup_delay=0.02, budget_percent=100.0)
NEVER: Final = HedgeConfig(warmup_delay=3600.0)


class Client:
    """A channel to a server, with an RPC that has one response, and a stream.

    Attributes:
        replica: the server.
        stats: counts of the channel.
        hedgers: policies of its methods.
    """

    replica: GrpcReplica
    stats: Stats

    def __init__(self, channel: Any, hedgers: list[Hedger], runner: asyncio.Runner | None = None) -> None:
        self.unary: Any = channel.unary_unary(UNARY)
        self.stream: Any = channel.unary_stream(STREAM)
        self.hedgers = hedgers
        self._runner = runner

    def call(self, method: str, **options: Any) -> bytes:
        """Return the whole answer of an RPC."""
        options.setdefault("timeout", 120.0)
        if self._runner is not None:
            return bytes(self.run(self._call(method, options)))
        if method == UNARY:
            return bytes(self.unary(b"Hello", **options))
        return b"".join(self.stream(b"Hello", **options))

    def open(self, method: str, **options: Any) -> Any:
        """Return the call of an RPC; over `grpc.aio`, in a coroutine."""
        options.setdefault("timeout", 120.0)
        if method == STREAM:
            return self.stream(b"Hello", **options)
        return (self.unary.future if self._runner is None else self.unary)(b"Hello", **options)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and the tasks of its races."""

        async def whole() -> Any:
            try:
                return await work
            finally:
                while any(task.get_name().startswith("ttft-hedge") for task in asyncio.all_tasks()):
                    await asyncio.sleep(0.001)

        assert self._runner is not None
        return self._runner.run(whole())

    async def _call(self, method: str, options: dict[str, Any]) -> bytes:
        call = self.open(method, **options)
        return bytes(await call) if method == UNARY else b"".join([piece async for piece in call])


@contextmanager
def _blocking(address: str, methods: Any, config: HedgeConfig = SOON, **options: Any) -> Iterator[Client]:
    with hedging_channel(grpc.insecure_channel(address), "a", methods, config, **options) as channel:
        made: Any = channel
        yield Client(channel, list(made._policy.hedgers.values()))
    for thread in threading.enumerate():
        if thread.name.startswith("ttft-hedge"):
            thread.join()


@contextmanager
def _aio(address: str, methods: Any, config: HedgeConfig = SOON, **options: Any) -> Iterator[Client]:
    interceptors: Any = async_hedging_interceptors("a", methods, config, **options)

    async def opened() -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(address, interceptors=interceptors)

    with asyncio.Runner() as runner:
        channel = runner.run(opened())
        yield Client(channel, list(interceptors[0]._policy.hedgers.values()), runner)
        runner.run(channel.close())


GRPC_KITS: Final[dict[str, Callable[..., AbstractContextManager[Client]]]] = {"sync": _blocking, "aio": _aio}
"""Open a client: address, methods, config, and options of the library."""


@contextmanager
def connected(
    kit: str, *behaviours: str, methods: Any = (UNARY, STREAM), config: HedgeConfig = SOON
) -> Iterator[Client]:
    """Run a server and a client; the first RPC is late as soon as it has reached the server. No attempt may be left."""
    stats = Stats()
    with grpc_site(*behaviours) as replica:
        with GRPC_KITS[kit](replica.address, methods, config, stats=stats) as client:
            client.replica, client.stats = replica, stats
            for hedger in client.hedgers:
                hedger.clock = lambda: 1.0 if replica.seen else 0.0
            yield client
        pools = [found.pool for hedger in client.hedgers for found in hedger._populations.values()]
    assert sum(replica.in_flight for pool in pools for replica in pool.replicas) == 0
