"""Hedging for synchronous channels of gRPC: a channel that races RPCs with one request.

An interceptor could not do this: grpc gives it a call only after a blocking RPC has ended, so that no loser could be
cancelled. The channel sends each attempt as a future or a stream of the channel that it wraps.
"""

import contextlib
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, Self

import grpc

from ttft_gateway.client.budget import Budget
from ttft_gateway.client.config import HedgeConfig
from ttft_gateway.client.grpc_policy import GrpcPolicy, Methods, switched
from ttft_gateway.client.grpc_sync_race import NOTHING, Alarm, Call, RpcResult, SyncGrpcRace
from ttft_gateway.client.hedger import ClientAttempt, safely
from ttft_gateway.client.report import ATTRIBUTE, RaceReport
from ttft_gateway.client.stats import Stats

Options = dict[str, Any]
"""Arguments of an RPC."""
Method = Any
"""A method of a channel; the types of its messages are the stub's."""
_NAMES: Final = ("timeout", "metadata", "credentials", "wait_for_ready", "compression")  # in this order


def hedging_channel(
    channel: grpc.Channel,
    target: str,
    methods: Methods,
    config: HedgeConfig | None = None,
    *,
    stats: Stats | None = None,
    budget: Budget | None = None,
    metadata: Iterable[str] = (),
) -> grpc.Channel:
    """Return a channel for stubs, which sends through another one: `hedging_channel(grpc.insecure_channel(...), ...)`.

    Args:
        channel: channel that sends; it is closed with the returned one.
        target: name of the channel's target in the statistics.
        methods: methods that may be carried out twice. A name alone sends backups over the same channel.
        config: settings; None: the defaults.
        stats: counts; None: own ones.
        budget: limit on backups, shared with other clients; None: its own, of the settings.
        metadata: keys of metadata that other targets get too. They get no credentials of the RPC.

    Raises:
        ValueError: a method is no full name, or another target has the name of the channel's target.
        TypeError: the channel is none.
    """
    if not isinstance(channel, grpc.Channel):
        raise TypeError(f"channel is {type(channel).__name__}; use grpc.insecure_channel(...) or another grpc.Channel")
    return _Channel(channel, GrpcPolicy(target, methods, config or HedgeConfig(), stats or Stats(), metadata, budget))


class _Channel(grpc.Channel):
    """A channel that races the RPCs of named methods."""

    def __init__(self, inner: grpc.Channel, policy: GrpcPolicy) -> None:
        self._inner: Any = inner
        self._policy = policy
        self._alarm = Alarm()

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: object = None) -> None:
        self._inner.subscribe(callback, try_to_connect=bool(try_to_connect))

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        self._inner.unsubscribe(callback)

    def unary_unary(self, method: str, *arguments: object, **options: object) -> Method:
        inner = self._inner.unary_unary(method, *arguments, **options)
        return _UnaryUnary(inner, method, self._policy, self._alarm) if method in self._policy.hedgers else inner

    def unary_stream(self, method: str, *arguments: object, **options: object) -> Method:
        inner = self._inner.unary_stream(method, *arguments, **options)
        return _UnaryStream(inner, method, self._policy, self._alarm) if method in self._policy.hedgers else inner

    def stream_unary(self, method: str, *arguments: object, **options: object) -> Method:
        return self._inner.stream_unary(method, *arguments, **options)

    def stream_stream(self, method: str, *arguments: object, **options: object) -> Method:
        return self._inner.stream_stream(method, *arguments, **options)

    def close(self) -> None:
        self._inner.close()
        self._alarm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Method:
    """One method of a channel; `inner` is the method of the channel that sends."""

    _is_stream = False

    def __init__(self, inner: Method, method: str, policy: GrpcPolicy, alarm: Alarm) -> None:
        self._inner = inner
        self._method = method
        self._policy = policy
        self._alarm = alarm

    def _send(self, send: Callable[..., Call], request: object, given: tuple[object, ...], named: Options) -> Call:
        """Send an RPC; return its call, a `RacedCall` if the RPC is raced.

        Args:
            send: sends over this channel.
            given: arguments of the RPC in the order of `_NAMES`.
            named: others, by their names.
        """
        policy, method = self._policy, self._method
        options: Options = {**dict.fromkeys(_NAMES), **dict(zip(_NAMES, given, strict=False)), **named}
        kept, is_off = switched(options["metadata"])
        if kept is not None:
            options["metadata"] = kept
        entered = None if is_off else safely(policy.enter, method, options["timeout"])
        if entered is None:
            return send(request, **options)

        def start(attempt: ClientAttempt, left_s: float | None) -> Call:
            other: Method = policy.other(method, attempt)
            if other is None:
                return send(request, **{**options, "timeout": left_s})
            send_other = other if self._is_stream else other.future
            passed = policy.passed(options["metadata"])
            return send_other(request, timeout=left_s, metadata=passed, wait_for_ready=options["wait_for_ready"])

        race, primary = entered
        run = SyncGrpcRace(race, self._alarm, start, is_stream=self._is_stream)
        run.begin(primary)
        return RacedResponses(run) if self._is_stream else RacedCall(run)


