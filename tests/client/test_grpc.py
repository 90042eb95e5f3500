"""RPCs on a real server, over `grpc.aio` and synchronous: races, losers, errors, keys, and what is left at the end."""

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc
import grpc.aio

from checkout import ROOT
from grpc_clients import GRPC_KITS, NEVER, SOON, Client, connected
from grpc_replicas import STREAM, UNARY, grpc_site
from ttft_gateway import Stats, async_hedging_interceptors, hedging_channel
from ttft_gateway.client.hedger import Hedger

both = pytest.mark.parametrize("method", [UNARY, STREAM])
kits = pytest.mark.parametrize("kit", GRPC_KITS)


@kits
@both
@pytest.mark.parametrize("behaviour", ["silent", "opened"])
def test_a_silent_primary_loses_and_is_cancelled(kit: str, method: str, behaviour: str) -> None:
    """The first message wins, whatever came before it, and the server sees the end of the loser."""
    with connected(kit, behaviour, "quick") as client:
        assert client.call(method) == b"Hello 2"
        client.replica.seen[0].gone.wait()
        counts = client.stats.snapshot()
        assert (counts.requests, counts.hedges, counts.hedge_wins) == (1, 1, 1)
        assert counts.targets["a"].lost == 1


@kits
@both
def test_a_silent_backup_loses_and_is_cancelled(kit: str, method: str) -> None:
    """A primary that answers after its backup was sent wins."""
    with connected(kit, "late", "silent") as client:
        assert client.call(method) == b"Hello 2"
        client.replica.seen[1].gone.wait()
        counts = client.stats.snapshot()
        assert (counts.hedges, counts.hedge_wins, counts.primary_wins) == (1, 0, 1)


