"""Clients of every API at replicas that speak another one, over real sockets: one valid answer, whichever wins."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

import pytest

from anthropic_calls import assert_valid, data_in
from gateway.events import ParamsDropped
from gateway_fixture import Site, serving
from race_scenarios import Settings
from raw_http import answer, request_bytes
from running import run_real

CHAT, MESSAGES, COUNT = "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"
KINDS: Mapping[str, Mapping[str, object]] = {
    "o": {"apis": ["chat/completions"]},
    "a": {"kind": "anthropic"},
    "r": {"apis": ["responses"]},
}
HELLO = [{"role": "user", "content": "hello"}]
TOOL_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
PATIENT: Settings = {"tokens": 6, "gap": "1ms"}
HASTY = {"hedge": {"policy": "static", "delay": "10ms", "hedge_delay_min": "1ms", "budget": "100%"}}


def asked(path: str, *, stream: bool, **more: Any) -> bytes:
    """A request of a client of this API."""
    body: dict[str, Any] = {"model": "m", "stream": stream}
    if path == RESPONSES:
        body |= {"max_output_tokens": 6, "input": HELLO, "store": False}
    else:
        body |= {"max_tokens": 6, "messages": HELLO}
    body |= more
    return request_bytes(json.dumps(body).encode(), path)


def tools(path: str) -> dict[str, Any]:
    """A tool that must be called."""
    if path == CHAT:
        function = {"name": "weather", "parameters": TOOL_SCHEMA}
        return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    if path == RESPONSES:
        tool = {"type": "function", "name": "weather", "parameters": TOOL_SCHEMA, "strict": False}
        return {"tools": [tool], "tool_choice": "required"}
    return {"tools": [{"name": "weather", "input_schema": TOOL_SCHEMA}], "tool_choice": {"type": "any"}}


def text_of(path: str, raw: bytes, *, stream: bool) -> str:
    """What an answer says, of one that is valid and complete."""
    if path == RESPONSES:
        return _response_text(data_in(raw) if stream else json.loads(raw))
    if not stream:
        body = json.loads(raw)
        if path == CHAT:
            assert body["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls")
            message = body["choices"][0]["message"]
            return str(message["content"] or message["tool_calls"][0]["function"]["arguments"])
        assert body["stop_reason"] in ("end_turn", "max_tokens", "tool_use")
        block = body["content"][-1]
        return str(block["text"]) if block["type"] == "text" else json.dumps(block["input"])
    data = data_in(raw)
    if path == CHAT:
        assert data.pop() == "[DONE]"
        choices = [each["choices"][0] for each in data if each["choices"]]
        assert [each["finish_reason"] for each in choices].count(None) == len(choices) - 1
        calls = [each["delta"].get("tool_calls") for each in choices]
        pieces = [each["delta"].get("content") or "" for each in choices]
        return "".join(pieces) or "".join(call[0]["function"]["arguments"] for call in calls if call)
    assert_valid(raw)
    deltas = [each["delta"] for each in data if each["type"] == "content_block_delta"]
    return "".join(each.get("text") or each.get("partial_json") or "" for each in deltas)


def _response_text(told: Any) -> str:
    """The same of a response: the events of a stream, or the response itself."""
    if isinstance(told, list):
        assert (told[0]["type"], [each["sequence_number"] for each in told]) == (
            "response.created",
            [*range(len(told))],
        )
        ended = [each for each in told if each["type"] in ("response.completed", "response.incomplete")]
        assert ended == told[-1:]
        pieces = [
            each.get("delta", "") for each in told if each["type"].endswith(("output_text.delta", "arguments.delta"))
        ]
        text = "".join(pieces)
        assert text == _response_text(told[-1]["response"])
        return text
    last = told["output"][-1]
    return str(last["arguments"] if last["type"] == "function_call" else last["content"][0]["text"])


def both(profiles: Mapping[str, Settings], **settings: Any) -> Any:
    """A gateway before these replicas: o speaks OpenAI's API, a Anthropic's."""
    return serving(profiles, own={name: KINDS[name] for name in profiles}, **settings)


async def said(site: Site, path: str, *, stream: bool, **more: Any) -> tuple[str, dict[str, str]]:
    """What a client is told, and the headers."""
    async with answer(site.port, asked(path, stream=stream, **more)) as got:
        raw = await got.body()
        assert got.status == 200, raw
        return text_of(path, raw, stream=stream), got.headers


@pytest.mark.parametrize("replica", KINDS)
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_every_api_at_every_replica(path: str, replica: str) -> None:
    """Streamed or not, text, reasoning or a tool's call: a client hears what the replica has said, in its own API."""

    async def main() -> None:
        async with both({replica: {**PATIENT, "reasoning_tokens": 2}}) as site:
            streamed, _ = await said(site, path, stream=True, temperature=0)
            whole, _ = await said(site, path, stream=False, temperature=0)
            assert streamed == whole
            assert len(whole.split()) == 6
            call, _ = await said(site, path, stream=True, **tools(path))
            whole, _ = await said(site, path, stream=False, **tools(path))
            assert json.loads(call) == json.loads(whole) == {"city": "word"}

    run_real(main())


