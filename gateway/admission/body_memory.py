"""A limit on the memory of all buffered request bodies, shared fairly between API keys. Pure.

Bytes are reserved as they arrive, never as announced. With several keys, a key with more than one body holds at most
half of the bytes that the bodies of the other keys have not reserved: whatever one key sends, room is left for the next
one. Where a limit is reached, the youngest incomplete body is refused, so that older ones can become complete.

Units: bytes, seconds.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final

import msgspec

from gateway.admission.wait_estimator import WaitEstimator

ARRIVING_MAX: Final = 1_000  # concurrent bodies being received; for each, the server may hold 64 kB not yet counted


_KEYS_KEPT: Final = 1_000  # above, keys without a body are forgotten
_LOOKED_AT: Final = 4  # keys, for each new one


class _Usage:
    """The memory of one key's bodies.

    Attributes:
        held: bytes reserved.
        bodies: open bodies.
        arriving: bodies being received.
    """

    __slots__ = ("arriving", "bodies", "held")

    def __init__(self) -> None:
        self.held = self.bodies = self.arriving = 0


class HeldBody(msgspec.Struct, eq=False):
    """One request body, from `BodyMemory.open` or `BodyMemory.hold` to `BodyMemory.close`.

    Attributes:
        usage: the memory of all bodies of the caller's API key.
        size: bytes reserved.
        on_refused: called if the body is refused while it is being received; None if it is not.
    """

    usage: _Usage
    size: int
    on_refused: Callable[[], None] | None = None


class BodyMemory:
    """Counts the bytes of all buffered request bodies, from their arrival to the end of their requests.

    Args:
        bytes_max: limit for all bodies together.
        arriving_max: limit for bodies that are being received.

    Attributes:
        held: bytes reserved.
        arriving: bodies being received.
        is_shared: True if there are several API keys.
    """

    def __init__(self, bytes_max: int, arriving_max: int = ARRIVING_MAX, *, is_shared: bool = False) -> None:
        self.bytes_max = bytes_max
        self.arriving_max = arriving_max
        self.held = 0
        self.is_shared = is_shared
        self._usages: dict[str, _Usage] = {}  # by names of keys, which come and go
        self._arriving: dict[HeldBody, None] = {}  # from the oldest to the youngest
        self._wait_estimator = WaitEstimator(bytes_max)

    @property
    def arriving(self) -> int:
        """Number of bodies being received."""
        return len(self._arriving)

    def open(self, key_name: str) -> HeldBody:
        """Return a body that is about to be received, with no bytes reserved."""
        usage = self._usage(key_name)
        usage.bodies += 1
        return HeldBody(usage, 0)

    def hold(self, key_name: str, size: int) -> HeldBody | None:
        """Reserve the bytes of a body that arrived whole, as `grow` does; return None if that is impossible."""
        usage = self._usages.get(key_name) or self._usage(key_name)
        if (self.is_shared or self.held + size > self.bytes_max) and not self._make_room(usage, size, None):
            return None
        self.held += size
        usage.held += size
        usage.bodies += 1
        return HeldBody(usage, size)

    def start(self, body: HeldBody, on_refused: Callable[[], None]) -> bool:
        """Count a body as being received; return False if there are too many, of all keys or of its own."""
        usage, arriving = body.usage, len(self._arriving)
        others = arriving - usage.arriving
        if self.is_shared and usage.arriving and 2 * (usage.arriving + 1) > self.arriving_max - others:
            return False
        if arriving >= self.arriving_max:
            youngest = max(reversed(self._arriving), key=lambda each: each.usage.arriving)
            if youngest.usage.arriving <= usage.arriving + 1:
                return False
            self._refuse(youngest)
        body.on_refused = on_refused
        usage.arriving += 1
        self._arriving[body] = None
        return True

    def grow(self, body: HeldBody, size: int) -> bool:
        """Reserve `size` more bytes, by refusing younger incomplete bodies where needed; return False if impossible."""
        if not self._make_room(body.usage, size, body):
            return False
        self.held += size
        body.usage.held += size
        body.size += size
        return True

    def arrived(self, body: HeldBody) -> None:
        """Count a body as received, or as given up."""
        if body.on_refused is not None:
            body.on_refused = None
            body.usage.arriving -= 1
            del self._arriving[body]

    def close(self, body: HeldBody, held_s: float | None = None) -> None:
        """Release all bytes of a body.

        Args:
            body: an open body.
            held_s: time from its arrival to the end of its request; None if it became no request.
        """
        if body.on_refused is not None:
            self.arrived(body)
        size, usage = body.size, body.usage
        if held_s is not None:
            self._wait_estimator.ended(held_s, size)
        self.held -= size
        usage.held -= size
        usage.bodies -= 1
        body.size = 0

    def wait_s(self, size: int) -> float:
        """Return the expected wait until `size` bytes fit."""
        return self._wait_estimator.wait_s(max(1, self.held + size - self.bytes_max))

    def _usage(self, key_name: str) -> _Usage:
        usage = self._usages.get(key_name)
        if usage is None:
            if len(self._usages) >= _KEYS_KEPT:
                self._forget_some()
            usage = self._usages[key_name] = _Usage()
        return usage

    def _forget_some(self) -> None:
        """Forget the keys without a body among the oldest ones, more than one a call; the others become the newest."""
        for oldest in list(islice(self._usages, _LOOKED_AT)):
            usage = self._usages.pop(oldest)
            if usage.bodies:
                self._usages[oldest] = usage

    def _make_room(self, usage: _Usage, size: int, body: HeldBody | None) -> bool:
        """Refuse younger incomplete bodies until `size` more bytes fit; return False if that is impossible.

        Args:
            usage: the memory of all bodies of the caller's API key.
            size: bytes to reserve.
            body: the body that grows; None for a new one.
        """
        has_others = usage.bodies > (body is not None)
        while True:
            others = self.held - usage.held
            if self.is_shared and has_others and 2 * (usage.held + size) > self.bytes_max - others:
                youngest = next((each for each in reversed(self._arriving) if each.usage is usage), None)
            elif self.held + size > self.bytes_max:
                youngest = max(reversed(self._arriving), key=lambda each: each.usage.held, default=None)
            else:
                return True
            if youngest is None or youngest is body:
                return False
            self._refuse(youngest)

    def _refuse(self, body: HeldBody) -> None:
        on_refused = body.on_refused
        self.arrived(body)
        self.held -= body.size
        body.usage.held -= body.size
        body.size = 0
        if on_refused is not None:
            on_refused()
