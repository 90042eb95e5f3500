"""The client connections on which no admitted request is under way, and their bounds.

A connection costs its client next to nothing and the gateway an open file, so connections without a key could use all
files. There is a bound for callers that have not sent a valid key and one for others; above it, the gateway closes the
connection that has waited longest. A connection with an admitted request is not here and is never closed for room.
Units: seconds.
"""

import asyncio
import itertools
import math

_UNKNOWN_MAX = 4_096  # at any limit of open files; a connection that waits takes about 10 kB
_KNOWN_MAX = 16_384


class WaitingConnections:
    """Connections that wait for a request or have one that is not admitted, the oldest first.

    Args:
        files_max: maximum number of open files of the process. A quarter may be connections of unknown callers, a
            quarter idle ones of known callers. Half remains for admitted requests, which need two or three files each.
        processes: number of processes that share the memory; the bounds of each are its part.

    Attributes:
        accepted_max: connections to accept in one turn of the event loop. A request needs about five turns until its
            key is checked, and must not be closed for connections that are accepted in these turns.
        files_many: number of open files at which everything should have been read from files.
        unknown: connections of callers that have not sent a valid key.
        known: connections of other callers.
        idle_s_max: time after which an idle connection is closed.
        draining: True while the gateway stops: each response then ends its connection.
    """

    def __init__(self, files_max: float = math.inf, processes: int = 1) -> None:
        self._unknown_max = int(min(_UNKNOWN_MAX / processes, files_max / 4))
        self._known_max = int(min(_KNOWN_MAX / processes, files_max / 4))
        self.accepted_max = 1 + self._unknown_max // 10
        self.files_many = files_max / 8
        self.unknown: dict[ClientConnection, asyncio.Transport] = {}
        self.known: dict[ClientConnection, asyncio.Transport] = {}
        self.idle_s_max = math.inf  # until the first check
        self.draining = False

    def trim(self) -> None:
        """Close the oldest connections above the bounds."""
        _close_oldest(self.unknown, len(self.unknown) - self._unknown_max)
        _close_oldest(self.known, len(self.known) - self._known_max)

    def make_room(self, count: int) -> None:
        """Close connections, of unknown callers first, although no bound is reached."""
        _close_oldest(self.unknown or self.known, count)


def _close_oldest(waiting: "dict[ClientConnection, asyncio.Transport]", count: int) -> None:
    for connection in list(itertools.islice(waiting, max(0, count))):
        waiting.pop(connection).abort()


class ClientConnection:
    """The state of one client connection that the bounds need.

    Attributes:
        is_known: True after a request with a valid key.
    """

    __slots__ = ("_transport", "_waiting", "is_known")

    def __init__(self, waiting: WaitingConnections, transport: asyncio.Transport) -> None:
        self._waiting = waiting
        self._transport = transport
        self.is_known = False
        self.wait()
        waiting.trim()

    def admit(self, *, known: bool) -> None:
        """Protect the connection until the end of the request.

        Args:
            known: True if the request has a valid key.
        """
        waiting = self._waiting.known if self.is_known else self._waiting.unknown
        if self in waiting:
            del waiting[self]
        if known:
            self.is_known = True

    def wait(self) -> None:
        """Wait for the next request."""
        (self._waiting.known if self.is_known else self._waiting.unknown)[self] = self._transport

    def closed(self) -> None:
        """Release the room of a connection that is closed."""
        self.admit(known=False)
