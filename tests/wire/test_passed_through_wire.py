"""Rerank, moderations and tokenize over real sockets: one replica, byte for byte, and another one if it fails."""

import asyncio
import json

import pytest

from gateway.events import RequestEnded
from gateway_fixture import fronting, serving
from openai_calls import call_of
from providers.openai.whole import WholeAnswers
from raw_http import answer, request_bytes
from running import run_real
from scripted_http import read_request
from scripted_http import serving as scripted
from sdk_clients import async_client
from ttft_gateway.apis.base import Api, FrameKind, Usage
from ttft_gateway.hedging.outcomes import Denial

_ASKED = {
    "/v1/rerank": {"model": "m", "query": "city", "documents": ["Bern", "plum"], "top_n": 1},
    "/v2/rerank": {"model": "m", "query": "city", "documents": ["Bern", "plum"]},
    "/v1/moderations": {"model": "m", "input": ["hello"]},
    "/v1/tokenize": {"model": "m", "prompt": "hello"},
    "/tokenize": {"model": "m", "prompt": "hello"},
}
_HEDGED = {"policy": "static", "delay": "1ms", "hedge_delay_min": "1ms", "budget": "100%"}


@pytest.mark.parametrize("path", _ASKED)
def test_one_replica_answers(path: str) -> None:
    """However late the answer is, one replica is asked, and the log has the API and why it was not hedged."""

    async def main() -> None:
        replica = {"ttft": "60ms"}
        async with serving({"a": replica, "b": replica}, hedge=_HEDGED) as site:
            request = request_bytes(json.dumps(_ASKED[path]).encode(), path)
            async with answer(site.port, request) as got:
                assert got.status == 200
                assert {"results", "count"} & json.loads(await got.body()).keys()
                assert got.headers["x-ttft-attempts"] == "1"
            (ended,) = [event for event in site.events if isinstance(event, RequestEnded)]
            assert (ended.api.value, ended.never_hedged) == (path.rpartition("/")[2], Denial.OFF)
            assert site.reached == 1

    run_real(main())


@pytest.mark.parametrize("path", _ASKED)
def test_a_failure_goes_to_another_replica(path: str) -> None:
    """A replica that fails is followed by another one; a request without a model reaches none."""

    async def main() -> None:
        async with serving({"a": {"faults": ["500 always"]}, "b": {}}) as site:
            for _ in range(3):
                async with answer(site.port, request_bytes(json.dumps(_ASKED[path]).encode(), path)) as got:
                    assert (got.status, got.headers["x-ttft-replica"]) == (200, "b")
                    await got.body()
            async with answer(site.port, request_bytes(b'{"query":"city"}', path)) as got:
                assert got.error(await got.body())["param"] == "model"

    run_real(main())


def test_a_silent_replica_is_not_waited_for() -> None:
    """Without an answer in time the next replica is asked, as for embeddings; nothing is learned from such requests."""

    async def main() -> None:
        profiles = {"a": {"faults": ["silence always"]}, "b": {}}
        async with serving(profiles, timeouts={"ttft_failover": "50ms"}) as site:
            body = json.dumps(_ASKED["/v1/rerank"]).encode()
            async with answer(site.port, request_bytes(body, "/v1/rerank")) as got:
                assert (got.status, got.headers["x-ttft-replica"]) == (200, "b")
            assert site.gateway is not None
            (pool,) = site.gateway.in_force.topology.models["m"].pools
            assert [pool.learning.predictor.predict(name, 0.0, 0.0, 0.0) for name in "ab"] == [None, None]

    run_real(main())


@pytest.mark.parametrize(
    ("path", "target"),
    [("/v1/rerank", b"/v1/rerank"), ("/v1/moderations", b"/v1/moderations"), ("/v1/tokenize", b"/tokenize")],
)
def test_bodies_pass_through(path: str, target: bytes) -> None:
    """The replica receives the caller's bytes with its own model name, at the path where engines serve the API."""
    received: list[tuple[bytes, bytes]] = []
    given = b'{"results": [ {"index":0} ],"x":1e2}'

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await read_request(reader))
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        writer.write(head % len(given) + given)

    async def main() -> None:
        own = {"a": {"model": "up", "apis": ["rerank", "moderations", "tokenize"]}}
        async with scripted(replica) as server:
            urls = {"a": f"http://127.0.0.1:{server.port}/v1"}
            body = b'{ "model" : "m", "documents":[ "a" ],"top_n":1.0}'
            async with (
                fronting(urls, kind="vllm", own=own) as site,
                answer(site.port, request_bytes(body, path)) as got,
            ):
                assert await got.body() == given
        head, sent = received[0]
        assert head.split(b" ")[1] == target
        assert sent == b'{ "model" : "up", "documents":[ "a" ],"top_n":1.0}'

    run_real(main())


def test_the_sdk_moderates() -> None:
    """The OpenAI SDK reads a moderation."""

    async def main() -> None:
        async with serving({"a": {}}) as site, async_client(site.url) as client:
            verdict = await client.moderations.create(model="m", input=["hello", "you"])
            assert [result.flagged for result in verdict.results] == [False, False]

    run_real(main())


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"tokens":[1]}', FrameKind.CONTENT),
        (b'[{"index":0,"score":0.5}]', FrameKind.CONTENT),
        (b'{"results":[],"error":null}', FrameKind.CONTENT),
        (b'{"error":{"message":"no"}}', FrameKind.ERROR),
        (b"{}", FrameKind.ERROR),
        (b"[]", FrameKind.ERROR),
        (b"3", FrameKind.ERROR),
        (b"<html>", FrameKind.ERROR),
        (b"", FrameKind.ERROR),
    ],
)
def test_what_is_an_answer(body: bytes, kind: FrameKind) -> None:
    """A 200 is an answer if it is an object or array without an error; all else is a failure of the replica."""
    frame = WholeAnswers().whole(call_of({"model": "m"}, Api.RERANK), body)
    assert (frame.kind, frame.raw) == (kind, body if kind is FrameKind.CONTENT else b"")


def test_usage_is_read() -> None:
    """Reported token counts are the request's usage."""
    frame = WholeAnswers().whole(call_of({"model": "m"}, Api.RERANK), b'{"results":[],"usage":{"prompt_tokens":7}}')
    assert frame.usage == Usage(7)
