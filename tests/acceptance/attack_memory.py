"""Memory that large bodies take while their requests wait, and after them. Linux only. Units: bytes, seconds."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Final

from attack_rows import Row, Scale
from gateway_fixture import fronting
from raw_http import ASK, connect, request_bytes
from streaming_bench.research.overhead.usage import process_usage

_BODIES: Final = 50
_BODY_BYTES: Final = 9_800_000
_SHORT_BODIES: Final = 24
_SHORT_BYTES: Final = 2_000_000
_AFTER_S: Final = 60.0
_WAIT_S: Final = 120.0
_KEPT_SHARE: Final = 0.1  # of the bodies' bytes, after them
_KEPT_MB: Final = 15.0  # at least: a process that has served anything is larger than one that has not
_MOST: Final = {"passed on": 1.3, "translated": 2.3}
_SLOW: Final = {"ttft_failover": "9m", "ttft_max": "9m", "stall": "9m", "total": "10m", "request_body": "5m"}


class _Silent:
    """A replica that reads requests, and never answers.

    Attributes:
        read_bytes: bytes read.
    """

    def __init__(self) -> None:
        self.read_bytes = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve while inside; yields the base URL."""
        server = await asyncio.start_server(self._read, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        finally:
            server.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(2**18):
                self.read_bytes += len(piece)
        writer.transport.abort()


async def memory(scale: Scale) -> list[Row]:
    """Bodies up to nearly all of `buffered_bodies_max`, which replicas with and without their API have read."""
    count, size = (_SHORT_BODIES, _SHORT_BYTES) if scale.short else (_BODIES, _BODY_BYTES)
    rows = []
    for how, most in _MOST.items():
        before, peak, after = await _measured(count, size, translated=how == "translated")
        total_mb = count * size / 2**20
        share = (peak - before) / total_mb
        measured = f"{share:.2f}; {before:.0f} MB before, {peak:.0f} at the peak, {after:.0f} after"
        fine = share <= most and after <= before + _kept_mb(count * size)
        rows.append(Row(f"{count} bodies of {size / 1e6:g} MB, {how}", f"<= {most} x, then given back", measured, fine))
    return rows


def _kept_mb(total_bytes: int) -> float:
    return max(_KEPT_MB, _KEPT_SHARE * total_bytes / 2**20)


async def _load_framework(port: int) -> None:
    """Request a plain route; its framework is loaded after the start."""
    reader, writer = await connect(port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    assert b"200 OK" in answer, answer
    writer.close()


async def _measured(count: int, size: int, *, translated: bool) -> tuple[float, float, float]:
    """Resident memory in MB: before, the most while the requests wait, and the least after them."""
    text = "".join(chr(97 + number % 26) for number in range(997))
    body = json.dumps({**ASK, "messages": [{"role": "user", "content": text * ((size - 200) // 997)}]}).encode()
    payload = request_bytes(body + b" " * (size - len(body)))
    silent = _Silent()
    async with contextlib.AsyncExitStack() as opened:
        url = await opened.enter_async_context(silent.serving())
        kind = {"kind": "anthropic", "api_key": "sk-upstream"} if translated else {"kind": "compatible"}
        site = await opened.enter_async_context(
            fronting({"a": url}, process=True, own={"a": kind}, hedge={"policy": "off"}, timeouts=_SLOW)
        )
        await _load_framework(site.port)
        before = peak = process_usage(site.pid).rss_mb
        async with asyncio.timeout(_WAIT_S):
            writers = []
            for _ in range(count):
                _, writer = await connect(site.port)
                writer.write(payload)
                writers.append(writer)
            while silent.read_bytes < 0.99 * count * size:
                await asyncio.sleep(0.01)
                peak = max(peak, process_usage(site.pid).rss_mb)
        for writer in writers:
            writer.transport.abort()
        after = peak
        deadline_s = asyncio.get_running_loop().time() + _AFTER_S
        while asyncio.get_running_loop().time() < deadline_s and after > before + _kept_mb(count * size):
            await asyncio.sleep(0.1)
            after = min(after, process_usage(site.pid).rss_mb)
    return before, peak, after
