"""Receives whole request bodies within limits on size, time, and the bytes that all bodies hold together.

The bytes of a body are reserved as they arrive and held until its request ends, so the memory for bodies is bounded. A
rejected body is not read any further. This module does not read the contents of a body. Units: seconds, bytes.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from gateway.admission.body_memory import BodyMemory, HeldBody
from gateway.api.turns import Turns
from gateway.errors import BodyTooLarge, GatewayError, Overloaded, RequestTimeout
from gateway.race.context import Runtime

OnFailure = Callable[[GatewayError], None]

DIGITS_MAX: Final = 18  # of a content-length
_WAIT_S: Final = 5.0  # the Retry-After if it cannot be estimated: the usual duration of a chat answer


class BodyLimits(msgspec.Struct, frozen=True):
    """Limits on request bodies.

    Attributes:
        bytes_max: largest size of one body.
        body_s: longest time for one body to arrive.
        memory: shared by all bodies. A bug in it fails no request: it is reported, and the limit is not enforced.
        runtime: reports such a bug.
        turns: queue of large bodies, which are parsed one after another.
    """

    bytes_max: int
    body_s: float
    memory: BodyMemory
    runtime: Runtime
    turns: Turns

    def check(self, by_name: Mapping[bytes, bytes]) -> None:
        """Check the head of a request, by names in lower case, before its body is received.

        Raises:
            BodyTooLarge: the announced length is over the limit.
            Overloaded: all bodies together are at their limit.
        """
        value = by_name.get(b"content-length", b"0")
        if len(value) > DIGITS_MAX or int(value) > self.bytes_max:
            announced = int(value[:DIGITS_MAX])
            raise BodyTooLarge(f"the request body is {announced} bytes; send at most {self.bytes_max}")
        memory = self.memory
        if memory.held >= memory.bytes_max and not memory.arriving:  # nothing can be refused in favour of this body
            raise self.over_memory(1)

    def hold(self, key_name: str, size: int, by_name: Mapping[bytes, bytes]) -> HeldBody | None:
        """Reserve the bytes of a body that arrived whole, to be released with `release`; return None after a bug.

        Raises:
            BodyTooLarge: the body is over its limit.
            Overloaded: all bodies together, or the bodies of the caller's key, are over their limit.
        """
        if size > self.bytes_max:
            self.check(by_name)
            raise self.too_large()
        try:
            held = self.memory.hold(key_name, size)
        except Exception as error:  # a bug there must not fail the request; inlined `safely`: runs for every request
            self.runtime.report("body_memory", error)
            return None
        if held is None:
            self.check(by_name)
            raise self.over_memory(size)
        return held

    def release(self, held: HeldBody, held_s: float | None = None) -> None:
        """Release the bytes; `held_s` is the time for which a request held them, None if the body became no request."""
        try:
            self.memory.close(held, held_s)
        except Exception as error:  # as above
            self.runtime.report("body_memory", error)

    def too_large(self) -> BodyTooLarge:
        """Return the error for a body over its limit."""
        return BodyTooLarge(f"the request body is over {self.bytes_max} bytes; send at most {self.bytes_max}")

    def over_memory(self, size: int) -> Overloaded:
        """Return the error for a body of which `size` bytes do not fit."""
        memory = self.memory
        wait_s = self.runtime.safely("body_memory", memory.wait_s, _WAIT_S, size)
        whose = "API key's share of the" if memory.is_shared else "gateway's"
        return _overloaded(f"the {whose} memory for request bodies ({memory.bytes_max} bytes) is full", wait_s)


class Arrival:
    """A body that did not arrive whole with its headers; the owner calls `close`, or `whole` after the last piece.

    Args:
        limits: the limits.
        key_name: name of the caller's API key.
        by_name: headers of the request, by names in lower case.
        on_failure: called with `RequestTimeout` or `Overloaded` if no more of the body is awaited.

    Raises:
        BodyTooLarge: the announced length is over the limit.
        Overloaded: all bodies together are at their limit, or too many are arriving.
    """

    __slots__ = ("_held", "_is_refused", "_limits", "_on_failure", "_pieces", "_size", "_timer")

    def __init__(
        self, limits: BodyLimits, key_name: str, by_name: Mapping[bytes, bytes], on_failure: OnFailure
    ) -> None:
        limits.check(by_name)
        self._limits = limits
        self._on_failure = on_failure
        self._size = 0
        self._pieces = bytearray()  # grows in place, where joining pieces would need their memory twice
        self._is_refused = False  # another body got its room
        memory, safely = limits.memory, limits.runtime.safely
        held = self._held = safely("body_memory", memory.open, None, key_name)
        if held is not None and not safely("body_memory", memory.start, True, held, self._refused):
            limits.release(held)
            wait_s = safely("body_memory", memory.wait_s, _WAIT_S, 0)
            raise _overloaded(
                f"the gateway is at its limit of {memory.arriving_max} request bodies arriving at a time", wait_s
            )
        self._timer: asyncio.Handle = limits.runtime.loop.call_later(limits.body_s, self._late)

    def receive(self, pieces: list[bytes]) -> None:
        """Take the pieces that one read of the connection brought; their bytes are held from then on.

        Raises:
            BodyTooLarge: the body is over its limit.
            Overloaded: all bodies together, or the bodies of the caller's key, are over their limit.
        """
        if self._is_refused:
            raise self._limits.over_memory(self._size)
        for piece in pieces:
            self._take(len(piece))
            self._pieces += piece

    def whole(self) -> tuple[bytes, HeldBody | None]:
        """Return the whole body, and its bytes in memory, which the caller releases; None after a bug."""
        body = bytes(self._pieces)
        self._arrived()
        return body, self._held

    def close(self) -> None:
        """Give the body up, and release its bytes."""
        self._arrived()
        held, self._held = self._held, None
        if held is not None:
            self._limits.release(held)

    def _arrived(self) -> None:
        """End the wait: the body is complete, or is given up."""
        self._timer.cancel()
        self._pieces = bytearray()
        if self._held is not None:
            self._limits.runtime.safely("body_memory", self._limits.memory.arrived, None, self._held)

    def _late(self) -> None:
        self._on_failure(
            RequestTimeout(f"the request body is incomplete after {self._limits.body_s:g} s; send it faster")
        )

    def _take(self, size: int) -> None:
        """Reserve `size` bytes that have arrived."""
        self._size += size
        if self._size > self._limits.bytes_max:
            raise self._limits.too_large()
        if self._held is not None and not self._limits.runtime.safely(
            "body_memory", self._limits.memory.grow, True, self._held, size
        ):
            raise self._limits.over_memory(size)

    def _refused(self) -> None:
        """Drop the pieces that arrived and end the wait, in the next turn of the loop: another body got the room."""
        self._pieces = bytearray()
        self._is_refused = True
        self._timer.cancel()
        self._timer = self._limits.runtime.loop.call_soon(
            lambda: self._on_failure(self._limits.over_memory(self._size))
        )


def _overloaded(reason: str, wait_s: float) -> Overloaded:
    return Overloaded(f"{reason}; retry in {wait_s:.3g} s", wait_s, closes=True)
