"""Beats and connections of all processes of a gateway, in memory that they share.

Each process writes only to its own slot, whole words, so nothing is locked. The top process reads the beats: while they
stand still, the process hangs. Workers read the connections: the worker with the fewest accepts the next one. A hung
process can neither hide that it hangs nor hold the other ones up.

Units: seconds, connections.
"""

import asyncio
import math
import mmap
from typing import Final

BEAT_S: Final = 0.2
SUPERVISOR: Final = 0  # number of its slot; workers have numbers from 1
_WORDS: Final = 3  # of a slot: beats, open connections, accepted connections
_WORD_BYTES: Final = 8
_NONE: Final = 2**64 - 1  # open connections of a process that accepts none
_TURN_S: Final = 0.005  # for each worker with fewer connections to accept before this one


class Board:
    """The slots of the supervisor and of all workers; must be made before the processes are forked."""

    def __init__(self, workers: int) -> None:
        size_bytes = (workers + 1) * _WORDS * _WORD_BYTES
        self._words = memoryview(mmap.mmap(-1, size_bytes)).cast("Q")
        self._slots = [Slot(self._words[at : at + _WORDS]) for at in range(0, len(self._words), _WORDS)]
        for slot in self._slots:
            slot.clear()

    def __getitem__(self, number: int) -> "Slot":
        """Return the slot of a worker, or of the supervisor."""
        return self._slots[number]

    def turn_s(self, number: int) -> float:
        """Return the time that a worker leaves to workers with fewer connections; 0 if it has the fewest."""
        own = self._slots[number].open
        return _TURN_S * sum(slot.open < own for slot in self._slots[1:])


class Slot:
    """The words of one process."""

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def clear(self) -> None:
        """Begin anew: no beat, and nothing is accepted."""
        self._words[0], self._words[1], self._words[2] = 0, _NONE, 0

    @property
    def beats(self) -> int:
        """Number of beats; 0 before the first one."""
        return int(self._words[0])

    @property
    def open(self) -> float:
        """Open connections; infinite while the process accepts none."""
        count = int(self._words[1])
        return math.inf if count == _NONE else count

    @property
    def accepted(self) -> int:
        """Connections accepted so far."""
        return int(self._words[2])

    def count(self, open_connections: int, accepted: int) -> None:
        """Set the numbers of connections."""
        self._words[1], self._words[2] = open_connections, accepted

    def stop(self) -> None:
        """Accept nothing more."""
        self._words[1] = _NONE

    def beat(self) -> None:
        """Show that the event loop runs."""
        self._words[0] += 1

    async def keep_beating(self) -> None:
        """Beat until the task is cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(BEAT_S)


class ConnectionTurns:
    """The connections of one worker, which leaves the next one to a worker with fewer.

    Args:
        number: number of the worker.
    """

    def __init__(self, board: Board, number: int) -> None:
        self._board = board
        self._number = number
        self._open = 0
        self._accepted = 0

    def start(self) -> None:
        """Count from now on."""
        self._board[self._number].count(self._open, self._accepted)

    def wait_s(self) -> float:
        """Return the time until this worker accepts a connection that no other worker has accepted; 0 for now."""
        return self._board.turn_s(self._number)

    def opened(self) -> None:
        """Count a connection."""
        self._open += 1
        self._accepted += 1
        self.start()

    def closed(self) -> None:
        """Count the end of a connection."""
        self._open -= 1
        if self._board[self._number].open != math.inf:
            self.start()

    def stop(self) -> None:
        """Accept nothing more."""
        self._board[self._number].stop()
