"""A token that a replica needs reaches every worker: the process that watches its source sends no request."""

import asyncio
import json
from pathlib import Path

from gateway_fixture import fronting
from raw_http import ASK, answer, request_bytes
from running import run_real
from scripted_http import read_request, serving


def test_workers_send_the_token(tmp_path: Path) -> None:
    """Each request to a gateway with two workers has the token of a file, and no output has it."""
    received: list[bytes] = []

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append((await read_request(reader))[0])
        writer.write(b"HTTP/1.1 400 Oh\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    async def main() -> None:
        (tmp_path / "token").write_text("tok-secret-1")
        own = {"a": {"credential": {"source": "file", "file": str(tmp_path / "token")}}}
        async with serving(replica) as server:
            urls = {"a": f"http://127.0.0.1:{server.port}/v1"}
            async with fronting(urls, kind="openai", own=own, process=True, workers=2, allow_anonymous=True) as site:
                for _ in range(6):
                    async with answer(site.port, request_bytes(json.dumps(ASK).encode())) as got:
                        assert got.status >= 400
        heads = [head.lower() for head in received]
        assert heads
        assert all(b"authorization: bearer tok-secret-1" in head for head in heads)

    run_real(main())
