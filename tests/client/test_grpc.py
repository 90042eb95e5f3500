"""The interceptors for `grpc.aio` on a real server: races, losers, errors, keys, and what is left at the end."""

import asyncio
import contextlib
import gc
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc
import grpc.aio

from checkout import ROOT
from gateway.client.config import HedgeConfig
from gateway.client.hedger import Hedger
from grpc_replicas import STREAM, UNARY, GrpcReplica, grpc_replica
from ttft_gateway import Stats, async_hedging_interceptors

SOON = HedgeConfig(warmup_delay=0.02, budget_percent=100.0)
Work = Callable[["Client"], Awaitable[None]]


class Client:
    """A channel to a server, with the interceptors."""

    def __init__(
        self, replica: GrpcReplica, channel: grpc.aio.Channel, stats: Stats, hedgers: Sequence[Hedger] = ()
    ) -> None:
        self.replica = replica
        self._hedgers = hedgers
        self.stats = stats
        self._unary: Any = channel.unary_unary(UNARY)
        self._stream: Any = channel.unary_stream(STREAM)

    async def call(self, method: str, **options: Any) -> bytes:
        """Return the whole answer of an RPC."""
        options.setdefault("timeout", 120.0)
        if method == UNARY:
            answer: bytes = await self._unary(b"Hello", **options)
            return answer
        return b"".join([piece async for piece in self._stream(b"Hello", **options)])

    @property
    def in_flight(self) -> int:
        """Number of attempts that the policy takes for unfinished."""
        pools = [found.pool for hedger in self._hedgers for found in hedger._populations.values()]
        return sum(replica.in_flight for pool in pools for replica in pool.replicas)

    def open(self, timeout: float = 120.0) -> Any:
        """Return the call of a stream."""
        return self._stream(b"Hello", timeout=timeout)


@asynccontextmanager
async def connected(
    *behaviours: str, methods: Any = (UNARY, STREAM), config: HedgeConfig = SOON, real_time: bool = False
) -> AsyncIterator[Client]:
    """Run a server and a client.

    Args:
        real_time: False: the first RPC is late as soon as it has reached the server, and no other one is.
    """
    stats = Stats()
    interceptors: Any = async_hedging_interceptors("a", methods, config, stats=stats)
    async with (
        grpc_replica(*behaviours) as replica,
        grpc.aio.insecure_channel(replica.address, interceptors=interceptors) as channel,
    ):
        hedgers = list(interceptors[0]._policy.hedgers.values())
        for hedger in hedgers:
            hedger.clock = hedger.clock if real_time else lambda: 1.0 if replica.seen else 0.0
        yield Client(replica, channel, stats, hedgers)


def run(work: Work, *behaviours: str, **options: Any) -> None:
    """Run a test with a server and a client."""

    async def main() -> None:
        async with connected(*behaviours, **options) as client:
            await work(client)
            for _ in range(1000):
                if not [each for each in asyncio.all_tasks() if each.get_name().startswith("ttft-hedge")]:
                    break
                await asyncio.sleep(0.01)
            assert not [each for each in asyncio.all_tasks() if each.get_name().startswith("ttft-hedge")]

    asyncio.run(main())


both = pytest.mark.parametrize("method", [UNARY, STREAM])


@both
@pytest.mark.parametrize("behaviour", ["silent", "opened"])
def test_a_silent_primary_loses_and_is_cancelled(method: str, behaviour: str) -> None:
    """The first message wins, whatever came before it, and the server sees the end of the loser."""

    async def work(client: Client) -> None:
        assert await client.call(method) == b"Hello 2"
        await client.replica.seen[0].cancelled.wait()
        counts = client.stats.snapshot()
        assert (counts.requests, counts.hedges, counts.hedge_wins) == (1, 1, 1)
        assert counts.targets["a"].lost == 1

    run(work, behaviour, "quick")


@both
def test_a_silent_backup_loses_and_is_cancelled(method: str) -> None:
    """A primary that answers after its backup was sent wins."""

    async def work(client: Client) -> None:
        assert await client.call(method) == b"Hello 2"
        await client.replica.seen[1].cancelled.wait()
        counts = client.stats.snapshot()
        assert (counts.hedges, counts.hedge_wins, counts.primary_wins) == (1, 0, 1)

    run(work, "late", "silent")