@kits
@both
@pytest.mark.parametrize("code", ["UNAVAILABLE", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"])
def test_an_error_never_wins(kit: str, method: str, code: str) -> None:
    """An attempt that fails leaves the race to the other one, the primary or the backup."""
    for plan in (("last", code), (f"late:{code}", "late")):
        with connected(kit, *plan) as client:
            assert client.call(method).startswith(b"Hello")
            assert client.stats.snapshot().hedges == 1


@kits
def test_an_empty_stream_never_wins(kit: str) -> None:
    """A stream without a message leaves the race to the other attempt; alone, it is the answer."""
    with connected(kit, "last", "empty") as client:
        assert client.call(STREAM).startswith(b"Hello")
    with connected(kit, "empty", config=NEVER) as client:
        assert client.call(STREAM) == b""
        assert client.stats.snapshot().targets["a"].errors == 0


@kits
@both
def test_the_primarys_error_is_raised_if_all_fail(kit: str, method: str) -> None:
    """After each attempt has failed, the caller gets the status of the primary."""
    with connected(kit, "late:NOT_FOUND", "late:ABORTED") as client, pytest.raises(grpc.RpcError) as raised:
        client.call(method)
    error: Any = raised.value
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "scripted")


@kits
@both
def test_an_error_without_a_backup_is_passed_on(kit: str, method: str) -> None:
    """A failed RPC that was not late is not sent again."""
    with connected(kit, "UNAVAILABLE", config=NEVER) as client:
        with pytest.raises(grpc.RpcError):
            client.call(method)
        assert len(client.replica.seen) == 1


@kits
@both
def test_only_named_methods_are_hedged(kit: str, method: str) -> None:
    """Other methods, and RPCs with `x-ttft-hedge: off`, have no race; the switch is not sent."""
    off = (("x-ttft-hedge", "off"), ("x-tenant", "t"))
    with connected(kit) as client:
        assert client.call(method, metadata=off).startswith(b"Hello")
        seen = client.replica.seen[0].metadata
        assert (seen.get("x-ttft-hedge"), seen["x-tenant"]) == (None, "t")
        assert client.stats.snapshot().requests == 0
    with connected(kit, methods={"/test.Service/Other"}) as client:
        assert client.call(method) == b"Hello 1"
        assert client.stats.snapshot().requests == 0


@kits
@both
def test_a_bug_in_the_policy_costs_no_answer(kit: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An RPC is sent without a race if its race cannot begin."""
    monkeypatch.setattr(Hedger, "race", None)
    with connected(kit) as client:
        assert client.call(method) == b"Hello 1"


@kits
@both
def test_a_deadline_ends_all_attempts(kit: str, method: str) -> None:
    """The RPC's timeout holds for the primary and its backup."""
    with connected(kit, "silent", "silent") as client, pytest.raises(grpc.RpcError) as raised:
        client.call(method, timeout=0.3)
    error: Any = raised.value
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@kits
@both
def test_another_target_gets_no_credentials(kit: str, method: str) -> None:
    """A backup goes to another target, with metadata of an allow-list only."""
    stats, options = Stats(), {"metadata": ["x-tenant"]}
    sent = (("authorization", "Bearer secret"), ("traceparent", "00-1-2-3"), ("x-tenant", "t"))
    kind = "unary_unary" if method == UNARY else "unary_stream"
    with grpc_site("silent") as first, grpc_site() as second, grpc.insecure_channel(second.address) as other:

        def over_aio(*request: Any, **given: Any) -> Any:  # over a channel of the loop that runs
            return getattr(grpc.aio.insecure_channel(second.address), kind)(method)(*request, **given)

        plain = over_aio if kit == "aio" else getattr(other, kind)(method)
        with GRPC_KITS[kit](first.address, {method: {"b": plain}}, SOON, stats=stats, **options) as client:
            assert client.call(method, metadata=sent) == b"Hello 1"
        assert [second.seen[0].metadata.get(key) for key, _ in sent] == [None, "00-1-2-3", "t"]
        assert set(stats.snapshot().targets) <= {"a", "b"}


@pytest.mark.parametrize("methods", [{"Unary"}, {"/test.Service"}, {"": {}}])
def test_wrong_names_of_methods_are_rejected(methods: Any) -> None:
    """A name that no RPC has is an error, and no setting without effect."""
    with pytest.raises(ValueError, match="use a name such as"):
        async_hedging_interceptors("a", methods)
    with grpc.insecure_channel("127.0.0.1:1") as inner, pytest.raises(ValueError, match="use a name such as"):
        hedging_channel(inner, "a", methods)
    with pytest.raises(TypeError, match="use a set"):
        async_hedging_interceptors("a", UNARY)
    with pytest.raises(ValueError, match="are named"):
        async_hedging_interceptors("a", {UNARY: {"a": print}})


@pytest.mark.parametrize("example", ["client_grpc.py", "client_grpc_sync.py"])
def test_the_example(example: str) -> None:
    """RPCs of the named method are counted as requests that may be hedged."""
    with grpc_site() as replica:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "ADDRESS": replica.address, "METHOD": UNARY}
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / example], env=environment, capture_output=True, text=True, check=True
        )
    assert done.stdout.startswith("20 RPCs, hedge rate ")


# over grpc.aio


def test_a_stream_has_the_methods_of_a_call() -> None:
    """A raced stream is read by `read`, and has its metadata, code and details."""

    async def work(client: Client) -> None:
        call = client.open(STREAM)
        assert [await call.read() for _ in range(3)] == [b"Hello", b" 2", grpc.aio.EOF]
        assert (await call.code(), await call.details()) == (grpc.StatusCode.OK, "")
        assert (await call.initial_metadata() is not None, await call.trailing_metadata() is not None) == (True, True)
        assert call.done()

    with connected("aio", "silent", "quick") as client:
        client.run(work(client))


@both
def test_a_caller_that_gives_up_cancels_all_attempts(method: str) -> None:
    """A cancelled caller leaves no RPC at the server and no task."""

    async def rpc(client: Client) -> None:
        call: Any = client.open(method)
        await (call if method == UNARY else call.read())

    async def work(client: Client) -> None:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(rpc(client))
            while len(client.replica.seen) < 2:
                await asyncio.sleep(0.01)
            task.cancel()
        assert task.cancelled()

    with connected("aio", "silent", "silent") as client:
        client.run(work(client))
        for seen in client.replica.seen:
            seen.gone.wait()


