"""Calls of coding agents, LibreChat and LiteLLM (`scripts/sdk-matrix --clis --record`), replayed over a scripted model.

tests/wire/recorded has a file for each agent, with shortened texts; fields, tools, headers and paths are unchanged.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from checkout import ROOT
from gateway_fixture import Site, fronting
from model_server import ModelReplica, model_replicas
from raw_http import answer, request_bytes
from recorded_calls import Recorded, load_calls
from running import run_real
from scripted_model import Turn, turn

NATIVE = {"claude": "anthropic", "codex": "openai", "opencode": "openai", "librechat": "openai", "litellm": "openai"}
AGENTS = {
    name: [call for call in load_calls(ROOT / f"tests/wire/recorded/{name}.jsonl") if call.method == "POST"]
    for name in NATIVE
}
FOLDER = "/project"
_NEVER_S = 3600.0


@asynccontextmanager
async def site(kind: str) -> AsyncIterator[tuple[Site, dict[str, ModelReplica]]]:
    """A gateway over a replica that sends only a head, and a quick one; requests go to them in turn."""
    hedge = {"policy": "static", "delay": "1ms", "hedge_delay_min": "1ms", "budget": "100%", "routing": "round_robin"}
    model = {"aliases": ["scripted"], "recovery": "off"}
    async with model_replicas(FOLDER, silent=_NEVER_S, quick=0.0) as replicas:
        urls = {name: replica.url for name, replica in replicas.items()}
        keys = {name: {"api_key": "k"} for name in urls}
        async with fronting(urls, kind=kind, own=keys, model=model, hedge=hedge) as opened:
            yield opened, replicas


def said(stream: bytes) -> Turn:
    """Return the text or the call in a stream of any API; the text of a chat completion in one piece."""
    if stream.startswith(b"{"):
        return Turn(json.loads(stream)["choices"][0]["message"]["content"])
    text, tool, arguments = "", "", ""
    for line in stream.splitlines():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        delta = event.get("delta")
        for choice in event.get("choices", ()):
            text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", ()):
                tool += call["function"].get("name") or ""
                arguments += call["function"].get("arguments") or ""
        if isinstance(delta, dict):
            text += delta.get("text", "")
            arguments += delta.get("partial_json", "")
        elif event.get("type") == "response.output_text.delta":
            text += event["delta"]
        elif event.get("type") == "response.function_call_arguments.delta":
            arguments += event["delta"]
        if event.get("type") in ("content_block_start", "response.output_item.added"):
            tool += event.get("content_block", event.get("item")).get("name", "")
    return Turn(text, tool, arguments)


async def replayed(opened: Site, call: Recorded) -> tuple[str, Turn]:
    """Send a call; return the result of its race and the answer."""
    body = json.dumps(call.body).encode()
    headers = {**call.headers, "authorization": "Bearer any"}
    async with answer(opened.port, request_bytes(body, call.path, call.method, headers)) as got:
        whole = await got.body()
        assert (got.status, got.headers["x-ttft-replica"]) == (200, "quick"), whole[:500]
        assert call.body is not None
        kind = "text/event-stream" if call.body["stream"] else "application/json"
        assert got.headers["content-type"].startswith(kind)
    return got.headers["x-ttft-result"], said(whole)


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
@pytest.mark.parametrize("agent", AGENTS)
def test_each_call_of_an_agent_is_answered_and_hedged(agent: str, kind: str) -> None:
    """Calls are accepted and streamed by both kinds of replicas, tools included, and a hedge wins against silence."""

    async def main() -> None:
        async with site(kind) as (opened, replicas):
            results = []
            for call in AGENTS[agent]:
                assert call.body is not None
                result, heard = await replayed(opened, call)
                results.append(result)
                expected = turn(call.body, FOLDER)
                assert (heard.text, heard.tool) == (expected.text, expected.tool)
                assert json.loads(heard.arguments or "0") == json.loads(expected.arguments or "0")
            assert "backup_won" in results
            assert replicas["silent"].answered == 0

    run_real(main())


@pytest.mark.parametrize("agent", AGENTS)
def test_a_native_replica_receives_the_agents_fields(agent: str) -> None:
    """The replica of the agent's own API receives every field as it is, the path's query, and the beta headers."""

    async def main() -> None:
        async with site(NATIVE[agent]) as (opened, replicas):
            for call in AGENTS[agent]:
                await replayed(opened, call)
                head, body = replicas["quick"].received[-1]
                assert call.body is not None
                own = {} if call.body["stream"] else {"stream": True, "stream_options": {"include_usage": True}}
                assert {**body, "model": "scripted"} == {**call.body, **own}  # an answer in one piece is assembled here
                sent = {
                    name.lower(): value
                    for name, _, value in (row.partition(": ") for row in head.decode().split("\r\n"))
                }
                for name in ("anthropic-beta", "anthropic-version"):
                    assert sent.get(name) == call.headers.get(name)
                assert "any" not in sent.get("authorization", "")

    run_real(main())


def test_the_probe_of_claude_code() -> None:
    """Claude Code probes the base URL with HEAD at its start; the response has no body, and the connection goes on."""

    async def main() -> None:
        probe, *_ = load_calls(ROOT / "tests/wire/recorded/claude.jsonl")
        assert (probe.method, probe.path) == ("HEAD", "/")
        async with site("anthropic") as (opened, _):
            raw = request_bytes(b"", probe.path, probe.method) + request_bytes(b"", "/v1/models", "GET")
            async with answer(opened.port, raw) as got:
                assert (got.status, got.headers["allow"]) == (405, "OPTIONS")
                assert (await got.reader.readline()).startswith(b"HTTP/1.1 200 ")

    run_real(main())
