"""The contract with the OpenAI Python SDK: what it can ask for comes back as it would from the upstream itself."""

import asyncio
from collections.abc import Mapping
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from gateway.simulated.profile import parse_profile
from gateway.simulated.stats import RequestResult
from gateway_fixture import Site, serving, until
from race_scenarios import Settings
from running import run_real
from sdk_clients import HELLO, async_client, sync_client, words_of

RACED: Settings = {"policy": "static", "delay": "1ms", "hedge_delay_min": "1ms", "budget": "100%"}
REPLICA: Settings = {"ttft": "8ms", "gap": "500us", "tokens": 8}
WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}},
}
TOOLS = [{"type": "function", "function": WEATHER}]
ADDRESS = {"type": "object", "properties": {"street": {"type": "string"}, "number": {"type": "integer"}}}
CHATS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "n=2": {"n": 2},
    "max_tokens": {"max_tokens": 3},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "n=2, logprobs": {"n": 2, "logprobs": True},
    "tools": {"tools": TOOLS, "tool_choice": "required"},
    "named tool": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    "json_schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "address", "schema": ADDRESS}}},
    "json_object": {"response_format": {"type": "json_object"}},
    "unknown fields": {"extra_body": {"top_k": 5, "x": {"y": [1, None, "é🙂"]}}},
}
COMPLETIONS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"prompt": "hello"},
    "n=2": {"prompt": "hello", "n": 2},
    "several prompts": {"prompt": ["hello", "good bye"]},
    "logprobs": {"prompt": "hello", "logprobs": 2},
    "max_tokens": {"prompt": "hello", "max_tokens": 3},
}
FLAVOURS: Mapping[str, Settings] = {
    "azure": {"provider": "azure"},
    "reasoning": {"reasoning_tokens": 4},
    "vllm's reasoning": {"reasoning_tokens": 4, "reasoning_key": "reasoning"},
    "role in every chunk": {"role": "with"},
    "refusal": {"faults": ["refusal"]},
    "filtered": {"faults": ["content_filter:3"]},
    "comments": {"first_comment": "OPENROUTER PROCESSING"},
}


async def _answers(url: str, ask: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the SDK makes of a request's answer, not streamed and streamed; ids are new each time."""
    async with async_client(url) as client:
        create: Any = client.completions if "prompt" in ask else client.chat.completions
        prompt = {} if "prompt" in ask else {"messages": HELLO}
        fields = {"model": "m", "temperature": 0, **prompt, **ask}
        whole = await create.create(**fields)
        stream = await create.create(**fields, stream=True, stream_options={"include_usage": True})
        assert whole.id
        return whole.model_dump(exclude={"id"}), [chunk.model_dump(exclude={"id"}) async for chunk in stream]


def _compare(
    subtests: pytest.Subtests, asks: Mapping[str, Mapping[str, Any]], flavours: Mapping[str, Settings]
) -> None:
    """Each request to the gateway and to a replica gives the same, whatever kind of server that is."""

    async def main() -> None:
        async with serving({"a": REPLICA, "b": REPLICA}, alike=True, hedge=RACED) as site:
            for flavour, profile in flavours.items():
                for server in site.replicas.values():
                    server.replica.profile = parse_profile({**REPLICA, **profile})
                for name, ask in asks.items():
                    with subtests.test(f"{flavour} {name}"):
                        whole, chunks = await _answers(site.replicas["a"].url, ask)
                        assert await _answers(site.url, ask) == (whole, chunks)
                        assert chunks

    run_real(main())


def test_a_chat_completion_is_what_the_upstream_would_have_answered(subtests: pytest.Subtests) -> None:
    """Not streamed and streamed, every field is the upstream's own, although replicas were raced."""
    _compare(subtests, CHATS, {"": {}})


def test_a_legacy_completion_is_what_the_upstream_would_have_answered(subtests: pytest.Subtests) -> None:
    """The same for POST /v1/completions."""
    _compare(subtests, COMPLETIONS, {"": {}})


def test_whatever_the_upstream_is_like_its_answer_stays_its_own(subtests: pytest.Subtests) -> None:
    """Filters, reasoning, refusals and comments of many kinds of servers come out as they went in."""
    _compare(subtests, {"": {}}, FLAVOURS)


def test_a_stream_is_made_of_an_answer_that_was_not_one() -> None:
    """A server that answers a stream's request with a JSON body has its whole answer streamed."""

    async def main() -> None:
        profile: Settings = {**REPLICA, "faults": ["json_answer"]}
        async with serving({"a": profile}) as site:
            whole, chunks = await _answers(site.url, {})
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        text = "".join(choice["delta"]["content"] or "" for choice in choices)
        assert text == whole["choices"][0]["message"]["content"]
        assert choices[-1]["finish_reason"] == "stop"
        assert chunks[-1]["usage"] == whole["usage"]

    run_real(main())


def test_usage_comes_only_when_it_was_asked_for() -> None:
    """The gateway asks every upstream for token counts, and keeps them to itself unless the client did, too."""

    async def main() -> None:
        async with serving({"a": REPLICA}) as site, async_client(site.url) as client:
            stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
            plain = [chunk async for chunk in stream]
            stream = await client.chat.completions.create(
                model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}
            )
            asked = [chunk async for chunk in stream]
        assert len(words_of(plain)) == len(words_of(asked)) == 8
        assert all(chunk.choices and chunk.usage is None for chunk in plain)
        assert asked[-1].usage is not None
        assert asked[-1].usage.completion_tokens == 8

    run_real(main())