@pytest.mark.parametrize("slow", KINDS)
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_races_between_kinds(path: str, slow: str) -> None:
    """A race between two kinds of replicas gives one valid answer in the client's API, whichever wins."""

    async def main() -> None:
        late: Settings = {**PATIENT, "ttft": "10m"}
        profiles = {name: late if name == slow else PATIENT for name in KINDS}
        async with both(profiles, **HASTY) as site:
            winners = set()
            for stream in (True, False, True, False, True):
                _, headers = await said(site, path, stream=stream)
                winners.add(headers["x-ttft-replica"])
            assert slow not in winners
            await site.until_idle()

    run_real(main())


FAILING = ["error_event:0", "503", "429:20s", "empty", "cut_rst:0", "json_error"]


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("failing", KINDS)
def test_failures_before_content_go_to_the_other_kind(failing: str, subtests: pytest.Subtests, *, silent: bool) -> None:
    """What fails before its first content, in either API, costs the client nothing but time."""

    async def main() -> None:
        profiles = {failing: PATIENT, "a" if failing == "o" else "o": PATIENT}
        faults = ["silence"] if silent else FAILING
        timeouts = {"ttft_failover": "500ms"} if silent else {}
        async with both(profiles, models=len(FAILING), timeouts=timeouts) as site:
            for number, fault in enumerate(faults):
                site.replicas[failing].configure(faults=[fault])
                for path in (CHAT, MESSAGES, RESPONSES):
                    with subtests.test(f"{fault} {path}"):
                        for stream in (True, False):
                            _, headers = await said(site, path, stream=stream, model=f"m{number}")
                            assert headers["x-ttft-replica"] != failing

    run_real(main())


@pytest.mark.parametrize("replica", KINDS)
def test_broken_streams_end_with_the_clients_error(replica: str, subtests: pytest.Subtests) -> None:
    """A stream that breaks behind its first content ends with an error in the client's API, and not cleanly."""

    async def main() -> None:
        faults = ["error_event:3", "cut_rst:3", "cut_mid:3", "short:3"]
        async with both({replica: PATIENT}, models=len(faults)) as site:
            for number, fault in enumerate(faults):
                site.replicas[replica].configure(faults=[fault])
                with subtests.test(fault):
                    async with answer(site.port, asked(CHAT, stream=True, model=f"m{number}")) as got:
                        *before, last = data_in(await got.body())
                    assert last["error"]["message"]
                    assert "[DONE]" not in before
                    async with answer(site.port, asked(MESSAGES, stream=True, model=f"m{number}")) as got:
                        *before, last = data_in(await got.body())
                    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
                    assert "message_stop" not in [each["type"] for each in before]
                    async with answer(site.port, asked(RESPONSES, stream=True, model=f"m{number}")) as got:
                        *before, last = data_in(await got.body())
                    assert (last["type"], last["sequence_number"]) == ("response.failed", len(before))

    run_real(main())


@pytest.mark.parametrize("replica", ["o", "a"])
def test_errors_in_the_clients_words(replica: str) -> None:
    """Errors of replicas and of the gateway have the client's form, whoever made them."""

    async def main() -> None:
        async with both({replica: PATIENT}) as site:
            busy = ("429:20s", 429, "rate_limit_error") if replica == "o" else ("status:529", 529, "overloaded_error")
            for fault, status, kind in (
                busy,
                ("context_length", 400, "invalid_request_error"),
                ("401", 502, "api_error"),
            ):
                site.replicas[replica].configure(faults=[fault])
                async with answer(site.port, asked(MESSAGES, stream=True)) as got:
                    error = json.loads(await got.body())
                    assert (got.status, error["type"], error["error"]["type"]) == (status, "error", kind)
            for body, kind in (({"messages": []}, "invalid_request_error"), ({"model": "x"}, "not_found_error")):
                async with answer(site.port, asked(MESSAGES, stream=False, **body)) as got:
                    assert json.loads(await got.body())["error"]["type"] == kind

    run_real(main())


