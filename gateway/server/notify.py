"""Reports the state of the process to a service manager, as sd_notify(3) does.

Units: microseconds of the monotonic clock in RELOADING, as the protocol requires.
"""

import contextlib
import os
import socket
import time

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str) -> None:
    """Send a state to the socket that NOTIFY_SOCKET names; do nothing if it is unset, or if nothing receives there."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


def reloading() -> str:
    """Return the state of a process that begins to read its configuration again."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"
