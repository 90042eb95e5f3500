"""Request bodies: received whole, within limits of size, of time, and of all bytes that the gateway holds together.

A body's bytes are taken before they are read and held until its request ends, so the memory for bodies has a bound
whatever comes. What is refused here has not been read, or no more of it. Knows nothing of what a body says.
Units: seconds, bytes.
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
_WAIT_S: Final = 5.0  # the Retry-After where it cannot be estimated: a chat answer's usual length


class ClientLeft(Exception):
    """The client went away before its request was complete."""


class BodyReader:
    """Receives request bodies.

    Args:
        body_bytes_max: of one.
        body_s: until one must have arrived.
        memory: shared by all bodies. A bug in it fails no request: it is reported, and the limit does not hold.
        runtime: reports such a bug.
    """

    def __init__(self, body_bytes_max: int, body_s: float, memory: BodyMemory, runtime: Runtime) -> None:
        self._body_bytes_max = body_bytes_max
        self._body_s = body_s
        self.memory = memory
        self._runtime = runtime

    async def receive(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body; its bytes are held until `BodyMemory.ended`.

        Raises:
            BodyTooLarge: it is over its limit.
            Overloaded: all bodies together are over theirs.
            RequestTimeout: it did not arrive in time.
            ClientLeft: it will not arrive.
        """
        arrival = _Arrival(self.memory, self._runtime, self._body_bytes_max)
        whole = None
        try:
            arrival.expect(headers)
            receiving = receive()
            try:
                waiting_for = receiving.send(None)
            except StopIteration as came:
                if arrival.add(came.value):  # with the headers, as nearly always: no timer is needed
                    whole = arrival.pieces[0]
                    return whole
                whole = await self._wait(arrival, None, receive)
            else:
                whole = await self._wait(arrival, Begun(receiving, waiting_for), receive)
            return whole
        finally:
            unused = arrival.taken - (0 if whole is None else len(whole))
            if unused:
                self._runtime.safely("body_memory", self.memory.release, None, unused)

    async def _wait(self, arrival: "_Arrival", begun: Awaitable[Message] | None, receive: Receive) -> bytes:
        """The rest of a body that does not come in one piece with its headers."""
        memory = self.memory
        if memory.arriving >= memory.arriving_max:
            wait_s = self._runtime.safely("body_memory", memory.wait_s, _WAIT_S, 0)
            raise _overloaded(f"the gateway is already receiving {memory.arriving} request bodies", wait_s)
        memory.arriving += 1
        try:
            async with asyncio.timeout(self._body_s):
                is_whole = begun is not None and arrival.add(await begun)
                while not is_whole:
                    is_whole = arrival.add(await receive())
        except TimeoutError:
            raise RequestTimeout(f"the request body did not arrive within {self._body_s:g} s") from None
        finally:
            memory.arriving -= 1
        return b"".join(arrival.pieces)


class _Arrival:
    """One body on its way.

    Attributes:
        taken: bytes counted for it.
        pieces: what has come.
    """

    __slots__ = ("_bytes_max", "_memory", "_runtime", "_size", "pieces", "taken")

    def __init__(self, memory: BodyMemory, runtime: Runtime, bytes_max: int) -> None:
        self._memory = memory
        self._runtime = runtime
        self._bytes_max = bytes_max
        self._size = 0
        self.taken = 0
        self.pieces: list[bytes] = []

    def expect(self, headers: Headers) -> None:
        """Take what the headers announce; in chunks nothing is announced, but nothing is begun without room either."""
        for name, value in headers:
            if name == b"content-length":
                announced = int(value[:_DIGITS_MAX])
                if len(value) > _DIGITS_MAX or announced > self._bytes_max:
                    limit = self._bytes_max
                    raise BodyTooLarge(f"the request body has {announced} bytes; this gateway takes {limit} at most")
                self._take(announced)
                return
        if self._memory.held >= self._memory.bytes_max:
            self._take(1)

    def add(self, message: Message) -> bool:
        """Take one message from the server; whether it was the last."""
        if message["type"] == "http.disconnect":
            raise ClientLeft
        piece = bytes(message.get("body", b""))
        self._size += len(piece)
        if self._size > self._bytes_max:
            raise BodyTooLarge("the request body is larger than this gateway takes; see limits.request_body_max")
        if self._size > self.taken:
            self._take(self._size - self.taken)
        self.pieces.append(piece)
        return not message.get("more_body", False)

    def _take(self, size: int) -> None:
        memory = self._memory
        try:
            has_room = memory.try_reserve(size)
        except Exception as error:  # a bug there must not fail the request; not `safely`: this runs for every request
            self._runtime.report("body_memory", error)
            return
        if not has_room:
            wait_s = self._runtime.safely("body_memory", memory.wait_s, _WAIT_S, size)
            raise _overloaded(f"the gateway holds nearly all the {memory.bytes_max} bytes of requests it may", wait_s)
        self.taken += size


def _overloaded(what: str, wait_s: float) -> Overloaded:
    return Overloaded(f"{what}; try again in {wait_s:.3g} s", wait_s, closes=True)