def test_tokens_are_counted_without_a_replica() -> None:
    """An estimate of a prompt's tokens comes from the gateway alone, with system and tools in it."""

    async def main() -> None:
        async with both({"a": PATIENT}) as site:

            async def counted(**body: Any) -> tuple[int, Any]:
                raw = request_bytes(json.dumps(body).encode(), COUNT)
                async with answer(site.port, raw) as got:
                    return got.status, json.loads(await got.body())

            status, short = await counted(model="m", messages=HELLO)
            assert (status, list(short)) == (200, ["input_tokens"])
            system = " ".join(f"Rule {number}: be as brief as you can." for number in range(40))
            _, long = await counted(model="m", messages=HELLO, system=system, **tools(MESSAGES))
            assert 300 < long["input_tokens"] - short["input_tokens"] < 600  # some ten a rule
            assert site.reached == 0
            for body, code, kind in (
                ({"model": "m"}, 400, "invalid_request_error"),
                ({"model": "x", "messages": HELLO}, 404, "not_found_error"),
                ({"model": "m", "messages": [{"role": "user"}]}, 400, "invalid_request_error"),
            ):
                status, error = await counted(**body)
                assert (status, error["error"]["type"]) == (code, kind)
            async with answer(site.port, request_bytes(b"", COUNT, "GET")) as got:
                assert got.status == 405

    run_real(main())


def test_the_keys_and_headers_of_anthropic() -> None:
    """A key may come as x-api-key; a replica gets its own key so, the API's version, and the betas of the client."""

    async def main() -> None:
        heard: list[bytes] = []
        connections: list[asyncio.Task[Any] | None] = []

        async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(asyncio.current_task())
            with contextlib.suppress(asyncio.IncompleteReadError):  # a connection that is held ready may bring nothing
                heard.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(upstream, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        row = {"name": "a", "kind": "anthropic", "base_url": f"http://127.0.0.1:{port}/v1", "api_key": "sk-upstream"}
        keys = [{"name": "team", "key": "sk-caller"}]
        async with server, serving({"b": PATIENT}, keys=keys, model={"replicas": [row]}) as site:
            sent = {"x-api-key": "sk-caller", "anthropic-beta": "context-1m", "anthropic-version": "2023-01-01"}
            body = json.dumps({"model": "m", "max_tokens": 6, "messages": HELLO}).encode()
            async with answer(site.port, request_bytes(body, MESSAGES, headers=sent)) as got:
                assert got.status >= 500
            async with answer(site.port, request_bytes(body, MESSAGES)) as got:
                assert (got.status, json.loads(await got.body())["error"]["type"]) == (401, "authentication_error")
        await asyncio.gather(*filter(None, connections))
        lines = heard[0].split(b"\r\n")
        assert lines[0] == b"POST /v1/messages HTTP/1.1"
        for line in (b"x-api-key: sk-upstream", b"anthropic-version: 2023-06-01", b"anthropic-beta: context-1m"):
            assert lines.count(line) == 1
        assert not any(b"sk-caller" in line or b"2023-01-01" in line for line in lines)

    run_real(main())


def test_what_one_kind_cannot_say_goes_to_the_other() -> None:
    """A parameter that only one kind of replica has words for goes there; alone, it is refused or dropped, and told."""

    async def main() -> None:
        async with both({"a": PATIENT, "o": PATIENT}) as site:
            for _ in range(4):
                _, headers = await said(site, CHAT, stream=True, seed=7)
                assert headers["x-ttft-replica"] == "o"
        async with both({"a": PATIENT}) as site, answer(site.port, asked(CHAT, stream=True, seed=7)) as got:
            error = got.error(await got.body())
            assert (got.status, error["param"], error["code"]) == (400, "seed", "unsupported_parameter")
        async with both({"a": PATIENT}, model={"drop_params": True}) as site:
            await said(site, CHAT, stream=True, seed=7, logprobs=True)
            dropped = [event for event in site.events if isinstance(event, ParamsDropped)]
            assert [(event.replica, sorted(event.params)) for event in dropped] == [("a", ["logprobs", "seed"])]

    run_real(main())
