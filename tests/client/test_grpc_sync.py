"""The channel for synchronous gRPC on a real server: races, losers, errors, keys, and what is left at the end."""

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc

from gateway.client.config import HedgeConfig
from gateway.client.hedger import Hedger
from grpc_replicas import STREAM, UNARY, GrpcReplica, grpc_site
from ttft_gateway import Stats, hedging_channel

SOON = HedgeConfig(warmup_delay=0.02, budget_percent=100.0)
NEVER = HedgeConfig(warmup_delay=3600.0)
both = pytest.mark.parametrize("method", [UNARY, STREAM])


class Client:
    """A channel to a server."""

    def __init__(self, replica: GrpcReplica, channel: grpc.Channel, stats: Stats) -> None:
        self.replica = replica
        self.stats = stats
        self.unary: Any = channel.unary_unary(UNARY)
        self.stream: Any = channel.unary_stream(STREAM)

    def call(self, method: str, **options: Any) -> bytes:
        """Return the whole answer of an RPC."""
        options.setdefault("timeout", 120.0)
        if method == UNARY:
            answer: bytes = self.unary(b"Hello", **options)
            return answer
        return b"".join(self.stream(b"Hello", **options))

    def open(self, method: str, **options: Any) -> Any:
        """Return the call of an RPC."""
        options.setdefault("timeout", 120.0)
        return self.unary.future(b"Hello", **options) if method == UNARY else self.stream(b"Hello", **options)


@contextmanager
def connected(
    *behaviours: str, methods: Any = (UNARY, STREAM), config: HedgeConfig = SOON, real_time: bool = False
) -> Iterator[Client]:
    """Run a server and a client; no thread and no attempt may be left.

    Args:
        real_time: False: the first RPC is late as soon as it has reached the server, and no other one is.
    """
    stats = Stats()
    with grpc_site(*behaviours) as replica:
        with hedging_channel(grpc.insecure_channel(replica.address), "a", methods, config, stats=stats) as channel:
            made: Any = channel
            hedgers = list(made._policy.hedgers.values())
            for hedger in hedgers:
                hedger.clock = hedger.clock if real_time else lambda: 1.0 if replica.seen else 0.0
            yield Client(replica, channel, stats)
        pools = [found.pool for hedger in hedgers for found in hedger._populations.values()]
    for thread in threading.enumerate():
        if thread.name.startswith("ttft-hedge"):
            thread.join()
    assert sum(replica.in_flight for pool in pools for replica in pool.replicas) == 0


@both
@pytest.mark.parametrize("behaviour", ["silent", "opened"])
def test_a_silent_primary_loses_and_is_cancelled(method: str, behaviour: str) -> None:
    """The first message wins, whatever came before it, and the server sees the end of the loser."""
    with connected(behaviour, "quick") as client:
        assert client.call(method) == b"Hello 2"
        client.replica.seen[0].gone.wait()
        counts = client.stats.snapshot()
        assert (counts.requests, counts.hedges, counts.hedge_wins) == (1, 1, 1)
        assert counts.targets["a"].lost == 1


@both
def test_a_silent_backup_loses_and_is_cancelled(method: str) -> None:
    """A primary that answers after its backup was sent wins."""
    with connected("late", "silent") as client:
        assert client.call(method) == b"Hello 2"
        client.replica.seen[1].gone.wait()
        counts = client.stats.snapshot()
        assert (counts.hedges, counts.hedge_wins, counts.primary_wins) == (1, 0, 1)


