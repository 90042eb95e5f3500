"""Heavy answers of replicas over real sockets: forwarded as they are, or an error that explains why not."""

import asyncio
import json
from collections.abc import Mapping

import pytest

from gateway_fixture import fronting
from hostile_answers import DOCUMENTS, STREAMS
from raw_http import answer, request_bytes
from running import run_real
from scripted_http import read_request
from scripted_http import serving as scripted

_SIZE = 3_000_000


async def _asked(document: bytes, kind: bytes, fields: Mapping[str, object], path: str) -> tuple[int, bytes]:
    """Return the gateway's response to a request that a replica answers with a document."""

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await read_request(reader):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(document)))
            writer.write(document)
            await writer.drain()

    async with scripted(replica) as server:
        own = {"a": {"apis": ["chat/completions", "embeddings", "rerank"]}}
        async with fronting({"a": f"http://127.0.0.1:{server.port}/v1"}, kind="compatible", own=own) as site:
            payload = request_bytes(json.dumps({"model": "m", **fields}).encode(), path)
            async with asyncio.timeout(60), answer(site.port, payload) as got:
                return got.status, await got.body()


_USER = {"messages": [{"role": "user", "content": "x"}]}
_FIELDS: Mapping[str, Mapping[str, object]] = {
    "chat/completions": _USER,
    "embeddings": {"input": "x"},
    "rerank": {"query": "a", "documents": ["b"]},
}
_FORWARDED = sorted(set(DOCUMENTS) - {"chat: nested arrays", "chat: many keys", "chat: choices {}, to a stream"})


@pytest.mark.parametrize("name", _FORWARDED)
def test_a_heavy_answer_arrives_byte_for_byte(name: str) -> None:
    """An answer of the API that was called is forwarded, however many values it has."""
    shape = DOCUMENTS[name]
    document, path = shape.make(_SIZE), shape.api.value
    status, body = run_real(_asked(document, b"application/json", _FIELDS[path], f"/v1/{path}"))
    assert (status, body == document) == (200, True)


@pytest.mark.parametrize(
    ("name", "kind", "fields", "path", "why"),
    [
        ("chat: {}", b"application/json", {**_USER, "stream": True}, "chat/completions", "too many values"),
        ("chat: one text", b"application/json", {**_USER, "max_tokens": 9}, "messages", "4194304 cannot be converted"),
        ("tool calls, assembled", b"text/event-stream", _USER, "chat/completions", "over 2048 tool calls"),
    ],
)
def test_an_answer_that_has_to_be_converted_has_limits(
    name: str, kind: bytes, fields: Mapping[str, object], path: str, why: str
) -> None:
    """An answer that becomes events, or one of another API, or is assembled, may have few values."""
    shapes = {**DOCUMENTS, **STREAMS}
    document = shapes[name].make(5_000_000 if name == "chat: one text" else 1_500_000)
    status, body = run_real(_asked(document, kind, fields, f"/v1/{path}"))
    assert status == 502
    assert why in json.loads(body)["error"]["message"]
