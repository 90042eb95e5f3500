"""`health`: checks that the gateway on this machine answers; for containers, because their images have no curl.

Runs every few seconds in each container, so it imports almost nothing. Units: seconds.
"""

import argparse
import os
import socket

from gateway.cli.parser import LISTEN_VARIABLE, ExitCode
from gateway.cli.terminal import fail
from gateway.config.addresses import LISTEN_DEFAULT

_WAIT_S_MAX = 2.0  # for the connection, and again for the answer
_REQUEST = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def health(arguments: argparse.Namespace) -> ExitCode:
    """Request /healthz; prints nothing if the gateway is healthy."""
    listen = arguments.listen or os.environ.get(LISTEN_VARIABLE) or LISTEN_DEFAULT
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal():
        fail(f'found "{listen}", but an address must be host:port; write for example {LISTEN_DEFAULT}')
        return ExitCode.USAGE
    try:
        # A connection to 0.0.0.0 or [::] is one to this machine.
        with socket.create_connection((host, int(port)), _WAIT_S_MAX) as connection:
            connection.sendall(_REQUEST)
            status_line = connection.recv(1024).partition(b"\r")[0]
    except (OSError, OverflowError) as error:  # a port above 65535 overflows
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        fail(f"the gateway at {listen} is unreachable: {reason}")
        return ExitCode.FAILED
    if not status_line.startswith(b"HTTP/1.1 200 "):
        fail(f"the gateway at {listen} is unhealthy: it answered {status_line!r} instead of 200")
        return ExitCode.FAILED
    return ExitCode.OK
