"""Finds processes that hang: the loop of one that runs beats several times a second (board.py).

A process that only waits for a CPU does not hang: on a machine with too much to do, its beats are late, and the process
would be ended in the middle of its streams. Linux counts that time. A process that was stopped, or that waits for
something else, does not wait for a CPU; a process that computes without an end does so for a part of the time.

Units: seconds; checks, of which there is one a second. A check counts, not the time: a machine that was suspended
misses at most one.
"""

from pathlib import Path
from typing import Final, NamedTuple

from gateway.workers.board import Slot

BEGIN_CHECKS_MAX: Final = 300  # a worker builds 10,000 models for 20 s on a core of its own, minutes on a part of one
_STARVED: Final = 0.5  # part of the time between two checks; a process that waits for a CPU for longer is late
_PART_MIN: Final = 1 / 6  # so that a process that computes without an end is found within a minute on any machine


class Check(NamedTuple):
    """A process at one check.

    Attributes:
        at_s: time of the check.
        beats: number of beats of the process.
        waited_s: time for which it has waited for a CPU; None if the system does not count it.
    """

    at_s: float
    beats: int
    waited_s: float | None


def missed(before: Check, now: Check) -> float:
    """Return 0 after a beat, 1 without a beat, and less for a process that waited for a CPU most of the time."""
    if now.beats != before.beats:
        return 0.0
    if before.waited_s is None or now.waited_s is None or now.at_s <= before.at_s:
        return 1.0
    waiting = (now.waited_s - before.waited_s) / (now.at_s - before.at_s)
    return 1.0 if waiting < _STARVED else max(_PART_MIN, 1.0 - waiting)


class Stillness:
    """Adds up the checks of a process in a row without a beat.

    A process that has not beaten yet begins: it is still after `BEGIN_CHECKS_MAX` more.

    Attributes:
        missed: checks without a beat, of which those count in part in which the process waited for a CPU.
        checks: number of these checks.
    """

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self.begin()

    def begin(self) -> None:
        """Begin with a new process."""
        self._last = Check(0.0, 0, None)
        self._missed = 0.0
        self.checks = 0

    @property
    def missed(self) -> float:
        """Return what the checks in a row without a beat count."""
        return self._missed if self._last.beats else max(0.0, self._missed - BEGIN_CHECKS_MAX)

    def check(self, at_s: float, waited_s: float | None) -> None:
        """Compare the beats with the last check."""
        now = Check(at_s, self._slot.beats, waited_s)
        part = missed(self._last, now)
        self._missed, self.checks = (self._missed + part, self.checks + 1) if part else (0.0, 0)
        self._last = now


def waited_s(process: int) -> float | None:
    """Return the time for which the first thread of a process has waited for a CPU; None if it is not known."""
    try:  # the time on a CPU, the time waiting for one, and the number of turns, in nanoseconds
        return int(Path(f"/proc/{process}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
