"""Headers that cannot be sent: a replica's are dropped, and a response that cannot begin ends, over real sockets."""

import asyncio
import secrets

import pytest

from gateway.events import RequestEnded, RequestRejected
from gateway_fixture import fronting
from gateway_fixture import serving as gateway_serving
from http2_server import Http2Server
from raw_http import answer, asking, connect, request_bytes
from running import run_real
from scripted_http import read_request, serving

_EVENTS = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
_STREAM = (b"content-type", b"text/event-stream")
_COUNT = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
_SLOW = {"commit_status_after": "20ms"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"req-1", "req-1"),
        (b"req\x01-\x7f1\x00", "req-1"),
        (b"req\r\nx-evil: 1", "reqx-evil:1"),
        (b"\x01\xff", None),
        (b"x" * 300, "x" * 200),
        (b"a\x01b" + "é".encode() + b" c", "abc"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_request_id_is_shown_as_visible_ascii(value: bytes, shown: str | None, *, stream: bool) -> None:
    """Other characters of an HTTP/2 replica's request id are dropped, in the response and in the event for the log."""

    async def main() -> None:
        upstream = Http2Server(
            pieces=(_EVENTS,), headers=((b"content-type", b"text/event-stream"), (b"x-request-id", value))
        )
        async with (
            serving(upstream.script) as server,
            fronting(
                {"a": f"http://127.0.0.1:{server.port}/v1"}, kind="vllm", own={"a": {"connection": {"http2": True}}}
            ) as site,
            answer(site.port, asking(stream=stream)) as got,
        ):
            assert got.status == 200
            assert got.headers.get("x-upstream-request-id") == shown
            assert b'"hi"' in await got.body()
            [ended] = [event for event in site.events if isinstance(event, RequestEnded)]
            assert ended.attempts[0].upstream_request_id == shown

    run_real(main())


@pytest.mark.parametrize(
    ("payload", "ttft"),
    [
        (asking(), "5ms"),
        (asking(), "10s"),
        (asking(stream=False), "5ms"),
        (asking(stream=False), "10s"),
    ],
    ids=["stream", "early status", "answer", "timeout"],
)
def test_a_response_that_cannot_begin_is_a_failure(monkeypatch: pytest.MonkeyPatch, payload: bytes, ttft: str) -> None:
    """The client's connection is closed, the request is reported as failed, and its replica is left immediately."""
    monkeypatch.setattr(secrets, "token_hex", lambda _: "\x01")  # part of every request id

    async def main() -> None:
        timeouts = {"total": "200ms"} if ttft != "5ms" else {}
        async with gateway_serving({"a": {"ttft": ttft}}, timeouts={**_SLOW, **timeouts}) as site, asyncio.timeout(20):
            reader, writer = await connect(site.port)
            writer.write(payload)
            assert await reader.read() == b""
            writer.close()
            await site.until_idle()
            [ended] = [event for event in site.events if isinstance(event, RequestEnded)]
            assert (ended.status, ended.error) == (500, "internal_error")
            assert site.gateway is not None
            assert site.gateway.public.active == 0

    run_real(main())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("body", [_COUNT, b"{}"])
def test_an_answer_without_a_race_that_cannot_begin_closes(
    monkeypatch: pytest.MonkeyPatch, path: str, body: bytes
) -> None:
    """The connection is closed as well if the request is refused, or answered by the gateway itself."""
    monkeypatch.setattr(secrets, "token_hex", lambda _: "\x01")

    async def main() -> None:
        async with gateway_serving({"a": {}}) as site, asyncio.timeout(20):
            reader, writer = await connect(site.port)
            writer.write(request_bytes(body, path))
            assert await reader.read() == b""
            writer.close()
            refused = [event.status for event in site.events if isinstance(event, RequestRejected)]
            assert refused == ([400] if body == b"{}" else [])

    run_real(main())


def test_white_space_after_a_passed_header_is_no_fault_of_the_replica() -> None:
    """A client's header with white space at its end reaches a replica behind a proxy without it, and is answered."""
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await read_request(reader))[0])
        fields = b"content-type: text/event-stream\r\ncontent-length: %d" % len(_EVENTS)
        writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (fields, _EVENTS))

    async def main() -> None:
        async with serving(proxy) as server:
            own = {"a": {"connection": {"proxy": f"http://127.0.0.1:{server.port}"}}}
            request = request_bytes(_COUNT, headers={"traceparent": "00-1 \t "})
            async with (
                fronting({"a": "http://replica.example/v1"}, kind="vllm", own=own) as site,
                answer(site.port, request) as got,
            ):
                assert got.status == 200
        assert b"\r\ntraceparent: 00-1\r\n" in asked[0]

    run_real(main())
