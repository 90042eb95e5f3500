"""The calls of raced RPCs over a synchronous channel: they wait for the end of the race, and are then the winner's."""

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from gateway.client.grpc_sync_race import NOTHING, RpcResult, SyncGrpcRace


class RacedCall:
    """The call of one RPC: `grpc.Call` and `grpc.Future`."""

    def __init__(self, race: SyncGrpcRace) -> None:
        self._race = race

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self._race.cancel()  # as grpc does with a call that is dropped

    def result(self, timeout: float | None = None) -> Any:
        """Return the response."""
        return self._winner(timeout).call.result(timeout)

    def exception(self, timeout: float | None = None) -> Any:
        """Return the error; None without one."""
        answer = self._race.wait(timeout)
        return answer.error if answer.call is None else answer.call.exception(timeout)

    def traceback(self, timeout: float | None = None) -> TracebackType | None:
        """Return the traceback of the error; None without one."""
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
        """Return the seconds until the timeout; None without one."""
        return self._race.left_s()

    def initial_metadata(self) -> Any:
        """Return the metadata before the response."""
        return self._winner().call.initial_metadata()

    def trailing_metadata(self) -> Any:
        """Return the metadata after the response."""
        return self._winner().call.trailing_metadata()

    def code(self) -> Any:
        """Return the status code."""
        return self._winner().call.code()

    def details(self) -> Any:
        """Return the description of the status."""
        return self._winner().call.details()

    def debug_error_string(self) -> Any:
        """Return the description of an error for developers."""
        return self._winner().call.debug_error_string()

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

    def __next__(self) -> Any:
        answer = self._winner()
        if not self._is_read:
            self._is_read = True
            if answer.first is not NOTHING:
                return answer.first
        return next(answer.call)


for _interface in (grpc.Call, grpc.Future, grpc.RpcContext):
    _interface.register(RacedCall)
