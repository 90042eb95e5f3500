"""Ports for processes that are started later. No units."""

import contextlib
import random
import socket


def unused_port() -> int:
    """Return a port below the clients' ports: a client that connects before the gateway listens could get its port."""
    for port in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is unused")
