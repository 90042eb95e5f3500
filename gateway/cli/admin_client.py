"""Requests to the admin address of a running gateway, for commands. Every wait is bounded. Units: seconds, bytes."""

import http.client
import os
from urllib.parse import urlsplit

from gateway.cli.parser import ADMIN_KEY_VARIABLE

_WAIT_S_MAX = 10.0
_BYTES_MAX = 32_000_000


def ask_admin(admin: str, path: str, body: bytes | None = None) -> bytes:
    """Return the document of a GET, or of a POST with a body.

    Args:
        admin: address of the gateway's admin routes.

    Raises:
        OSError: the gateway is not reachable.
        http.client.HTTPException: its answer is no HTTP.
        ValueError: its status is not 200, or the address is wrong.
    """
    url = urlsplit(admin)
    if url.scheme not in ("http", "https") or url.hostname is None:
        raise ValueError("it must begin with http:// or https://")
    key = os.environ.get(ADMIN_KEY_VARIABLE)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname, url.port, timeout=_WAIT_S_MAX)
    try:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        connection.request("GET" if body is None else "POST", f"{url.path.rstrip('/')}{path}", body, headers)
        response = connection.getresponse()
        document = response.read(_BYTES_MAX)
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise ValueError(f"status {response.status}")
    return document
