"""Servers that refuse to stream, or `stream_options`, behind the gateway: their clients notice nothing."""

import asyncio
import json
from typing import Any

import pytest

from gateway_fixture import Site, fronting, serving
from raw_http import answer, asking
from running import run_real
from scripted_http import Script, read_request
from scripted_http import serving as listening

_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


async def _text(site: Site, **fields: object) -> str:
    """The answer's text, of a stream or of a body."""
    async with answer(site.port, asking(**fields)) as got:
        body = (await got.body()).decode()
        assert got.status == 200, body
        if fields.get("stream") is False:
            return str(json.loads(body)["choices"][0]["message"]["content"])
        assert body.endswith("data: [DONE]\n\n")
        chunks = [json.loads(line[6:]) for line in body.split("\n") if line.startswith("data: {")]
        return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("streaming", [True, False])
def test_a_server_that_cannot_stream_serves_all(*, streaming: bool) -> None:
    """Its answer comes as a stream to whoever wants one; it is asked twice for the first request only."""

    async def main() -> None:
        async with serving({"a": {"ttft": "1ms", "tokens": 5, "faults": ["no_stream"]}}) as site:
            texts = [await _text(site, stream=streaming) for _ in range(3)]
            assert all(len(text) > 5 for text in texts)
            assert site.reached == 4

    run_real(main())


@pytest.mark.parametrize("streaming", [True, False])
def test_a_crowd_at_a_server_that_cannot_stream_is_served(*, streaming: bool) -> None:
    """The first requests, which nothing is known for yet, need no retry budget, however many there are."""

    async def main() -> None:
        async with serving({"a": {"ttft": "50ms", "tokens": 5, "faults": ["no_stream"]}}) as site:
            texts = await asyncio.gather(*(_text(site, stream=streaming) for _ in range(40)))
            assert all(len(text) > 5 for text in texts)

    run_real(main())


def _without_options(asked: list[dict[str, Any]]) -> Script:
    """A server that knows no `stream_options`; keeps the bodies it was sent."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked.append(json.loads((await read_request(reader))[1]))
            if "stream_options" in asked[-1]:
                status, kind = b"400 Bad Request", b"application/json"
                said = b'{"error":{"message":"Unrecognized request argument supplied: stream_options"}}'
            else:
                status, kind, said = b"200 OK", b"text/event-stream", _EVENT
            fields = b"content-type: %b\r\ncontent-length: %d" % (kind, len(said))
            writer.write(b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, fields, said))

    return script


@pytest.mark.parametrize("own", [None, {"include_usage": True}])
def test_a_server_without_options_is_asked_without_them(own: object) -> None:
    """It is not told of `stream_options` any more, whoever wanted them, and goes on streaming."""

    async def main() -> None:
        asked: list[dict[str, Any]] = []
        async with (
            listening(_without_options(asked)) as server,
            fronting({"a": f"http://127.0.0.1:{server.port}/v1"}) as site,
        ):
            for _ in range(3):
                assert await _text(site, stream_options=own) == "hi"
            assert ["stream_options" in body for body in asked] == [True, False, False, False]
            assert all(body["stream"] for body in asked)

    run_real(main())