@both
@pytest.mark.parametrize("code", ["UNAVAILABLE", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"])
def test_an_error_never_wins(method: str, code: str) -> None:
    """An attempt that fails leaves the race to the other one, the primary or the backup."""

    async def work(client: Client) -> None:
        assert (await client.call(method)).startswith(b"Hello")
        assert client.stats.snapshot().hedges == 1

    run(work, "last", code)
    run(work, f"late:{code}", "late")


def test_an_empty_stream_never_wins() -> None:
    """A stream without a message leaves the race to the other attempt; alone, it is the answer."""

    async def raced(client: Client) -> None:
        assert (await client.call(STREAM)).startswith(b"Hello")

    async def alone(client: Client) -> None:
        assert await client.call(STREAM) == b""
        assert client.stats.snapshot().targets["a"].errors == 0

    run(raced, "last", "empty")
    run(alone, "empty", config=HedgeConfig(warmup_delay=3600.0))


@both
def test_the_primarys_error_is_raised_if_all_fail(method: str) -> None:
    """After each attempt has failed, the caller gets the status of the primary."""

    async def work(client: Client) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.call(method)
        assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.NOT_FOUND, "scripted")

    run(work, "late:NOT_FOUND", "late:ABORTED")


@both
def test_an_error_without_a_backup_is_passed_on(method: str) -> None:
    """A failed RPC that was not late is not sent again."""

    async def work(client: Client) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await client.call(method)
        assert len(client.replica.seen) == 1

    run(work, "UNAVAILABLE", config=HedgeConfig(warmup_delay=60.0))


@both
def test_only_named_methods_are_hedged(method: str) -> None:
    """Other methods, and RPCs with `x-ttft-hedge: off`, have no race; the switch is not sent."""

    async def work(client: Client) -> None:
        await client.call(method, metadata=(("x-ttft-hedge", "off"), ("x-tenant", "t")))
        seen = client.replica.seen[0].metadata
        assert (seen.get("x-ttft-hedge"), seen["x-tenant"]) == (None, "t")
        assert client.stats.snapshot().requests == 0

    run(work, methods={"/test.Service/Other"})
    run(work)


@both
def test_a_bug_in_the_policy_costs_no_answer(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An RPC whose race cannot begin is sent without one."""
    monkeypatch.setattr(Hedger, "race", None)

    async def work(client: Client) -> None:
        assert await client.call(method) == b"Hello 1"

    run(work)


def test_a_stream_has_the_methods_of_a_call() -> None:
    """A raced stream is read by `read`, and has its metadata, code and details."""

    async def work(client: Client) -> None:
        call = client.open()
        assert [await call.read() for _ in range(3)] == [b"Hello", b" 2", grpc.aio.EOF]
        assert (await call.code(), await call.details()) == (grpc.StatusCode.OK, "")
        assert (await call.initial_metadata() is not None, await call.trailing_metadata() is not None) == (True, True)
        assert call.done()

    run(work, "silent", "quick")


@both
def test_a_caller_that_gives_up_cancels_all_attempts(method: str) -> None:
    """A cancelled caller leaves no RPC at the server and no task."""

    async def work(client: Client) -> None:
        task = asyncio.get_running_loop().create_task(client.call(method))
        while len(client.replica.seen) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for seen in client.replica.seen:
            await seen.cancelled.wait()

    run(work, "silent", "silent")


def test_a_stream_that_is_cancelled_after_its_first_message() -> None:
    """The winner's call is the caller's to cancel."""

    async def work(client: Client) -> None:
        call = client.open()
        assert await call.read() == b"Hello"
        call.cancel()
        assert call.cancelled() or call.done()

    run(work)


@both
def test_another_target_gets_no_credentials(method: str) -> None:
    """A backup goes to another target, with metadata of an allow-list only."""

    async def main() -> None:
        stats = Stats()
        sent = (("authorization", "Bearer secret"), ("traceparent", "00-1-2-3"), ("x-tenant", "t"))
        async with (
            grpc_replica("silent") as first,
            grpc_replica() as second,
            grpc.aio.insecure_channel(second.address) as other,
        ):
            plain: Any = other.unary_unary(UNARY) if method == UNARY else other.unary_stream(STREAM)
            interceptors = async_hedging_interceptors(
                "a", {method: {"b": plain}}, SOON, stats=stats, metadata=["x-tenant"]
            )
            async with grpc.aio.insecure_channel(first.address, interceptors=interceptors) as channel:
                client = Client(first, channel, stats)
                assert await client.call(method, metadata=sent) == b"Hello 1"
                metadata = next(each.metadata for each in second.seen)
                assert [metadata.get(key) for key, _ in sent] == [None, "00-1-2-3", "t"]
                assert set(stats.snapshot().targets) <= {"a", "b"}

    asyncio.run(main())


def test_nothing_is_left_after_many_races() -> None:
    """After 100 RPCs of all endings, no task and no attempt in flight is left."""

    async def work(client: Client) -> None:
        async def one(number: int) -> None:
            with contextlib.suppress(grpc.aio.AioRpcError):
                if number % 5:
                    await client.call((UNARY, STREAM)[number % 2], timeout=0.3)
                else:
                    await client.open(timeout=0.3).read()  # and drops the stream

        for start in range(0, 100, 20):
            await asyncio.gather(*(one(start + number) for number in range(20)))
        for _ in range(1000):
            gc.collect()
            if not client.in_flight:
                break
            await asyncio.sleep(0.01)
        assert client.in_flight == 0

    run(work, *(("silent", "quick", "quick", "UNAVAILABLE", "late:NOT_FOUND") * 20), real_time=True)


@pytest.mark.parametrize("methods", [{"Unary"}, {"/test.Service"}, {"": {}}])
def test_wrong_names_of_methods_are_rejected(methods: Any) -> None:
    """A name that no RPC has is an error, and no setting without effect."""
    with pytest.raises(ValueError, match="use a name such as"):
        async_hedging_interceptors("a", methods)
    with pytest.raises(TypeError, match="use a set"):
        async_hedging_interceptors("a", UNARY)
    with pytest.raises(ValueError, match="are named"):
        async_hedging_interceptors("a", {UNARY: {"a": print}})


@pytest.mark.parametrize("example", ["client_grpc.py", "client_grpc_sync.py"])
def test_the_example(example: str) -> None:
    """RPCs of the named method are counted as requests that may be hedged."""

    async def main() -> str:
        async with grpc_replica() as replica:
            program = await asyncio.create_subprocess_exec(
                sys.executable,
                ROOT / "examples" / example,
                env={**os.environ, "PYTHONPATH": str(ROOT), "ADDRESS": replica.address, "METHOD": UNARY},
                stdout=asyncio.subprocess.PIPE,
            )
            printed, _ = await program.communicate()
        assert program.returncode == 0
        return printed.decode()

    assert asyncio.run(main()).startswith("20 RPCs, hedge rate ")