class Address(BaseModel):
    street: str
    number: int


def test_structured_output_is_parsed() -> None:
    """`parse` with a pydantic model gives an object of it, assembled or streamed."""

    async def main() -> None:
        async with serving({"a": REPLICA, "b": REPLICA}, hedge=RACED) as site, async_client(site.url) as client:
            parsed = await client.chat.completions.parse(model="m", messages=HELLO, response_format=Address)
            async with client.chat.completions.stream(model="m", messages=HELLO, response_format=Address) as stream:
                streamed = await stream.get_final_completion()
        for completion in (parsed, streamed):
            assert completion.choices[0].message.parsed == Address(street="word", number=7)

    run_real(main())


def test_response_headers_tell_of_the_race() -> None:
    """Raw responses carry the request's id, the winner, attempts, time and result, nothing of the upstream's own."""

    async def main() -> None:
        profiles: dict[str, Settings] = {
            name: {**REPLICA, "ttft": "60ms", "provider": "openai", "extra_headers": ["set-cookie: a=b"]}
            for name in "ab"
        }
        async with serving(profiles, hedge={**RACED, "delay": "10ms"}) as site, async_client(site.url) as client:
            for fields in ({}, {"stream": True}):
                raw = await client.chat.completions.with_raw_response.create(
                    model="m", messages=HELLO, extra_body=fields
                )
                headers = raw.headers
                await raw.http_response.aread()
                assert raw.request_id
                assert headers["x-ttft-replica"] in profiles
                assert headers["x-ttft-attempts"] == "2"
                assert headers["x-ttft-result"] in ("backup_won", "backup_lost")
                assert float(headers["x-ttft-ms"]) > 50
                assert headers["x-upstream-request-id"] in site.replicas[headers["x-ttft-replica"]].stats.records
                assert not [name for name in headers if "ratelimit" in name or name == "set-cookie"]

    run_real(main())


@pytest.mark.parametrize("began", [False, True])
def test_cancelling_a_task_cancels_upstream(*, began: bool) -> None:
    """A cancelled asyncio task closes every upstream attempt, before the first token and after it."""

    async def main() -> None:
        profile: Settings = {"ttft": "10ms" if began else "10m", "gap": "1s", "tokens": 5000}
        hedge = {"policy": "off"} if began else RACED
        async with serving({"a": profile, "b": profile}, hedge=hedge) as site, async_client(site.url) as client:
            first = asyncio.Event()

            async def ask() -> None:
                async for _ in await client.chat.completions.create(model="m", messages=HELLO, stream=True):
                    first.set()

            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(ask())
                await until(lambda: first.is_set() if began else site.reached == 2)
                task.cancel()
            await site.until_idle()
            assert {record.ended for record in site.records()} == {RequestResult.CANCELLED}

    run_real(main())


def test_an_impatient_client_cancels_upstream() -> None:
    """The SDK's own timeout ends what it waits for."""

    async def main() -> None:
        profiles: dict[str, Settings] = {"a": {"ttft": "10m"}, "b": {"ttft": "10m"}}
        async with serving(profiles, hedge=RACED) as site, async_client(site.url) as client:
            while not site.reached:  # a busy machine may need more time to get so far
                # The SDK sends its timeout, so the gateway's own 504 may come first.
                with pytest.raises((openai.APITimeoutError, openai.InternalServerError)):
                    await client.chat.completions.create(model="m", messages=HELLO, timeout=0.3)
            await site.until_idle()
            assert {record.ended for record in site.records()} == {RequestResult.CANCELLED}

    run_real(main())


def test_signs_of_life_do_not_trip_the_sdk() -> None:
    """After an early 200 with comments a stream goes on as ever, and a failure is still an exception."""

    async def main() -> None:
        signs = {"commit_status_after": "50ms", "keepalive_interval": "20ms"}
        slow: Settings = {**REPLICA, "ttft": "200ms"}
        async with serving({"a": slow}, timeouts=signs) as site, async_client(site.url) as client:
            stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
            assert len(words_of([chunk async for chunk in stream])) == 8
        silent: Settings = {**REPLICA, "faults": ["silence"]}
        patience = {"ttft_failover": "400ms", "ttft_max": "400ms"}
        async with serving({"a": silent}, timeouts={**signs, **patience}) as site, async_client(site.url) as client:
            with pytest.raises(openai.APIError, match="no first token"):
                async for _ in await client.chat.completions.create(model="m", messages=HELLO, stream=True):
                    pass

    run_real(main())


def test_the_synchronous_client_is_served_alike() -> None:
    """Streaming, not streaming, models and raw responses from a thread."""

    def check(site: Site) -> None:
        with sync_client(site.url) as client:
            completion = client.chat.completions.create(model="m", messages=HELLO, temperature=0)
            with client.chat.completions.create(model="m", messages=HELLO, temperature=0, stream=True) as stream:
                words = words_of(stream)
            assert "".join(words) == completion.choices[0].message.content
            assert [model.id for model in client.models.list()] == ["m"]
            assert client.models.retrieve("m").object == "model"
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve("no-such-model")
            with client.chat.completions.with_streaming_response.create(model="m", messages=HELLO) as response:
                assert response.headers["x-ttft-result"]
                assert response.json()

    async def main() -> None:
        async with serving({"a": REPLICA, "b": REPLICA}, alike=True, hedge=RACED) as site:
            await asyncio.to_thread(check, site)

    run_real(main())
