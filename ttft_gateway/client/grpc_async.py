"""Hedging for `grpc.aio`: interceptors for RPCs with one request, which have one response or a stream of them.

A method is hedged only if it is named: a server carries out a hedged RPC twice. A race ends with the response or with
the first message of a stream; the loser's call is cancelled immediately, which resets its stream.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar, cast

import grpc.aio
from grpc.aio import EOF, AioRpcError, ClientCallDetails, UnaryStreamCall, UnaryUnaryCall

from ttft_gateway.client.async_race import AsyncRace, RaceAlarm, alarm_of
from ttft_gateway.client.budget import Budget
from ttft_gateway.client.config import HedgeConfig
from ttft_gateway.client.grpc_policy import EMPTY, PUSHBACK, GrpcPolicy, Methods, failure_of, outcome_of, switched
from ttft_gateway.client.hedger import ClientAttempt, ClientRace, Failure, Hedger, safely
from ttft_gateway.client.race import UNSENT, Overtaken
from ttft_gateway.client.report import ATTRIBUTE, RaceReport
from ttft_gateway.client.stats import Stats
from ttft_gateway.hedging.outcomes import Outcome

_Q = TypeVar("_Q")
_R = TypeVar("_R")
_C = TypeVar("_C", bound=grpc.aio.Call)


def async_hedging_interceptors(
    target: str,
    methods: Methods,
    config: HedgeConfig | None = None,
    *,
    stats: Stats | None = None,
    budget: Budget | None = None,
    metadata: Iterable[str] = (),
) -> list[grpc.aio.ClientInterceptor]:
    """Return the interceptors for a channel: `grpc.aio.insecure_channel(address, interceptors=...)`.

    Args:
        target: name of the channel's target in the statistics.
        methods: methods that may be carried out twice. A name alone sends backups over the same channel.
        config: settings; None: the defaults.
        stats: counts; None: own ones.
        budget: limit on backups, shared with other clients; None: its own, of the settings.
        metadata: keys of metadata that other targets get too. They get no credentials of the RPC.

    Raises:
        ValueError: a method is no full name, or another target has the name of the channel's target.
    """
    policy = GrpcPolicy(target, methods, config or HedgeConfig(), stats or Stats(), metadata, budget)
    return [_UnaryUnary(policy), _UnaryStream(policy)]  # grpc.aio uses an object for one kind of RPC only


class Answer(NamedTuple, Generic[_C]):
    """The call of one attempt.

    Attributes:
        call: the call.
        first: response, or first message; EOF for a stream without a message; None after an error.
        error: its error, None if it has none.
    """

    call: _C
    first: object
    error: BaseException | None


class RpcAttempts(Generic[_C]):
    """The attempts of one RPC: its `race.RacedAttempts`.

    Args:
        details: method, timeout and metadata, as the caller gave them.
        entered: its race and its primary.
        send: sends over the channel; returns the call.
        read: returns the first message of a call.
    """

    def __init__(
        self,
        policy: GrpcPolicy,
        details: ClientCallDetails,
        entered: tuple[ClientRace, ClientAttempt],
        send: Callable[[ClientCallDetails], Awaitable[_C]],
        read: Callable[[_C], Awaitable[object]],
        request: object,
    ) -> None:
        self.race, self.primary = entered
        self._policy = policy
        self._details: Any = details  # a named tuple
        self._send = send
        self._read = read
        self._request = request

    async def open(self, attempt: ClientAttempt) -> Answer[_C]:
        """Send an attempt and wait for its first message."""
        race, call = self.race, None
        try:
            call = await self._call(attempt)
            first = await self._read(call)
        except BaseException as error:
            if call is None:
                raise
            if isinstance(error, AioRpcError) or (isinstance(error, asyncio.CancelledError) and not _is_cancelled()):
                safely(race.on_failed, attempt, self.failure(error))
                return Answer(call, None, error)
            call.cancel()
            raise
        if first is EOF and not race.is_alone(attempt):
            safely(race.on_failed, attempt, EMPTY)
        elif not race.on_first(attempt):
            call.cancel()
            raise Overtaken
        return Answer(call, first, None)

    async def _call(self, attempt: ClientAttempt) -> _C:
        details, left_s = self._details, self.race.left_s()
        other = self._policy.other(_name(details), attempt)
        if other is None:
            return await self._send(details._replace(timeout=left_s))
        passed = self._policy.passed(details.metadata)
        call: _C = other(self._request, timeout=left_s, metadata=passed, wait_for_ready=details.wait_for_ready)
        return call

    def failure(self, error: BaseException) -> Failure:
        """Classify an error; a call that is cancelled, while its task is not, ends with its channel."""
        if isinstance(error, AioRpcError):
            return failure_of(error.code().name, dict(error.trailing_metadata() or ()).get(PUSHBACK))
        return UNSENT if isinstance(error, asyncio.CancelledError) else Failure(Outcome.FAILED)

    async def close(self, opened: Answer[_C]) -> None:
        """Cancel a call that is not returned."""
        opened.call.cancel()


class _Interceptor:
    """Races the RPCs of one channel."""

    def __init__(self, policy: GrpcPolicy) -> None:
        self._policy = policy
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarms: dict[Hedger, RaceAlarm] = {}

    def _race(self, attempts: RpcAttempts[_C]) -> AsyncRace[Answer[_C]]:
        hedger = attempts.race.hedger
        self._alarms[hedger] = alarm = alarm_of(hedger, self._alarms.get(hedger))
        return AsyncRace(attempts, self._tasks, alarm)

    def _enter(self, details: ClientCallDetails) -> tuple[ClientCallDetails, tuple[ClientRace, ClientAttempt] | None]:
        """Return the details without `x-ttft-hedge`, and the race of an RPC with its primary; None: it is sent once."""
        method, given = _name(details), details
        kept, is_off = switched(details.metadata)
        if kept is not None:
            named: Any = details
            given = named._replace(metadata=grpc.aio.Metadata(*kept))
        is_hedged = method in self._policy.hedgers and not is_off
        return given, safely(self._policy.enter, method, details.timeout) if is_hedged else None

    def _watch(self, call: grpc.aio.Call, race: ClientRace, attempt: ClientAttempt) -> None:
        """Report the end of a winner's stream when its status arrives or it is cancelled."""
        loop = asyncio.get_running_loop()

        async def end(done: grpc.aio.Call) -> None:
            safely(race.on_end, attempt, outcome=outcome_of((await done.code()).name))

        def spawn(done: grpc.aio.Call) -> None:
            task = loop.create_task(end(done), name="ttft-hedge-end")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        def on_done(done: grpc.aio.Call) -> None:  # also from a finalizer, where no lock may be taken
            if loop.is_closed():
                return
            if done.cancelled():
                loop.call_soon_threadsafe(lambda: safely(race.on_end, attempt, outcome=Outcome.CLIENT_GONE))
            else:
                loop.call_soon_threadsafe(spawn, done)

        call.add_done_callback(on_done)