class _UnaryUnary(_Method):
    """Races RPCs with one response."""

    def __call__(self, request: object, *given: object, **named: object) -> object:
        return self.with_call(request, *given, **named)[0]

    def with_call(self, request: object, *given: object, **named: object) -> tuple[object, Call]:
        """Send an RPC and wait; return the response and its call."""
        call = self.future(request, *given, **named)
        try:
            return call.result(), call
        except BaseException:
            call.cancel()
            raise

    def future(self, request: object, *given: object, **named: object) -> Call:
        """Send an RPC; return its call without waiting."""
        return self._send(self._inner.future, request, given, named)


class _UnaryStream(_Method):
    """Races RPCs with a stream of responses."""

    _is_stream = True

    def __call__(self, request: object, *given: object, **named: object) -> Call:
        return self._send(self._inner, request, given, named)


grpc.UnaryUnaryMultiCallable.register(_UnaryUnary)
grpc.UnaryStreamMultiCallable.register(_UnaryStream)


def _of_winner(name: str, text: str) -> Callable[["RacedCall"], object]:
    """Return a method that waits for the end of the race, and is then the winner's."""

    def method(self: "RacedCall") -> object:
        found: object = getattr(self._winner().call, name)()
        return found

    method.__doc__ = text
    return method


class RacedCall:
    """The call of one RPC, a `grpc.Call` and a `grpc.Future`, which waits for the end of its race."""

    def __init__(self, race: SyncGrpcRace) -> None:
        self._race = race
        setattr(self, ATTRIBUTE, RaceReport(race.race))

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self._race.cancel()  # as grpc does with a call that is dropped

    def result(self, timeout: float | None = None) -> object:
        """Return the response."""
        response: object = self._winner(timeout).call.result(timeout)
        return response

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error; None for no error."""
        answer = self._race.wait(timeout)
        error: BaseException | None = answer.error if answer.call is None else answer.call.exception(timeout)
        return error

    def traceback(self, timeout: float | None = None) -> TracebackType | None:
        """Return the traceback of the error; None for no error."""
        found: TracebackType | None = self._winner(timeout).call.traceback(timeout)
        return found

    def add_done_callback(self, function: Callable[[Self], None]) -> None:
        """Call a function with this call at its end."""
        if not self.add_callback(lambda: function(self)):
            function(self)

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Call a function at the end; return False if the end has come."""
        if self.done():
            return False

        def add() -> None:
            answer = self._race.answer
            if answer is None or answer.call is None or not answer.call.add_callback(callback):
                callback()

        self._race.when_over(add)
        return True

    def cancel(self) -> bool:
        """Cancel the RPC."""
        answer = self._race.answer
        return self._race.cancel() if answer is None else answer.call is not None and bool(answer.call.cancel())

    def cancelled(self) -> bool:
        """Return True if the RPC was cancelled."""
        answer = self._race.answer
        return answer is not None and (answer.call is None or bool(answer.call.cancelled()))

    def done(self) -> bool:
        """Return True if the RPC has ended."""
        answer = self._race.answer
        return answer is not None and (answer.call is None or not answer.call.is_active())

    def running(self) -> bool:
        """Return True if the RPC has not ended."""
        return not self.done()

    def is_active(self) -> bool:
        """Return True if the RPC has not ended."""
        return not self.done()

    def time_remaining(self) -> float | None:
        """Return the seconds until the timeout; None for no timeout."""
        return self._race.left_s()

    initial_metadata = _of_winner("initial_metadata", "Return the metadata before the response.")
    trailing_metadata = _of_winner("trailing_metadata", "Return the metadata after the response.")
    code = _of_winner("code", "Return the status code.")
    details = _of_winner("details", "Return the description of the status.")
    debug_error_string = _of_winner("debug_error_string", "Return the description of an error for developers.")

    def _winner(self, timeout: float | None = None) -> RpcResult:
        answer = self._race.wait(timeout)
        if answer.call is None and answer.error is not None:
            raise answer.error
        return answer


class RacedResponses(RacedCall):
    """The call of a stream: the message that ended its race, then the winner's other ones."""

    _is_read = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        answer = self._winner()
        if not self._is_read:
            self._is_read = True
            if answer.first is not NOTHING:
                return answer.first
        message: object = next(answer.call)
        return message


for _interface in (grpc.Call, grpc.Future, grpc.RpcContext):
    _interface.register(RacedCall)
