"""Receives whole request bodies within limits on size, time, and the bytes that all bodies hold together.

A body's bytes are reserved before they are read and held until its request ends, so the memory for bodies is bounded.
A rejected body is not read any further. Does not look into a body. Units: seconds, bytes.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final

from gateway.api.asgi import Message, Receive
from gateway.api.eager import Begun
from gateway.errors import BodyTooLarge, Overloaded, RequestTimeout
from gateway.limits.body_memory import BodyMemory
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
        self.memory = memory
        self._runtime = runtime

    async def receive(self, headers: Headers, receive: Receive) -> bytes:
        """Return the whole body; its bytes are held until `BodyMemory.ended`.

        Raises:
            BodyTooLarge: the body is over its limit.
            Overloaded: all bodies together are over their limit.
            RequestTimeout: the body did not arrive in time.
            ClientDisconnected: the client disconnected.
        """
        arrival = _Arrival(self.memory, self._runtime, self._body_bytes_max)
        whole = None
        try:
            arrival.expect(headers)
            receiving = receive()
            try:
                waiting_for = receiving.send(None)
            except StopIteration as returned:
                if arrival.add(returned.value):  # it came with the headers, as nearly always: no timer is needed
                    whole = arrival.pieces[0]
                    return whole
                whole = await self._wait(arrival, None, receive)
            else:
                whole = await self._wait(arrival, Begun(receiving, waiting_for), receive)
            return whole
        finally:
            unused = arrival.reserved - (0 if whole is None else len(whole))
            if unused:
                self._runtime.safely("body_memory", self.memory.release, None, unused)

    async def _wait(self, arrival: "_Arrival", started: Awaitable[Message] | None, receive: Receive) -> bytes:
        """Wait for the rest of a body that did not arrive in one piece with its headers."""
        memory = self.memory
        if memory.arriving >= memory.arriving_max:
            wait_s = self._runtime.safely("body_memory", memory.wait_s, _WAIT_S, 0)
            raise _overloaded(
                f"the gateway is at its limit of {memory.arriving} request bodies arriving at a time", wait_s
            )
        memory.arriving += 1
        try:
            async with asyncio.timeout(self._body_s):
                is_whole = started is not None and arrival.add(await started)
                while not is_whole:
                    is_whole = arrival.add(await receive())
        except TimeoutError:
            raise RequestTimeout(f"the request body is incomplete after {self._body_s:g} s; send it faster") from None
        finally:
            memory.arriving -= 1
        return b"".join(arrival.pieces)


class _Arrival:
    """A body that is arriving.

    Attributes:
        reserved: bytes reserved for it.
        pieces: bytes received, in order.
    """

    __slots__ = ("_bytes_max", "_memory", "_runtime", "_size", "pieces", "reserved")

    def __init__(self, memory: BodyMemory, runtime: Runtime, bytes_max: int) -> None:
        self._memory = memory
        self._runtime = runtime
        self._bytes_max = bytes_max
        self._size = 0
        self.reserved = 0
        self.pieces: list[bytes] = []

    def expect(self, headers: Headers) -> None:
        """Reserve the announced length; a chunked body announces none and needs only that some memory is free."""
        for name, value in headers:
            if name == b"content-length":
                announced = int(value[:_DIGITS_MAX])
                if len(value) > _DIGITS_MAX or announced > self._bytes_max:
                    limit = self._bytes_max
                    raise BodyTooLarge(f"the request body is {announced} bytes; send at most {limit}")
                self._reserve(announced)
                return
        if self._memory.held >= self._memory.bytes_max:
            self._reserve(1)

    def add(self, message: Message) -> bool:
        """Add one ASGI message; return True if it was the last."""
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece = bytes(message.get("body", b""))
        self._size += len(piece)
        if self._size > self._bytes_max:
            raise BodyTooLarge(f"the request body is over {self._bytes_max} bytes; send at most {self._bytes_max}")
        if self._size > self.reserved:
            self._reserve(self._size - self.reserved)
        self.pieces.append(piece)
        return not message.get("more_body", False)

    def _reserve(self, size: int) -> None:
        memory = self._memory
        try:
            has_room = memory.try_reserve(size)
        except Exception as error:  # a bug there must not fail the request; inlined `safely`: runs for every request
            self._runtime.report("body_memory", error)
            return
        if not has_room:
            wait_s = self._runtime.safely("body_memory", memory.wait_s, _WAIT_S, size)
            raise _overloaded(
                f"the gateway is at its memory limit for request bodies ({memory.bytes_max} bytes)", wait_s
            )
        self.reserved += size


def _overloaded(reason: str, wait_s: float) -> Overloaded:
    return Overloaded(f"{reason}; retry in {wait_s:.3g} s", wait_s, closes=True)
