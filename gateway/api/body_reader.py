"""Receives whole request bodies within limits on size, time, and the bytes that all bodies hold together.

A body's bytes are reserved as they arrive and held until its request ends, so the memory for bodies is bounded. A
rejected body is not read any further. Does not look into a body. Units: seconds, bytes.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from gateway.api.turns import Turn, Turns
from gateway.errors import BodyTooLarge, GatewayError, Overloaded, RequestTimeout
from gateway.limits.body_memory import BodyMemory, HeldBody
from gateway.race.context import Runtime

OnFailure = Callable[[GatewayError], None]

_DIGITS_MAX: Final = 18  # of a content-length
_WAIT_S: Final = 5.0  # the Retry-After if it cannot be estimated: the usual duration of a chat answer


class BodyLimits(msgspec.Struct, frozen=True):
    """Limits on request bodies.

    Attributes:
        bytes_max: largest size of one body.
        body_s: longest time for one body to arrive.
        memory: shared by all bodies. A bug in it fails no request: it is reported, and the limit is not enforced.
        runtime: reports such a bug.
        turns: those of large bodies.
    """

    bytes_max: int
    body_s: float
    memory: BodyMemory
    runtime: Runtime
    turns: Turns


class Arrival:
    """One body: while it arrives, and while its request holds its bytes; the owner closes it.

    Args:
        limits: the limits.
        key_name: name of the caller's API key.
        by_name: headers of the request, by names in lower case.
        on_failure: called with `RequestTimeout` or `Overloaded` if the rest of the body is no longer awaited.

    Raises:
        BodyTooLarge: the announced length is over the limit.
        Overloaded: all bodies together, or those of the caller's key, are at their limit.
    """

    __slots__ = ("_held", "_is_refused", "_limits", "_on_failure", "_pieces", "_size", "_timer", "_turn")

    def __init__(
        self, limits: BodyLimits, key_name: str, by_name: Mapping[bytes, bytes], on_failure: OnFailure
    ) -> None:
        self._limits = limits
        self._on_failure = on_failure
        self._size = 0
        self._pieces = bytearray()  # grows in place, where joining pieces would need their memory twice
        self._timer: asyncio.Handle | None = None  # ends the wait for an incomplete body
        self._turn: Turn | None = None  # of a large body
        self._is_refused = False  # another body got its room
        self._held: HeldBody | None = None
        if b"content-length" in by_name:
            value = by_name[b"content-length"]
            announced = int(value[:_DIGITS_MAX])
            if value[_DIGITS_MAX:] or announced > limits.bytes_max:
                raise BodyTooLarge(f"the request body is {announced} bytes; send at most {limits.bytes_max}")
        memory = limits.memory
        if memory.held >= memory.bytes_max and not memory.arriving:  # nothing can be refused in favour of this body
            raise self._over_memory(1)
        try:
            self._held = memory.open(key_name)
        except Exception as error:  # a bug there must not fail the request; inlined `safely`: runs for every request
            limits.runtime.report("body_memory", error)

    def receive(self, pieces: list[bytes], *, is_last: bool) -> bytes | None:
        """Take the pieces that one read of the connection brought; return the whole body with the last of them.

        The bytes are held until `close`.

        Raises:
            BodyTooLarge: the body is over its limit.
            Overloaded: all bodies together, or those of the caller's key, are over their limit.
        """
        if is_last and self._timer is None:  # the body came with the headers, as nearly always: no timer is needed
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._take(len(body))
            return body
        if self._is_refused:
            raise self._over_memory(self._size)
        if self._timer is None:
            self._wait()
        for piece in pieces:
            self._take(len(piece))
            self._pieces += piece
        if not is_last:
            return None
        body = bytes(self._pieces)
        self._arrived()
        return body

    def take_turn(self, parse: Callable[[], None]) -> None:
        """Call `parse`, which must not raise, when the loop has time for a large body; never after `close`."""
        self._turn = self._limits.turns.take(parse)

    def close(self, held_s: float | None = None) -> None:
        """Release the bytes; `held_s` is the time for which a request held them, None if the body became no request."""
        if self._turn is not None:
            self._turn.cancel()
        if self._timer is not None:
            self._arrived()
        held, self._held = self._held, None
        if held is not None:
            try:
                self._limits.memory.close(held, held_s)
            except Exception as error:  # as above
                self._limits.runtime.report("body_memory", error)

    def _wait(self) -> None:
        """Wait, for a limited time, for the rest of a body that did not arrive in one piece with its headers."""
        memory, safely, held = self._limits.memory, self._limits.runtime.safely, self._held
        if held is not None and not safely("body_memory", memory.start, True, held, self._refused):
            wait_s = safely("body_memory", memory.wait_s, _WAIT_S, 0)
            raise _overloaded(
                f"the gateway is at its limit of {memory.arriving_max} request bodies arriving at a time", wait_s
            )
        self._timer = self._limits.runtime.loop.call_later(self._limits.body_s, self._late)

    def _arrived(self) -> None:
        """End the wait: the body is complete, or is given up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
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
        bytes_max = self._limits.bytes_max
        if self._size > bytes_max:
            raise BodyTooLarge(f"the request body is over {bytes_max} bytes; send at most {bytes_max}")
        held = self._held
        if held is None:
            return
        try:
            has_room = self._limits.memory.grow(held, size)
        except Exception as error:  # as above
            self._limits.runtime.report("body_memory", error)
            return
        if not has_room:
            raise self._over_memory(size)

    def _over_memory(self, size: int) -> Overloaded:
        memory = self._limits.memory
        wait_s = self._limits.runtime.safely("body_memory", memory.wait_s, _WAIT_S, size)
        whose = "API key's share of the" if memory.is_shared else "gateway's"
        return _overloaded(f"the {whose} memory for request bodies ({memory.bytes_max} bytes) is full", wait_s)

    def _refused(self) -> None:
        """Drop what has arrived and end the wait, in the next turn of the loop: another body got the room."""
        self._pieces = bytearray()
        self._is_refused = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._limits.runtime.loop.call_soon(lambda: self._on_failure(self._over_memory(self._size)))


def _overloaded(reason: str, wait_s: float) -> Overloaded:
    return Overloaded(f"{reason}; retry in {wait_s:.3g} s", wait_s, closes=True)
