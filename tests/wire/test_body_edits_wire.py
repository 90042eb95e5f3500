"""`body:` of a replica over real sockets: each replica receives its own form of one request."""

import asyncio
import json

import pytest

from gateway_fixture import fronting
from raw_http import ASK, answer, request_bytes
from running import run_real
from scripted_http import read_request, serving


@pytest.mark.parametrize("kind", ["vllm", "anthropic"])
def test_a_replica_has_values_of_its_own(kind: str) -> None:
    """One replica receives the set and capped values, a fallback after it the caller's own."""
    received: list[dict[str, object]] = []

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(json.loads((await read_request(reader))[1]))
        writer.write(b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    async def main() -> None:
        async with serving(replica) as server:
            url = f"http://127.0.0.1:{server.port}/v1"
            own = {"a": {"kind": kind, "body": {"set": {"provider": {"sort": "price"}}, "max": {"max_tokens": 50}}}}
            request = request_bytes(json.dumps({**ASK, "max_tokens": 80}).encode())
            async with (
                fronting({"a": url}, {"b": url}, kind="vllm", own=own) as site,
                answer(site.port, request) as got,
            ):
                assert got.status == 500
        assert received[0].items() >= {"max_tokens": 50, "provider": {"sort": "price"}}.items()
        assert next(each["max_tokens"] for each in received if "provider" not in each) == 80

    run_real(main())


def test_a_cap_holds_for_the_default_of_an_api_that_needs_one() -> None:
    """Without the caller's `max_tokens`, Anthropic's API gets the default, lowered to the cap."""
    received: list[dict[str, object]] = []

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(json.loads((await read_request(reader))[1]))
        writer.write(b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    async def main() -> None:
        async with serving(replica) as server:
            own = {"a": {"body": {"max": {"max_tokens": 50}}}}
            urls = {"a": f"http://127.0.0.1:{server.port}/v1"}
            async with (
                fronting(urls, kind="anthropic", own=own) as site,
                answer(site.port, request_bytes(json.dumps(ASK).encode())) as got,
            ):
                assert got.status == 500
        assert received[0]["max_tokens"] == 50

    run_real(main())
