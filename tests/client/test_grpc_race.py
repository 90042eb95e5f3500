"""The race of an RPC in virtual time, without a server: deadlines, pushback, and codes."""

import asyncio
from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc

from running import run_virtual
from ttft_gateway.client.async_race import AsyncRace, alarm_of
from ttft_gateway.client.config import HedgeConfig
from ttft_gateway.client.grpc_async import Answer, RpcAttempts
from ttft_gateway.client.grpc_policy import GrpcPolicy, failure_of
from ttft_gateway.client.stats import Stats
from ttft_gateway.hedging.outcomes import Outcome

METHOD = "/p.S/M"
CONFIG = HedgeConfig(warmup_delay=2.0, budget_percent=100.0)
Script = list[tuple[float, Any]]
"""For each attempt the seconds that it takes, and its response or error."""


def failed(code: grpc.StatusCode, **trailing: str) -> grpc.aio.AioRpcError:
    """Return the error of an RPC."""
    pairs = [(key.replace("_", "-"), value) for key, value in trailing.items()]
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*pairs))


class Call:
    """A call that ends after a time."""

    def __init__(self, takes_s: float, result: Any) -> None:
        self._takes_s = takes_s
        self._result = result
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    async def read(self) -> Any:
        """Return the result or raise it."""
        await asyncio.sleep(self._takes_s)
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


class Site:
    """A hedger on the time of the loop, and the calls of its RPCs."""

    def __init__(self, config: HedgeConfig = CONFIG) -> None:
        self._policy = GrpcPolicy("a", {METHOD}, config, Stats(), ())
        self.hedger = self._policy.hedgers[METHOD]
        self.hedger.clock, self.hedger.rand = asyncio.get_running_loop().time, lambda: 0.5
        self.left_s: list[float | None] = []
        self.calls: list[Call] = []

    async def rpc(self, script: Script, timeout_s: float | None = None) -> Answer[Any]:
        """Run one RPC."""
        first = len(self.calls)

        async def send(details: grpc.aio.ClientCallDetails) -> Any:
            self.left_s.append(details.timeout)
            self.calls.append(Call(*script[len(self.calls) - first]))
            return self.calls[-1]

        details = grpc.aio.ClientCallDetails(METHOD, timeout_s, None, None, None)
        entered = self._policy.enter(METHOD, timeout_s)
        attempts: Any = RpcAttempts(self._policy, details, entered, send, lambda call: call.read(), b"")
        answer: Answer[Any] = await AsyncRace(attempts, set(), alarm_of(self.hedger, None)).run()
        entered[0].close()
        await asyncio.sleep(0)
        return answer

    @property
    def hedges(self) -> int:
        """Number of backups so far."""
        return self.hedger.stats.snapshot().hedges


def test_the_backup_gets_the_time_that_is_left() -> None:
    """A backup has the deadline of its RPC; the loser's call is cancelled."""

    async def main() -> None:
        site = Site()
        answer = await site.rpc([(100.0, b"slow"), (1.0, b"quick")], timeout_s=10.0)
        assert (answer.first, site.left_s) == (b"quick", [10.0, 8.0])
        assert [call.is_cancelled for call in site.calls] == [True, False]

    run_virtual(main())


def test_of_two_messages_at_one_instant_the_second_is_cancelled() -> None:
    """A loser that already has a message is cancelled, too: its stream goes on otherwise."""

    async def main() -> None:
        site = Site()
        answer = await site.rpc([(3.0, b"primary"), (1.0, b"backup")])
        assert answer.first in (b"primary", b"backup")
        assert [call.is_cancelled for call in site.calls] == [answer.first != b"primary", answer.first != b"backup"]

    run_virtual(main())


def test_no_backup_after_the_deadline() -> None:
    """An RPC gets no backup if its deadline comes before it is late."""

    async def main() -> None:
        site = Site()
        answer = await site.rpc([(2.5, failed(grpc.StatusCode.DEADLINE_EXCEEDED))], timeout_s=1.5)
        assert isinstance(answer.error, grpc.aio.AioRpcError)
        assert (site.hedges, len(site.calls)) == (0, 1)

    run_virtual(main())


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_no_backup_while_pushed_back(code: grpc.StatusCode) -> None:
    """After `grpc-retry-pushback-ms` no RPC to the target is hedged for that time."""

    async def main() -> None:
        site = Site()
        await site.rpc([(1.0, failed(code, grpc_retry_pushback_ms="30000"))])
        await site.rpc([(5.0, b"late")])
        assert site.hedges == 0
        assert site.hedger.stats.snapshot().denied
        await asyncio.sleep(60.0)
        answer = await site.rpc([(5.0, b"late"), (1.0, b"quick")])
        assert (answer.first, site.hedges) == (b"quick", 1)

    run_virtual(main())


def test_a_server_that_forbids_attempts_gets_none() -> None:
    """A negative pushback of one attempt ends the backups of its RPC."""

    async def main() -> None:
        site = Site(HedgeConfig(warmup_delay=2.0, budget_percent=100.0, max_hedges=2))
        pushed_back = failed(grpc.StatusCode.UNAVAILABLE, grpc_retry_pushback_ms="-1")
        answer = await site.rpc([(20.0, b"late"), (1.0, pushed_back), (1.0, b"quick")])
        assert (answer.first, site.hedges) == (b"late", 1)

    run_virtual(main())


def test_a_call_that_is_cancelled_elsewhere_leaves_the_race_to_the_other_one() -> None:
    """A call that ends with its channel never wins; alone, it is the answer, and its caller gets the cancellation."""

    async def main() -> None:
        site = Site()
        answer = await site.rpc([(3.0, asyncio.CancelledError()), (2.0, b"backup")])
        assert (answer.first, site.hedges) == (b"backup", 1)
        answer = await site.rpc([(1.0, asyncio.CancelledError())])
        assert (answer.call, type(answer.error)) == (site.calls[-1], asyncio.CancelledError)

    run_virtual(main())


@pytest.mark.parametrize(
    ("code", "pushback", "outcome", "wait_s", "is_forbidden"),
    [
        ("UNAVAILABLE", None, Outcome.FAILED, None, False),
        ("RESOURCE_EXHAUSTED", None, Outcome.RATE_LIMITED, None, False),
        ("UNAUTHENTICATED", None, Outcome.MISCONFIGURED, None, False),
        ("NOT_FOUND", None, Outcome.CLIENT_ERROR, None, False),
        ("DEADLINE_EXCEEDED", None, Outcome.TTFT_TIMEOUT, None, False),
        ("UNAVAILABLE", "250", Outcome.RATE_LIMITED, 0.25, False),
        ("UNAVAILABLE", b"99999999999999", Outcome.RATE_LIMITED, 3600.0, False),
        ("UNAVAILABLE", "-1", Outcome.RATE_LIMITED, None, True),
        ("UNAVAILABLE", "soon", Outcome.RATE_LIMITED, None, True),
        ("UNAVAILABLE", "", Outcome.RATE_LIMITED, None, True),
    ],
)
def test_codes(
    code: str, pushback: str | bytes | None, outcome: Outcome, wait_s: float | None, *, is_forbidden: bool
) -> None:
    """A code and a pushback have one meaning each."""
    found = failure_of(code, pushback)
    assert (found.outcome, found.retry_after_s, found.is_final) == (outcome, wait_s, is_forbidden)