class _UnaryUnary(_Interceptor, grpc.aio.UnaryUnaryClientInterceptor):
    """Races RPCs with one response."""

    async def intercept_unary_unary(
        self,
        continuation: Callable[[ClientCallDetails, _Q], Awaitable[UnaryUnaryCall[_Q, _R]]],
        client_call_details: ClientCallDetails,
        request: _Q,
    ) -> UnaryUnaryCall[_Q, _R]:
        details, entered = self._enter(client_call_details)
        if entered is None:
            return await continuation(details, request)
        attempts = RpcAttempts(
            self._policy, details, entered, lambda given: continuation(given, request), _response, request
        )
        answer = await self._race(attempts).run()
        if attempts.race.winner is not None:
            safely(attempts.race.on_end, attempts.race.winner, outcome=Outcome.FINISHED)
        setattr(answer.call, ATTRIBUTE, RaceReport(attempts.race))
        return answer.call


class _UnaryStream(_Interceptor, grpc.aio.UnaryStreamClientInterceptor):
    """Races RPCs with a stream of responses."""

    async def intercept_unary_stream(
        self,
        continuation: Callable[[ClientCallDetails, _Q], Awaitable[UnaryStreamCall[_Q, _R]]],
        client_call_details: ClientCallDetails,
        request: _Q,
    ) -> UnaryStreamCall[_Q, _R]:
        details, entered = self._enter(client_call_details)
        if entered is None:
            return await continuation(details, request)
        attempts = RpcAttempts(
            self._policy, details, entered, lambda given: continuation(given, request), _first, request
        )
        answer = await self._race(attempts).run()
        if attempts.race.winner is not None:
            self._watch(answer.call, attempts.race, attempts.race.winner)
        return cast(UnaryStreamCall[_Q, _R], _RacedStream(answer, RaceReport(attempts.race)))


class _RacedStream:
    """The call of a winner: the message that ended its race, then its other ones. It has the call's attributes."""

    def __init__(self, answer: Answer[UnaryStreamCall[_Q, _R]], report: RaceReport) -> None:
        self._call = answer.call
        setattr(self, ATTRIBUTE, report)
        self._held = [] if answer.first is None or answer.first is EOF else [answer.first]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    async def read(self) -> object:
        return self._held.pop() if self._held else await self._call.read()

    async def __aiter__(self) -> AsyncIterator[object]:
        while (message := await self.read()) is not EOF:
            yield message

    def done(self) -> bool:
        return not self._held and self._call.done()


UnaryStreamCall.register(_RacedStream)


def _name(details: ClientCallDetails) -> str:
    method: str | bytes = details.method
    return method.decode() if isinstance(method, bytes) else method


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _response(call: UnaryUnaryCall[_Q, _R]) -> _R:
    return await call


async def _first(call: UnaryStreamCall[_Q, _R]) -> object:
    return await call.read()
