"""The state with which the next supervisor carries on: given to the top process, as a file in memory, at each change.

No disk has it, so that no secret does. Units: seconds, bytes.
"""

import asyncio
import os
from collections.abc import Callable

import msgspec

from gateway.workers.channel import Control
from gateway.workers.messages import GroupState, ToSupervisor, ToTop

_encode = msgspec.msgpack.Encoder().encode


class StateKeeper:
    """Gives the top process the present state.

    Args:
        control: socket to the top process.
        read: returns the present state.
    """

    def __init__(self, control: Control[ToSupervisor], read: Callable[[], GroupState]) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._read = read
        self._is_open = False
        self._is_due = False

    def start(self) -> None:
        """Give the state now, and after each change."""
        self._is_open = True
        self.changed()

    def changed(self) -> None:
        """Give the state again, once for all changes of a turn of the event loop."""
        if self._is_open and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.send)

    def send(self) -> None:
        """Give a state that is due; must be called every second, as the top process may be late."""
        if self._is_due:
            descriptor = in_memory(self._read())
            self._is_due = not self._control.send(ToTop(is_state=True), [descriptor])
            os.close(descriptor)


def in_memory(state: GroupState) -> int:
    """Return a descriptor of a file without a name that has the state."""
    descriptor = _unnamed()
    left = memoryview(_encode(state))
    while left:
        left = left[os.write(descriptor, left) :]
    return descriptor


def _unnamed() -> int:
    """Return a descriptor of an empty file in memory; builds of Python for an old glibc lack `memfd_create`."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ttft-gateway-state")
    return os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)  # noqa: S108 # memory, and without a name


def read_state(descriptor: int) -> GroupState:
    """Return the state of a file, and close its descriptor."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return msgspec.msgpack.decode(file.read(), type=GroupState)
