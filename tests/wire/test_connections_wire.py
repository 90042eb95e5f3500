"""Replicas that are reached in other ways than http:// to a host, through a whole gateway: what their servers see."""

import asyncio
import ssl
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trustme

from gateway_fixture import fronting
from http2_server import Http2Server
from raw_http import answer, asking
from running import run_real
from scripted_http import Script, read_request, serving

_EVENTS = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def _streaming(asked: list[bytes]) -> Script:
    """A server that streams one word to each request, and keeps the heads of requests."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked.append((await read_request(reader))[0])
            fields = b"content-type: text/event-stream\r\ncontent-length: %d" % len(_EVENTS)
            writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (fields, _EVENTS))

    return script


async def _ask(base_url: str, kind: str = "vllm", **row: Any) -> None:
    """A gateway with this one replica streams its answer."""
    async with fronting({"a": base_url}, kind=kind, own={"a": row}) as site, answer(site.port, asking()) as got:
        assert (got.status, b'"hi"' in await got.body()) == (200, True)


@pytest.mark.parametrize(
    ("path", "row", "line", "header"),
    [
        (
            "/openai/deployments/my-gpt",
            {"api_version": "2024-10-21"},
            b"POST /openai/deployments/my-gpt/chat/completions?api-version=2024-10-21 HTTP/1.1",
            b"api-key: secret",
        ),
        ("/openai/v1", {}, b"POST /openai/v1/chat/completions HTTP/1.1", b"api-key: secret"),
        (
            "/openai/v1",
            {"api_version": "preview", "auth": "bearer"},
            b"POST /openai/v1/chat/completions?api-version=preview HTTP/1.1",
            b"authorization: Bearer secret",
        ),
    ],
)
def test_azure_in_both_forms(path: str, row: dict[str, str], line: bytes, header: bytes) -> None:
    """Deployment and version stand where Azure looks for them, and the key or token in its header."""

    async def main() -> None:
        asked: list[bytes] = []
        async with serving(_streaming(asked)) as server:
            await _ask(f"http://127.0.0.1:{server.port}{path}", "azure", api_key="secret", **row)
        lines = asked[0].split(b"\r\n")
        assert lines[0] == line
        assert header in lines

    run_real(main())


def test_a_replica_on_a_unix_socket() -> None:
    """Its path is written into base_url; the server is called localhost."""

    async def main() -> None:
        asked: list[bytes] = []
        with tempfile.TemporaryDirectory() as folder:
            async with serving(_streaming(asked), path=f"{folder}/vllm.sock"):
                await _ask(f"http+unix://{folder.replace('/', '%2F')}%2Fvllm.sock/v1")
        assert asked[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n")

    run_real(main())


@pytest.mark.parametrize("http2", [False, True])
def test_a_replica_with_authorities_and_certificates_of_its_own(tmp_path: Path, *, http2: bool) -> None:
    """The server is trusted for the configured authority's sake, and sees our certificate."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"] if http2 else [])
    authority.configure_trust(context)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("gateway@example.com").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "me.pem"))
    files = {"ca_file": str(tmp_path / "ca.pem"), "cert_file": str(tmp_path / "me.pem")}

    async def main() -> None:
        upstream = Http2Server(pieces=(_EVENTS,)).script if http2 else _streaming([])
        async with serving(upstream, tls=context) as server:
            await _ask(f"https://localhost:{server.port}/v1", connection={**files, "http2": http2})

    run_real(main())
