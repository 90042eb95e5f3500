"""Requests of web pages on other origins (CORS). Real sockets."""

import json
from collections.abc import Mapping

import pytest

from gateway_fixture import serving
from raw_http import ASK, CHAT, answer, request_bytes
from running import run_real

_REPLICA = {"a": {"ttft": "1ms", "tokens": 1}}
_KEYS = [{"name": "team", "key": "secret"}]
_PAGE = {"origin": "https://app.example"}
_PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-os"}


async def _cors(
    port: int, path: str = CHAT, method: str = "POST", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str]]:
    """Return the status of a response, and its headers of CORS."""
    body = json.dumps({**ASK, "stream": False}).encode() if method == "POST" else b""
    async with answer(port, request_bytes(body, path, method, headers)) as got:
        if method != "OPTIONS":
            await got.body()
        return got.status, {k: v for k, v in got.headers.items() if k == "vary" or k.startswith("access-control-")}


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/models", "/openai/deployments/m/chat/completions"])
def test_a_listed_page_may_ask_and_read(path: str) -> None:
    """A preflight needs no key and reaches no replica; responses and errors carry the origin, and never `*`."""

    async def main() -> None:
        async with serving(_REPLICA, keys=_KEYS, cors_origins=["https://APP.example", "http://localhost:3000"]) as site:
            status, headers = await _cors(site.port, path, "OPTIONS", {**_PAGE, **_PREFLIGHT})
            assert status == 204
            assert headers == {
                "vary": "origin",
                "access-control-allow-origin": "https://app.example",
                "access-control-allow-methods": "DELETE, GET, POST",
                "access-control-allow-headers": "authorization,x-stainless-os",
                "access-control-max-age": "7200",
            }
            assert site.reached == 0
            readable = {
                "vary": "origin",
                "access-control-allow-origin": "https://app.example",
                "access-control-expose-headers": "*",
            }
            method = "GET" if path == "/v1/models" else "POST"
            assert await _cors(site.port, path, method, _PAGE) == (401, readable)
            if path == CHAT:
                keyed = {**_PAGE, "authorization": "Bearer secret"}
                assert await _cors(site.port, path, method, keyed) == (200, readable)

    run_real(main())


def test_another_page_may_not_read() -> None:
    """A page of another origin gets an error that it cannot read; without an origin the header is named only."""

    async def main() -> None:
        async with serving(_REPLICA, cors_origins=["https://app.example"]) as site:
            for origin in ("https://evil.example", "https://app.example.evil", "http://app.example", "null"):
                page = {"origin": origin}
                assert await _cors(site.port, headers=page) == (403, {"vary": "origin"})
                assert await _cors(site.port, CHAT, "OPTIONS", {**page, **_PREFLIGHT}) == (405, {"vary": "origin"})
            assert await _cors(site.port) == (200, {"vary": "origin"})
            assert (await _cors(site.port, "/", "OPTIONS"))[0] == 204  # HAProxy's check

    run_real(main())


def test_off_by_default() -> None:
    """Without the setting no response has a header of CORS, and a preflight is a method that is not supported."""

    async def main() -> None:
        async with serving(_REPLICA) as site:
            assert await _cors(site.port, headers=_PAGE) == (403, {})
            assert await _cors(site.port) == (200, {})
            assert await _cors(site.port, CHAT, "OPTIONS", {**_PAGE, **_PREFLIGHT}) == (405, {})

    run_real(main())


def test_a_stream_carries_the_origin() -> None:
    """The response to a streaming request is readable, and complete."""

    async def main() -> None:
        asked = request_bytes(json.dumps(ASK).encode(), headers=_PAGE)
        async with serving(_REPLICA, cors_origins=["https://app.example"]) as site, answer(site.port, asked) as got:
            assert got.headers["access-control-allow-origin"] == "https://app.example"
            assert got.headers["x-ttft-replica"] == "a"
            assert (await got.body()).endswith(b"data: [DONE]\n\n")

    run_real(main())
