"""Hedging for `grpc.aio`: interceptors for RPCs with one request, which have one response or a stream of them.

A method is hedged only if it is named: a server carries out a hedged RPC twice.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc.aio
from grpc.aio import EOF

from gateway.client.attempt import ClientAttempt
from gateway.client.config import HedgeConfig
from gateway.client.grpc_async_race import Answer, GrpcRace, Read, end_stream
from gateway.client.grpc_policy import GrpcPolicy, Methods, switched
from gateway.client.hedger import ClientRace, safely
from gateway.client.stats import Stats
from gateway.hedging.outcomes import Outcome


def async_hedging_interceptors(
    target: str,
    methods: Methods,
    config: HedgeConfig | None = None,
    *,
    stats: Stats | None = None,
    metadata: Iterable[str] = (),
) -> list[grpc.aio.ClientInterceptor]:
    """Return the interceptors for a channel: `grpc.aio.insecure_channel(address, interceptors=...)`.

    Args:
        target: name of the channel's target in the statistics.
        methods: methods that may be carried out twice. A name alone sends backups over the same channel.
        config: settings; None: the defaults.
        stats: counts; None: own ones.
        metadata: keys of metadata that other targets get too. They get no credentials of the RPC.

    Raises:
        ValueError: a method is no full name, or another target has the name of the channel's target.
    """
    policy = _Policy(target, methods, config or HedgeConfig(), stats or Stats(), metadata)
    return [_UnaryUnary(policy), _UnaryStream(policy)]  # grpc.aio uses an object for one kind of RPC only


class _Policy(GrpcPolicy):
    """The hedgers of one channel, and the tasks of its RPCs."""

    def __init__(
        self, target: str, methods: Methods, config: HedgeConfig, stats: Stats, metadata: Iterable[str]
    ) -> None:
        super().__init__(target, methods, config, stats, metadata)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(
        self, entered: tuple[ClientRace, ClientAttempt], continuation: Any, details: Any, request: Any, read: Read
    ) -> Answer:
        """Race one RPC; return the winner, whose end is to be reported, or the primary with its error."""
        race, primary = entered
        method = _name(details)
        hedger = self.hedgers[method]

        async def start(attempt: ClientAttempt, left_s: float | None) -> Any:
            other = self.other(method, attempt)
            if other is None:
                return await continuation(details._replace(timeout=left_s), request)
            passed = self.passed(details.metadata)
            return other(request, timeout=left_s, metadata=passed, wait_for_ready=details.wait_for_ready)

        answer = None
        try:
            answer = await GrpcRace(hedger, race, start, read, details.timeout, self._tasks).run(primary)
            return answer
        finally:
            if answer is None or answer.error is not None:
                race.close()

    def switched(self, details: Any) -> tuple[Any, bool]:
        """Return the details without `x-ttft-hedge`, and True if the RPC may be hedged."""
        kept, is_off = switched(details.metadata)
        if kept is not None:
            details = details._replace(metadata=grpc.aio.Metadata(*kept))
        return details, _name(details) in self.hedgers and not is_off

    def watch(self, answer: Answer, race: ClientRace) -> None:
        """Report the end of a winner's stream when its status arrives or it is cancelled."""
        loop, attempt = asyncio.get_running_loop(), answer.attempt

        def spawn(call: Any) -> None:
            task = loop.create_task(end_stream(race, attempt, call), name="ttft-hedge-end")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        def on_done(call: Any) -> None:  # also from a finalizer, where no lock may be taken
            if loop.is_closed():
                return
            if call.cancelled():
                loop.call_soon_threadsafe(lambda: safely(race.on_end, attempt, outcome=Outcome.CLIENT_GONE))
            else:
                loop.call_soon_threadsafe(spawn, call)

        answer.call.add_done_callback(on_done)


class _UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    """Races RPCs with one response."""

    def __init__(self, policy: _Policy) -> None:
        self._policy = policy

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        details, may_hedge = self._policy.switched(client_call_details)
        entered = safely(self._policy.enter, _name(details)) if may_hedge else None
        if entered is None:
            return await continuation(details, request)
        answer = await self._policy.run(entered, continuation, details, request, _response)
        if answer.error is None:
            safely(entered[0].on_end, answer.attempt, outcome=Outcome.FINISHED)
        if answer.call is None and answer.error is not None:
            raise answer.error
        return answer.call


class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):
    """Races RPCs with a stream of responses."""

    def __init__(self, policy: _Policy) -> None:
        self._policy = policy

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        details, may_hedge = self._policy.switched(client_call_details)
        entered = safely(self._policy.enter, _name(details)) if may_hedge else None
        if entered is None:
            return await continuation(details, request)
        answer = await self._policy.run(entered, continuation, details, request, _first)
        if answer.error is None:
            self._policy.watch(answer, entered[0])
        if answer.call is None and answer.error is not None:
            raise answer.error
        return _RacedStream(answer)


class _RacedStream(grpc.aio.UnaryStreamCall[Any, Any]):
    """The call of a winner: the message that ended its race, then the others."""

    def __init__(self, answer: Answer) -> None:
        self._call: Any = answer.call
        self._held = [] if answer.first in (None, EOF) else [answer.first]

    async def read(self) -> Any:
        return self._held.pop() if self._held else await self._call.read()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not EOF:
            yield message

    def cancel(self) -> bool:
        return bool(self._call.cancel())

    def cancelled(self) -> bool:
        return bool(self._call.cancelled())

    def done(self) -> bool:
        return not self._held and self._call.done()

    def time_remaining(self) -> float | None:
        left_s: float | None = self._call.time_remaining()
        return left_s

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._call.add_done_callback(callback)

    async def initial_metadata(self) -> Any:
        return await self._call.initial_metadata()

    async def trailing_metadata(self) -> Any:
        return await self._call.trailing_metadata()

    async def code(self) -> Any:
        return await self._call.code()

    async def details(self) -> Any:
        return await self._call.details()

    async def debug_error_string(self) -> Any:
        """Return the description of an error."""
        return await self._call.debug_error_string()

    async def wait_for_connection(self) -> None:
        await self._call.wait_for_connection()


def _name(details: Any) -> str:
    method = details.method
    return method.decode() if isinstance(method, bytes) else method


async def _response(call: Any) -> Any:
    return await call


async def _first(call: Any) -> Any:
    return await call.read()