@both
@pytest.mark.parametrize("code", ["UNAVAILABLE", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"])
def test_an_error_never_wins(method: str, code: str) -> None:
    """An attempt that fails leaves the race to the other one, the primary or the backup."""
    for plan in (("last", code), (f"late:{code}", "late")):
        with connected(*plan) as client:
            assert client.call(method).startswith(b"Hello")
            assert client.stats.snapshot().hedges == 1


def test_an_empty_stream_never_wins() -> None:
    """A stream without a message leaves the race to the other attempt; alone, it is the answer."""
    with connected("last", "empty") as client:
        assert client.call(STREAM).startswith(b"Hello")
    with connected("empty", config=NEVER) as client:
        assert client.call(STREAM) == b""
        assert client.stats.snapshot().targets["a"].errors == 0


@both
def test_the_primarys_error_is_raised_if_all_fail(method: str) -> None:
    """After each attempt has failed, the caller gets the status of the primary."""
    with connected("late:NOT_FOUND", "late:ABORTED") as client, pytest.raises(grpc.RpcError) as raised:
        client.call(method)
    error: Any = raised.value
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "scripted")


@both
def test_an_error_without_a_backup_is_passed_on(method: str) -> None:
    """A failed RPC that was not late is not sent again."""
    with connected("UNAVAILABLE", config=NEVER) as client:
        with pytest.raises(grpc.RpcError):
            client.call(method)
        assert len(client.replica.seen) == 1


@both
def test_only_named_methods_are_hedged(method: str) -> None:
    """Other methods, and RPCs with `x-ttft-hedge: off`, have no race; the switch is not sent."""
    off = (("x-ttft-hedge", "off"), ("x-tenant", "t"))
    with connected() as client:
        assert client.call(method, metadata=off).startswith(b"Hello")
        seen = client.replica.seen[0].metadata
        assert (seen.get("x-ttft-hedge"), seen["x-tenant"]) == (None, "t")
        assert client.stats.snapshot().requests == 0
    with connected(methods={"/test.Service/Other"}) as client:
        assert client.call(method) == b"Hello 1"
        assert client.stats.snapshot().requests == 0


@both
def test_a_bug_in_the_policy_costs_no_answer(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An RPC whose race cannot begin is sent without one."""
    monkeypatch.setattr(Hedger, "race", None)
    with connected() as client:
        assert client.call(method) == b"Hello 1"


@both
def test_the_call_of_a_race_has_the_methods_of_a_call(method: str) -> None:
    """Metadata, code, details, result, time and callbacks are those of the winner."""
    with connected("silent", "quick") as client:
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
    with connected("silent", "silent") as client:
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
    with connected("silent") as client:
        call = client.open(method)
        while not client.replica.seen:
            threading.Event().wait(0.01)
        del call
        client.replica.seen[0].gone.wait()


@pytest.mark.parametrize("how", ["cancelled", "dropped"])
def test_a_stream_that_is_given_up_after_its_first_message(how: str) -> None:
    """The winner's call is the caller's to cancel or to drop."""
    with connected("held", config=NEVER) as client:
        call = client.open(STREAM)
        assert next(call) == b"Hello"
        if how == "cancelled":
            assert call.cancel()
            assert call.cancelled()
        del call
        client.replica.seen[0].gone.wait()


@both
def test_a_deadline_ends_all_attempts(method: str) -> None:
    """The RPC's timeout holds for the primary and its backup."""
    with connected("silent", "silent") as client, pytest.raises(grpc.RpcError) as raised:
        client.call(method, timeout=0.3)
    error: Any = raised.value
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@both
def test_another_target_gets_no_credentials(method: str) -> None:
    """A backup goes to another target, with metadata of an allow-list only."""
    stats = Stats()
    sent = (("authorization", "Bearer secret"), ("traceparent", "00-1-2-3"), ("x-tenant", "t"))
    with grpc_site("silent") as first, grpc_site() as second, grpc.insecure_channel(second.address) as other:
        plain: Any = other.unary_unary(UNARY) if method == UNARY else other.unary_stream(STREAM)
        inner = grpc.insecure_channel(first.address)
        methods = {method: {"b": plain}}
        with hedging_channel(inner, "a", methods, SOON, stats=stats, metadata=["x-tenant"]) as channel:
            assert Client(first, channel, stats).call(method, metadata=sent) == b"Hello 1"
        assert [second.seen[0].metadata.get(key) for key, _ in sent] == [None, "00-1-2-3", "t"]
        assert set(stats.snapshot().targets) <= {"a", "b"}


@both
def test_interceptors_see_each_attempt(method: str) -> None:
    """A channel with interceptors of its own may be wrapped."""

    class Counting(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
        calls = 0

        def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
            self.calls += 1
            return continuation(client_call_details, request)

        intercept_unary_stream = intercept_unary_unary

    counting = Counting()
    with grpc_site("silent", "quick") as replica:
        inner = grpc.intercept_channel(grpc.insecure_channel(replica.address), counting)
        with hedging_channel(inner, "a", {method}, SOON) as channel:
            assert Client(replica, channel, Stats()).call(method) == b"Hello 2"
    assert counting.calls == 2


@both
def test_a_closed_channel_raises(method: str) -> None:
    """An RPC after the end of its channel raises grpc's error, and is no attempt of the policy."""
    with connected() as client:
        pass
    with pytest.raises(ValueError, match="closed"):
        client.call(method)


def test_nothing_is_left_after_many_races() -> None:
    """After RPCs of all endings from several threads, no thread and no attempt in flight is left."""
    plan = ("silent", "quick", "quick", "UNAVAILABLE", "late:NOT_FOUND") * 20
    with connected(*plan, real_time=True) as client:

        def work(start: int) -> None:
            for number in range(start, start + 12):
                with contextlib.suppress(grpc.RpcError):
                    if number % 5:
                        client.call((UNARY, STREAM)[number % 2], timeout=0.3)
                    else:
                        next(client.open(STREAM, timeout=0.3))  # and drops the stream

        threads = [threading.Thread(target=work, args=(start,)) for start in range(0, 60, 12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_wrong_names_of_methods_are_rejected() -> None:
    """A name that no RPC has is an error."""
    with grpc.insecure_channel("127.0.0.1:1") as inner, pytest.raises(ValueError, match="use a name such as"):
        hedging_channel(inner, "a", {"Unary"})
