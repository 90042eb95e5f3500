"""Requests a document of a replica, with the gateway's own client; for commands.

Every wait is bounded, and so is the document. Units: seconds, bytes.
"""

import asyncio
from collections.abc import Sequence

from ttft_gateway.apis.base import Headers, HttpClient, Request
from ttft_gateway.apis.errors import UpstreamError

_FETCH_S_MAX = 5.0

_BODY_BYTES_MAX = 256 * 1024


async def within(wait_s: float, event: asyncio.Event) -> bool:
    """Wait for an event; return True if it was set in time."""
    try:
        async with asyncio.timeout(wait_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def fetch(client: HttpClient, target: str, headers: Headers) -> bytes | None:
    """Return the start of the body of a GET; None unless the status is 200 and the body is complete in time."""
    document = _Document()
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    exchange = client.send(Request(b"GET %s HTTP/1.1\r\n%s\r\n" % (target.encode(), lines), b""), document)
    try:
        complete = await within(_FETCH_S_MAX, document.over)
    finally:
        exchange.abort()
    return bytes(document.body) if complete and document.ok else None


class _Document:  # an HttpSink
    def __init__(self) -> None:
        self.ok = False
        self.body = bytearray()
        self.over = asyncio.Event()

    def on_response(self, status: int, _headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.ok = status == 200

    def on_body(self, data: bytes) -> None:
        self.body += data[: _BODY_BYTES_MAX - len(self.body)]

    def on_close(self, error: UpstreamError | None) -> None:
        self.ok = self.ok and error is None
        self.over.set()
