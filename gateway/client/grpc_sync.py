"""Hedging for synchronous channels of gRPC: a channel that races RPCs with one request.

An interceptor could not do this: grpc gives it a call only after a blocking RPC has ended, so that no loser could be
cancelled. The channel sends each attempt as a future or a stream of the channel that it wraps.
"""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, Self

import grpc

from gateway.client.alarm import Alarm
from gateway.client.attempt import ClientAttempt
from gateway.client.config import HedgeConfig
from gateway.client.grpc_policy import GrpcPolicy, Methods, switched
from gateway.client.grpc_sync_calls import RacedCall, RacedResponses
from gateway.client.grpc_sync_race import SyncGrpcRace
from gateway.client.hedger import ClientRace, safely
from gateway.client.stats import Stats

_NAMES: Final = ("timeout", "metadata", "credentials", "wait_for_ready", "compression")  # of an RPC, in this order


def hedging_channel(
    channel: grpc.Channel,
    target: str,
    methods: Methods,
    config: HedgeConfig | None = None,
    *,
    stats: Stats | None = None,
    metadata: Iterable[str] = (),
) -> grpc.Channel:
    """Return a channel for stubs, which sends through another one: `hedging_channel(grpc.insecure_channel(...), ...)`.

    Args:
        channel: channel that sends; it is closed with the returned one.
        target: name of the channel's target in the statistics.
        methods: methods that may be carried out twice. A name alone sends backups over the same channel.
        config: settings; None: the defaults.
        stats: counts; None: own ones.
        metadata: keys of metadata that other targets get too. They get no credentials of the RPC.

    Raises:
        ValueError: a method is no full name, or another target has the name of the channel's target.
    """
    return _Channel(channel, GrpcPolicy(target, methods, config or HedgeConfig(), stats or Stats(), metadata))


class _Channel(grpc.Channel):
    """A channel whose RPCs of named methods are raced."""

    def __init__(self, inner: grpc.Channel, policy: GrpcPolicy) -> None:
        self._inner: Any = inner
        self._policy = policy
        self._alarm = Alarm()

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: Any = None) -> None:
        self._inner.subscribe(callback, try_to_connect=bool(try_to_connect))

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        self._inner.unsubscribe(callback)

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        inner = self._inner.unary_unary(method, *arguments, **options)
        return _UnaryUnary(inner, method, self._policy, self._alarm) if method in self._policy.hedgers else inner

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        inner = self._inner.unary_stream(method, *arguments, **options)
        return _UnaryStream(inner, method, self._policy, self._alarm) if method in self._policy.hedgers else inner

    def stream_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._inner.stream_unary(method, *arguments, **options)

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
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
    """One method of a channel.

    Args:
        inner: the method of the channel that sends.
    """

    def __init__(self, inner: Any, method: str, policy: GrpcPolicy, alarm: Alarm) -> None:
        self._inner = inner
        self._method = method
        self._policy = policy
        self._alarm = alarm

    def _enter(self, options: dict[str, Any]) -> tuple[ClientRace, ClientAttempt] | None:
        """Return the race of an RPC and its primary; None: it is sent without a race."""
        kept, is_off = switched(options["metadata"])
        if kept is not None:
            options["metadata"] = kept
        return None if is_off else safely(self._policy.enter, self._method)

    def _begin(
        self,
        send: Any,
        entered: tuple[ClientRace, ClientAttempt],
        request: Any,
        options: dict[str, Any],
        *,
        is_stream: bool,
    ) -> SyncGrpcRace:
        """Send the primary of an RPC.

        Args:
            send: sends over this channel.
        """
        race, primary = entered
        policy, method = self._policy, self._method

        def start(attempt: ClientAttempt, left_s: float | None) -> Any:
            other: Any = policy.other(method, attempt)
            if other is None:
                return send(request, **{**options, "timeout": left_s})
            send_other = other if is_stream else other.future
            passed = policy.passed(options["metadata"])
            return send_other(request, timeout=left_s, metadata=passed, wait_for_ready=options["wait_for_ready"])

        hedger = policy.hedgers[method]
        run = SyncGrpcRace(hedger, race, self._alarm, start, options["timeout"], is_stream=is_stream)
        run.begin(primary)
        return run


class _UnaryUnary(_Method):
    """Races RPCs with one response."""

    def __call__(self, request: Any, *arguments: Any, **named: Any) -> Any:
        return self.with_call(request, *arguments, **named)[0]

    def with_call(self, request: Any, *arguments: Any, **named: Any) -> tuple[Any, Any]:
        """Send an RPC and wait; return the response and its call."""
        call = self.future(request, *arguments, **named)
        try:
            return call.result(), call
        except BaseException:
            call.cancel()
            raise

    def future(self, request: Any, *arguments: Any, **named: Any) -> Any:
        """Send an RPC; return its call at once."""
        options = _options(arguments, named)
        entered = self._enter(options)
        if entered is None:
            return self._inner.future(request, **options)
        return RacedCall(self._begin(self._inner.future, entered, request, options, is_stream=False))


class _UnaryStream(_Method):
    """Races RPCs with a stream of responses."""

    def __call__(self, request: Any, *arguments: Any, **named: Any) -> Any:
        options = _options(arguments, named)
        entered = self._enter(options)
        if entered is None:
            return self._inner(request, **options)
        return RacedResponses(self._begin(self._inner, entered, request, options, is_stream=True))


def _options(arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an RPC by their names."""
    return {**dict.fromkeys(_NAMES), **dict(zip(_NAMES, arguments, strict=False)), **named}


grpc.UnaryUnaryMultiCallable.register(_UnaryUnary)
grpc.UnaryStreamMultiCallable.register(_UnaryStream)
