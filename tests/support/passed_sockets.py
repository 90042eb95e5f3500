"""Starts a Python program with listening sockets, as systemd does (sd_listen_fds(3))."""

import sys
from collections.abc import Sequence
from typing import Final

_PROGRAM: Final = """
import os, sys
given = sys.argv[1].split(",")
for number, descriptor in enumerate(given, 3):
    os.dup2(int(descriptor), number)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(given))}
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def passing(descriptors: Sequence[int], *argv: str) -> list[str]:
    """Return the command line of a Python program that inherits sockets.

    Args:
        descriptors: descriptors of the sockets, which the command must inherit under their numbers; above 4.
        argv: arguments of Python.
    """
    return [sys.executable, "-c", _PROGRAM, ",".join(map(str, descriptors)), *argv]
