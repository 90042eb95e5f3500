"""Requests to the admin address of a running gateway, for commands. Every wait is bounded. Units: seconds, bytes."""

import contextlib
import http.client
import os
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

from gateway.cli.parser import ADMIN_KEY_VARIABLE

_WAIT_S_MAX = 10.0
_BYTES_MAX = 32_000_000


def ask_admin(admin: str, path: str, body: bytes | None = None, *, key: str | None = None) -> bytes:
    """Return the document of a GET, or of a POST with a body.

    Args:
        admin: address of the gateway's admin routes.
        key: admin key; None for the key in the environment.

    Raises:
        OSError: the gateway is not reachable.
        http.client.HTTPException: its answer is no HTTP.
        ValueError: its status is not 200, or the address is wrong.
    """
    with _asked(admin, path, body, key) as (_, response):
        return response.read(_BYTES_MAX)


def follow_admin(admin: str, path: str, seconds: float, *, key: str | None, bytes_max: int) -> bytes:
    """Return what a GET of an endless document sends in this time; arguments and errors as for `ask_admin`."""
    received = bytearray()
    with _asked(admin, path, None, key) as (opened, response):
        timer = threading.Timer(seconds, _shut_down, [opened])
        timer.start()
        try:
            while len(received) < bytes_max and (piece := response.read1(bytes_max - len(received))):
                received += piece
        except (http.client.IncompleteRead, OSError):  # the time is over
            pass
        finally:
            timer.cancel()
    return bytes(received)


def _shut_down(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _asked(
    admin: str, path: str, body: bytes | None, key: str | None
) -> Iterator[tuple[socket.socket, http.client.HTTPResponse]]:
    """Send a request; yield its socket and its response, which has status 200."""
    url = urlsplit(admin)
    if url.scheme not in ("http", "https") or url.hostname is None:
        raise ValueError("it must begin with http:// or https://")
    key = os.environ.get(ADMIN_KEY_VARIABLE) if key is None else key
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname, url.port, timeout=_WAIT_S_MAX)
    try:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        connection.request("GET" if body is None else "POST", f"{url.path.rstrip('/')}{path}", body, headers)
        opened = connection.sock  # a response with `connection: close` takes it from the connection
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise ValueError(f"status {response.status}")
        yield opened, response
    finally:
        connection.close()
