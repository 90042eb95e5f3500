"""Receives whole request bodies within limits on size, time, and the bytes that all bodies hold together.

A body's bytes are reserved as they arrive and held until its request ends, so the memory for bodies is bounded. A
rejected body is not read any further. Does not look into a body. Units: seconds, bytes.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final

from gateway.api.asgi import Message, Receive
from gateway.api.eager import Begun
from gateway.errors import BodyTooLarge, Overloaded, RequestTimeout
from gateway.limits.body_memory import BodyMemory, HeldBody
from gateway.race.context import Runtime
from providers.base import Headers

_DIGITS_MAX: Final = 18  # of a content-length
_WAIT_S: Final = 5.0  # the Retry-After if it cannot be estimated: the usual duration of a chat answer


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete."""


class BodyReader:
    """Receives request bodies.

    Args:
        body_bytes_max: largest size of one body.
        body_s: longest time for one body to arrive.
        memory: shared by all bodies. A bug in it fails no request: it is reported, and the limit is not enforced.
        runtime: reports such a bug.
    """

    def __init__(self, body_bytes_max: int, body_s: float, memory: BodyMemory, runtime: Runtime) -> None:
        self._body_bytes_max = body_bytes_max
        self._body_s = body_s
        self._memory = memory
        self._runtime = runtime

    def open(self, key_name: str) -> "Arrival":
        """Return a body that holds no bytes yet; the caller closes it."""
        return Arrival(self._memory, self._runtime, self._body_bytes_max, self._body_s, key_name)


class Arrival:
    """One body: while it arrives, and while its request holds its bytes.

    Args:
        memory: shared by all bodies.
        runtime: reports bugs in it.
        bytes_max: largest size.
        body_s: longest time to arrive.
        key_name: name of the caller's API key.
    """

    __slots__ = ("_body_s", "_bytes_max", "_held", "_is_refused", "_memory", "_pieces", "_runtime", "_size", "_timeout")

    def __init__(self, memory: BodyMemory, runtime: Runtime, bytes_max: int, body_s: float, key_name: str) -> None:
        self._memory = memory
        self._runtime = runtime
        self._bytes_max = bytes_max
        self._body_s = body_s
        self._size = 0
        self._pieces = bytearray()  # grows in place, where joining pieces would need their memory twice
        self._timeout: asyncio.Timeout | None = None
        self._is_refused = False  # another body got its room
        self._held: HeldBody | None = None
        try:
            self._held = memory.open(key_name)
        except Exception as error:  # a bug there must not fail the request; inlined `safely`: runs for every request
            runtime.report("body_memory", error)

    async def receive(self, headers: Headers, receive: Receive) -> bytes:
        """Return the whole body; its bytes are held until `close`.

        Raises:
            BodyTooLarge: the body is over its limit.
            Overloaded: all bodies together, or those of the caller's key, are over their limit.
            RequestTimeout: the body did not arrive in time.
            ClientDisconnected: the client disconnected.
        """
        self._check_announced(headers)
        memory = self._memory
        if memory.held >= memory.bytes_max and not memory.arriving:  # nothing can be refused in favour of this body
            raise self._over_memory(1)
        receiving = receive()
        try:
            waiting_for = receiving.send(None)
        except StopIteration as returned:
            message: Message = returned.value
            if message["type"] == "http.request" and not message.get("more_body", False):
                body = bytes(message.get("body", b""))  # it came with the headers, as nearly always: no timer is needed
                self._take(len(body))
                return body
            return await self._wait(None, message, receive)
        return await self._wait(Begun(receiving, waiting_for), None, receive)

    def close(self, held_s: float | None = None) -> None:
        """Release the bytes; `held_s` is the time for which a request held them, None if the body became no request."""
        held, self._held = self._held, None
        if held is not None:
            try:
                self._memory.close(held, held_s)
            except Exception as error:  # as above
                self._runtime.report("body_memory", error)

    def _check_announced(self, headers: Headers) -> None:
        for name, value in headers:
            if name == b"content-length":
                announced = int(value[:_DIGITS_MAX])
                if len(value) > _DIGITS_MAX or announced > self._bytes_max:
                    limit = self._bytes_max
                    raise BodyTooLarge(f"the request body is {announced} bytes; send at most {limit}")
                return

    async def _wait(self, started: Awaitable[Message] | None, first: Message | None, receive: Receive) -> bytes:
        """Wait for the rest of a body that did not arrive in one piece with its headers."""
        memory, safely = self._memory, self._runtime.safely
        held = self._held
        if held is not None and not safely("body_memory", memory.start, True, held, self._refused):
            wait_s = safely("body_memory", memory.wait_s, _WAIT_S, 0)
            raise _overloaded(
                f"the gateway is at its limit of {memory.arriving_max} request bodies arriving at a time", wait_s
            )
        is_whole = False
        try:
            async with asyncio.timeout(self._body_s) as self._timeout:
                if first is not None:
                    is_whole = self._add(first)
                elif started is not None:
                    is_whole = self._add(await started)
                while not is_whole:
                    is_whole = self._add(await receive())
        except TimeoutError:
            if self._is_refused:
                raise self._over_memory(self._size) from None
            raise RequestTimeout(f"the request body is incomplete after {self._body_s:g} s; send it faster") from None
        finally:
            self._timeout = None
            pieces, self._pieces = self._pieces, bytearray()
            if held is not None:
                safely("body_memory", memory.arrived, None, held)
            if not is_whole:
                self.close()
        return bytes(pieces)

    def _add(self, message: Message) -> bool:
        """Add one ASGI message; return True if it was the last."""
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        if self._is_refused:
            raise self._over_memory(self._size)
        piece = message.get("body", b"")
        self._take(len(piece))
        self._pieces += piece
        return not message.get("more_body", False)

    def _take(self, size: int) -> None:
        """Reserve `size` bytes that have arrived."""
        self._size += size
        if self._size > self._bytes_max:
            raise BodyTooLarge(f"the request body is over {self._bytes_max} bytes; send at most {self._bytes_max}")
        held = self._held
        if held is None:
            return
        try:
            has_room = self._memory.grow(held, size)
        except Exception as error:  # as above
            self._runtime.report("body_memory", error)
            return
        if not has_room:
            raise self._over_memory(size)

    def _over_memory(self, size: int) -> Overloaded:
        memory = self._memory
        wait_s = self._runtime.safely("body_memory", memory.wait_s, _WAIT_S, size)
        whose = "API key's share of the" if memory.is_shared else "gateway's"
        return _overloaded(f"the {whose} memory for request bodies ({memory.bytes_max} bytes) is full", wait_s)

    def _refused(self) -> None:
        """Drop what has arrived and end the wait: another body got the room of this one."""
        self._pieces = bytearray()
        self._is_refused = True
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self._runtime.loop.time())


def _overloaded(reason: str, wait_s: float) -> Overloaded:
    return Overloaded(f"{reason}; retry in {wait_s:.3g} s", wait_s, closes=True)
