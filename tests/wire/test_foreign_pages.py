"""A web page that sends requests to an address without a key (cross-site request forgery). Real sockets."""

import json

import pytest

from gateway_fixture import serving
from raw_http import ASK, CHAT, answer, connect, head, request_bytes
from running import run_real

_REPLICA = {"a": {"ttft": "1ms", "tokens": 1}}
_BODY = json.dumps({**ASK, "stream": False}).encode()
_FIELDS = b"host: %b\r\ncontent-length: %d\r\n"


async def _status(port: int, path: str, fields: bytes, host: bytes = b"127.0.0.1") -> tuple[int, bytes]:
    """Send what a page sends without a preflight: no JSON is declared."""
    reader, writer = await connect(port)
    writer.write(f"POST {path} HTTP/1.1\r\n".encode() + _FIELDS % (host, len(_BODY)) + fields + b"\r\n" + _BODY)
    got = await head(reader, writer, 0.0)
    body = await got.body()
    await got.leave()
    return got.status, body


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/embeddings", "/v1/messages/count_tokens", "/rerank"])
def test_a_page_reaches_no_replica(path: str) -> None:
    """A request of a foreign page gets a 403 that names the settings; no replica receives anything."""

    async def main() -> None:
        async with serving(_REPLICA) as site:
            for fields in (
                b"sec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\norigin: https://evil.example\r\n",
                b"sec-fetch-site: same-site\r\nsec-fetch-mode: no-cors\r\norigin: http://localhost:3000\r\n",
                b"origin: https://evil.example\r\n",
                b"origin: null\r\n",
            ):
                status, body = await _status(site.port, path, fields)
                assert status == 403
                assert b"`cors_origins` in the configuration, or configure `keys`" in body
            assert site.reached == 0
            if path == CHAT:
                assert (await _status(site.port, path, b""))[0] == 200  # no browser
                assert (await _status(site.port, path, b"origin: http://127.0.0.1\r\n"))[0] == 200  # its own page

    run_real(main())


def test_an_address_for_other_machines_requires_a_declared_body() -> None:
    """Browsers do not send `Sec-Fetch-Site` there; what needs no preflight is rejected even without an origin."""

    async def main() -> None:
        async with serving(_REPLICA, listen="0.0.0.0:0", allow_anonymous=True) as site:
            status, body = await _status(site.port, CHAT, b"")
            assert status == 403
            assert b"send `content-type: application/json`" in body
            assert (await _status(site.port, CHAT, b"content-type: text/plain\r\n"))[0] == 400
            assert site.reached == 0
            assert (await _status(site.port, CHAT, b"content-type: application/json\r\n"))[0] == 200
            assert (await _status(site.port, CHAT, b"authorization: Bearer none\r\n"))[0] == 200

    run_real(main())


def test_a_listed_page_is_served() -> None:
    """With `cors_origins` a page of a listed origin is served as before, without keys too."""

    async def main() -> None:
        page = {"origin": "https://app.example", "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
        async with serving(_REPLICA, cors_origins=["https://app.example"]) as site:
            async with answer(site.port, request_bytes(_BODY, headers=page)) as got:
                await got.body()
                assert (got.status, got.headers["access-control-allow-origin"]) == (200, "https://app.example")
            page["origin"] = "https://other.example"
            async with answer(site.port, request_bytes(_BODY, headers=page)) as got:
                assert got.status == 403

    run_real(main())
