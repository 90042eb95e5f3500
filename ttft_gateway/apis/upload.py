"""A request body that is sent while it arrives. Pure.

An upload is written by its owner and read by the HTTP client that sends it, both in the same thread. It holds what has
arrived and is not sent yet. Its owner stops reading while that is too much; `on_room` is the sign to continue. Framing
is the client's. Units: bytes.
"""

from collections import deque
from collections.abc import Callable, Iterator


class Upload:
    """The body of one request, in pieces; it is sent once, because what was sent is not kept.

    Args:
        size: length of the whole body; None if it is unknown.
        on_room: called when everything that had arrived was taken, and more is to come.

    Attributes:
        size: see above.
        is_begun: True once a piece was taken.
        waiting: length of what has arrived and was not taken.
    """

    __slots__ = ("_is_complete", "_on_piece", "_on_room", "_pieces", "is_begun", "size", "waiting")

    def __init__(self, size: int | None, on_room: Callable[[], None]) -> None:
        self.size = size
        self.is_begun = False
        self.waiting = 0
        self._pieces: deque[bytes] = deque()
        self._is_complete = False
        self._on_room = on_room
        self._on_piece: Callable[[], None] | None = None

    def feed(self, piece: bytes) -> None:
        """Add a piece that has arrived."""
        self._pieces.append(piece)
        self.waiting += len(piece)
        self._wake()

    def complete(self) -> None:
        """End the body."""
        self._is_complete = True
        self._wake()

    def read_by(self, on_piece: Callable[[], None]) -> Iterator[bytes]:
        """Return the pieces for a reader; an empty one means that the next piece has not arrived yet.

        Args:
            on_piece: called after a piece has arrived, and at the end.
        """
        self._on_piece = on_piece
        while True:
            if self._pieces:
                self.is_begun = True
                piece = self._pieces.popleft()
                self.waiting -= len(piece)
                if not (self._pieces or self._is_complete):
                    self._on_room()
                if piece:
                    yield piece
            elif self._is_complete:
                return
            else:
                yield b""

    def _wake(self) -> None:
        if self._on_piece is not None:
            self._on_piece()
