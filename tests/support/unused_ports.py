"""Ports for processes that are started later. No units."""

import contextlib
import itertools
import os
import random
import socket
from collections.abc import Iterator
from typing import Final

_SLICE: Final = 1_000  # ports of each process of a test run: none gives a port that another one has given
_SLICES: Final = 10


def _ports() -> Iterator[int]:
    """Yield the ports of this process in turn, from a random one on; all are below the clients' ports.

    A client that connects before a server listens could get its port.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _SLICES
    first = random.SystemRandom().randrange(_SLICE)
    for each in itertools.count(first):
        yield 20_000 + number * _SLICE + each % _SLICE


_turn: Final = _ports()


def unused_port() -> int:
    """Return a port on which no process listens, and which was not given for a thousand calls."""
    for port in itertools.islice(_turn, _SLICE):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is unused")
