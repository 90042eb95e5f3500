"""Request bodies: received whole, within limits of size, of time, and of all bytes that the gateway holds together.

A body's bytes are taken before they are read and held until its request ends, so the memory for bodies has a bound
whatever comes. What is refused here has not been read, or no more of it. Knows nothing of what a body says.
Units: seconds, bytes.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final

from gateway.api.asgi import Message, Receive
from gateway.api.body_memory import BodyMemory
from gateway.api.eager import Begun
from gateway.errors import BodyTooLarge, Overloaded, RequestTimeout
from providers.base import Headers

_DIGITS_MAX: Final = 18  # of a content-length


class ClientLeft(Exception):
    """The client went away before its request was complete."""


class BodyReader:
    """Receives request bodies.

    Args:
        body_bytes_max: of one.
        body_s: until one must have arrived.
        held: what all of them together hold.
    """

    def __init__(self, body_bytes_max: int, body_s: float, held: BodyMemory) -> None:
        self._body_bytes_max = body_bytes_max
        self._body_s = body_s
        self.held = held

    async def receive(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body; its bytes are held until `BodyMemory.ended`.

        Raises:
            BodyTooLarge: it is over its limit.
            Overloaded: all bodies together are over theirs.
            RequestTimeout: it did not arrive in time.
            ClientLeft: it will not arrive.
        """
        arrival = _Arrival(self.held, self._body_bytes_max)
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
            self.held.give(arrival.taken - (0 if whole is None else len(whole)))

    async def _wait(self, arrival: "_Arrival", begun: Awaitable[Message] | None, receive: Receive) -> bytes:
        """The rest of a body that does not come in one piece with its headers."""
        held = self.held
        if held.arriving >= held.arriving_max:
            raise _overloaded(f"the gateway waits for {held.arriving} request bodies already", held.wait_s(0))
        held.arriving += 1
        try:
            async with asyncio.timeout(self._body_s):
                is_whole = begun is not None and arrival.add(await begun)
                while not is_whole:
                    is_whole = arrival.add(await receive())
        except TimeoutError:
            raise RequestTimeout(f"the request body did not arrive within {self._body_s:g} s") from None
        finally:
            held.arriving -= 1
        return b"".join(arrival.pieces)


class _Arrival:
    """One body on its way.

    Attributes:
        taken: bytes counted for it.
        pieces: what has come.
    """

    __slots__ = ("_bytes_max", "_held", "_size", "pieces", "taken")

    def __init__(self, held: BodyMemory, bytes_max: int) -> None:
        self._held = held
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
        if self._held.held >= self._held.bytes_max:
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
        held = self._held
        if not held.take(size):
            limit = held.bytes_max
            raise _overloaded(f"the gateway holds nearly all the {limit} bytes of requests it may", held.wait_s(size))
        self.taken += size


def _overloaded(what: str, wait_s: float) -> Overloaded:
    return Overloaded(f"{what}; try again in {wait_s:.3g} s", wait_s, closes=True)