def test_a_stream_over_aio_that_is_cancelled_after_its_first_message() -> None:
    """The winner's call is the caller's to cancel."""

    async def work(client: Client) -> None:
        call = client.open(STREAM)
        assert await call.read() == b"Hello"
        call.cancel()
        assert call.cancelled() or call.done()

    with connected("aio", "held", config=NEVER) as client:
        client.run(work(client))
        client.replica.seen[0].gone.wait()
        client.run(asyncio.sleep(0.01))


# over a synchronous channel


@both
def test_the_call_of_a_race_has_the_methods_of_a_call(method: str) -> None:
    """Metadata, code, details, result, time and callbacks come from the winner."""
    with connected("sync", "silent", "quick") as client:
        call, ended = client.open(method), threading.Semaphore(0)
        assert all(isinstance(call, kind) for kind in (grpc.Call, grpc.Future, grpc.RpcContext))
        assert (call.done(), call.running(), call.cancelled(), call.is_active()) == (False, True, False, True)
        with pytest.raises(grpc.FutureTimeoutError):
            call.result(timeout=0.0)
        call.add_done_callback(lambda given: ended.release() if given is call else None)
        assert call.add_callback(ended.release)
        if method == STREAM:
            assert list(call) == [b"Hello", b" 2"]
            assert next(call, None) is None
        else:
            assert call.result() == b"Hello 2"
        assert (call.exception(), call.traceback()) == (None, None)
        assert (call.code(), call.details()) == (grpc.StatusCode.OK, "")
        assert None not in (call.initial_metadata(), call.trailing_metadata(), call.debug_error_string())
        ended.acquire()
        ended.acquire()
        assert (call.done(), call.cancelled(), call.cancel()) == (True, False, False)
        call.add_done_callback(lambda _: ended.release())
        ended.acquire()
        assert 0 < call.time_remaining() <= 120.0


@both
def test_a_caller_that_cancels_ends_all_attempts(method: str) -> None:
    """A cancelled call leaves no RPC at the server, and ends as a cancelled one of grpc."""
    with connected("sync", "silent", "silent") as client:
        call = client.open(method)
        while len(client.replica.seen) < 2:
            threading.Event().wait(0.01)
        assert call.cancel()
        for seen in client.replica.seen:
            seen.gone.wait()
        assert call.code() is grpc.StatusCode.CANCELLED
        assert call.cancelled()
        with pytest.raises(grpc.FutureCancelledError):
            call.result()
        assert client.stats.snapshot().targets["a"].errors == 0


@both
def test_a_call_that_is_dropped_is_cancelled(method: str) -> None:
    """A call without a reference ends at the server, as one of grpc does."""
    with connected("sync", "silent") as client:
        call = client.open(method)
        while not client.replica.seen:
            threading.Event().wait(0.01)
        del call
        client.replica.seen[0].gone.wait()


@pytest.mark.parametrize("how", ["cancelled", "dropped"])
def test_a_stream_that_is_given_up_after_its_first_message(how: str) -> None:
    """The winner's call is the caller's to cancel or to drop."""
    with connected("sync", "held", config=NEVER) as client:
        call = client.open(STREAM)
        assert next(call) == b"Hello"
        if how == "cancelled":
            assert call.cancel()
            assert call.cancelled()
        del call
        client.replica.seen[0].gone.wait()


@both
def test_interceptors_see_each_attempt(method: str) -> None:
    """A channel with interceptors of its own may be wrapped; each call there has the caller's context variables."""
    tenant = contextvars.ContextVar("tenant", default="")
    seen: list[str] = []

    class Noting(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
        def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
            seen.append(tenant.get())
            return continuation(client_call_details, request)

        intercept_unary_stream = intercept_unary_unary

    tenant.set("mine")
    with grpc_site("silent", "quick") as replica:
        inner = grpc.intercept_channel(grpc.insecure_channel(replica.address), Noting())
        with hedging_channel(inner, "a", {method}, SOON) as channel:
            assert Client(channel, []).call(method) == b"Hello 2"
    assert seen == ["mine", "mine"]


@both
def test_a_closed_channel_raises(method: str) -> None:
    """An RPC after the end of its channel raises grpc's error, and is no attempt of the policy."""
    with connected("sync") as client:
        pass
    with pytest.raises(ValueError, match="closed"):
        client.call(method)
