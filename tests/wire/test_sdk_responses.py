"""The contract with the OpenAI SDK for the Responses API and embeddings: native, translated, and both in one race."""

import asyncio
import json
from collections.abc import AsyncIterable, Awaitable, Mapping
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel

from gateway.events import ParamsDropped
from gateway.simulated.stats import RequestResult
from gateway_fixture import serving
from race_scenarios import Settings
from running import run_real
from sdk_clients import HELLO, async_client

RACED: Settings = {"policy": "static", "delay": "1ms", "hedge_delay_min": "1ms", "budget": "100%"}
REPLICA: Settings = {"ttft": "8ms", "gap": "500us", "tokens": 8}
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}
ASKS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "messages": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]},
    "instructions": {"instructions": "be brief", "max_output_tokens": 3},
    "tools": {"tools": [WEATHER], "tool_choice": "required"},
    "format": {"text": {"format": {"type": "json_schema", "name": "a", "schema": PARAMETERS}}},
    "not stored": {"store": False, "metadata": {"a": "b"}},
    "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
}
CHAT_ONLY = {"apis": ["chat/completions"]}
SPOKEN: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "native": {},
    "translated": {"a": CHAT_ONLY, "b": CHAT_ONLY},
    "mixed": {"b": CHAT_ONLY},
}


def _without_ids(value: Any) -> Any:
    """A value without the parts that are new in each answer."""
    if isinstance(value, dict):
        return {name: _without_ids(each) for name, each in value.items() if name not in ("id", "call_id", "item_id")}
    return [_without_ids(each) for each in value] if isinstance(value, list) else value


async def _read(call: Awaitable[AsyncIterable[Any]], events: list[Any]) -> None:
    """Add the events of a stream to a list, also of one that fails."""
    async for event in await call:
        events += [event]


async def _compare(client: openai.AsyncOpenAI, ask: Mapping[str, Any]) -> None:
    """An answer is the response in the last event of the same answer's stream, and the deltas are its text."""
    fields: dict[str, Any] = {"model": "m", "input": "hello", "temperature": 0, **ask}
    whole = await client.responses.create(**fields)
    events = [event async for event in await client.responses.create(**fields, stream=True)]
    last = events[-1]
    status = "incomplete" if "max_output_tokens" in ask else "completed"
    assert (whole.status, last.type) == (status, f"response.{status}")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert _without_ids(whole.model_dump()) == _without_ids(last.response.model_dump())
    assert whole.usage is not None
    assert whole.usage.output_tokens > 0


@pytest.mark.parametrize("spoken", SPOKEN)
def test_answers_are_the_same_streamed_or_not(spoken: str, subtests: pytest.Subtests) -> None:
    """Whatever the replicas speak, streams and answers in one piece say the same, and races mix them."""

    async def main() -> None:
        profiles = {"a": REPLICA, "b": REPLICA}
        async with (
            serving(profiles, alike=True, hedge=RACED, own=SPOKEN[spoken]) as site,
            async_client(site.url) as client,
        ):
            for name, ask in ASKS.items():
                with subtests.test(name):
                    await _compare(client, ask)

    run_real(main())


class Weather(BaseModel):
    """What the SDK parses an answer as."""

    town: str
    days: int


@pytest.mark.parametrize("spoken", ["native", "translated"])
def test_the_sdks_own_helpers_work(spoken: str) -> None:
    """Structured output, a tool's round trip and the streaming helper, which checks every event against its state."""

    async def main() -> None:
        async with (
            serving({"a": REPLICA, "b": REPLICA}, hedge=RACED, own=SPOKEN[spoken]) as site,
            async_client(site.url) as client,
        ):
            parsed = await client.responses.parse(model="m", input="hello", text_format=Weather)
            assert isinstance(parsed.output_parsed, Weather)
            async with client.responses.stream(model="m", input="hello", text_format=Weather) as stream:
                async for _ in stream:
                    pass
                final = await stream.get_final_response()
            assert isinstance(final.output_parsed, Weather)
            tools: Any = [WEATHER]
            called = await client.responses.create(model="m", input="hello", tools=tools, tool_choice="required")
            (call,) = called.output
            assert isinstance(call, ResponseFunctionToolCall)
            assert json.loads(call.arguments).keys() == PARAMETERS["properties"].keys()
            back: Any = [
                {"role": "user", "content": "hello"},
                call.model_dump(exclude_none=True),
                {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
            ]
            assert (await client.responses.create(model="m", input=back, tools=tools)).output_text

    run_real(main())


@pytest.mark.parametrize("spoken", ["native", "translated"])
def test_a_cut_stream_ends_with_a_failed_response(spoken: str) -> None:
    """What cannot be completed raises an exception of the SDK, after the events that had come."""

    async def main() -> None:
        broken = {**REPLICA, "faults": ["cut_fin:8 always"]}
        async with serving({"a": broken, "b": broken}, own=SPOKEN[spoken]) as site, async_client(site.url) as client:
            events: list[Any] = []
            with pytest.raises(openai.APIError) as cut:
                await _read(client.responses.create(model="m", input="hello", stream=True), events)
            assert cut.value.code == "upstream_cut"
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert events[-1].type == "response.output_text.delta"
            with pytest.raises(openai.APIStatusError) as failed:
                await client.responses.create(model="m", input="hello")
            assert failed.value.status_code == 502

    run_real(main())


def test_errors_before_a_stream_have_their_status() -> None:
    """A replica's rate limit and the caller's own mistakes raise the SDK's exceptions."""

    async def main() -> None:
        limited = {**REPLICA, "faults": ["429:openai,1s always"]}
        async with (
            serving({"a": limited}, timeouts={"retry_after_max": "0s"}) as site,
            async_client(site.url) as client,
        ):
            with pytest.raises(openai.RateLimitError):
                await client.responses.create(model="m", input="hello", stream=True)
            with pytest.raises(openai.BadRequestError) as wrong:
                await client.responses.create(model="m", input="hello", background=True)
            assert wrong.value.param == "background"

    run_real(main())


def test_what_no_replica_can_do_is_refused_by_name() -> None:
    """A translated request that needs what is not there names the field, and no replica has seen it."""

    async def main() -> None:
        async with (
            serving({"a": REPLICA, "b": REPLICA}, own=SPOKEN["translated"]) as site,
            async_client(site.url) as client,
        ):
            for field, ask in (
                ("store", {"store": True}),
                ("previous_response_id", {"previous_response_id": "resp_1"}),
                ("tools[0]", {"tools": [{"type": "web_search"}]}),
            ):
                fields: Any = {"model": "m", "input": "hello", **ask}
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.responses.create(**fields)
                assert (refused.value.param, refused.value.code) == (field, "unsupported_parameter")
            assert site.reached == 0

    run_real(main())


def test_what_may_be_dropped_is_dropped_and_told() -> None:
    """Where the configuration allows it, a field without words is left out, and the log names it."""

    async def main() -> None:
        model = {"drop_params": True}
        async with serving({"a": REPLICA}, own={"a": CHAT_ONLY}, model=model) as site, async_client(site.url) as client:
            answer = await client.responses.create(model="m", input="hello", store=True)
            assert answer.model_dump()["store"] is False  # it says so
            dropped = [event.params for event in site.events if isinstance(event, ParamsDropped)]
            assert dropped == [("store",)]

    run_real(main())


def test_what_goes_on_with_an_answer_goes_to_its_replica() -> None:
    """A `previous_response_id` is sent to the replica that gave it, and never to a second one."""

    async def main() -> None:
        async with (
            serving({"a": REPLICA, "b": REPLICA, "c": REPLICA}, hedge=RACED) as site,
            async_client(site.url) as client,
        ):
            for _ in range(4):
                raw = await client.responses.with_raw_response.create(model="m", input="hello", store=True)
                winner, first = raw.headers["x-ttft-replica"], raw.parse().id
                again = await client.responses.with_raw_response.create(
                    model="m", input="and?", extra_body={"previous_response_id": first}
                )
                assert again.headers["x-ttft-replica"] == winner
                assert again.headers["x-ttft-attempts"] == "1"

    run_real(main())


def test_a_stored_answer_belongs_to_its_key() -> None:
    """Another key, with any model, gets OpenAI's 404 for an unknown id, and no replica gets the request."""

    async def main() -> None:
        keys = [{"name": name, "key": f"sk-{name}"} for name in "ab"]
        async with (
            serving({"a": REPLICA, "b": REPLICA}, keys=keys, models=2) as site,
            async_client(site.url) as client,
        ):
            own, other = client.with_options(api_key="sk-a"), client.with_options(api_key="sk-b")
            first = await own.responses.create(model="m0", input="hello", store=True)
            for model in ("m0", "m1"):
                reached = site.reached
                with pytest.raises(openai.NotFoundError) as error:
                    await other.responses.create(model=model, input="and?", previous_response_id=first.id)
                assert (error.value.param, error.value.code) == ("previous_response_id", "previous_response_not_found")
                assert site.reached == reached
            with pytest.raises(openai.NotFoundError) as error:
                await own.responses.create(model="m0", input="and?", previous_response_id="r" * 1_000_000)
            assert len(error.value.message) < 500
            for asking, answer_id in ((own, first.id), (other, "resp_unknown")):
                again = await asking.responses.create(model="m0", input="and?", previous_response_id=answer_id)
                assert again.status == "completed"

    run_real(main())


def test_what_a_provider_keeps_unasked_is_not_hedged() -> None:
    """At kinds that keep answers, saying nothing of `store` is asking to keep: only `store: false` is hedged."""

    async def main() -> None:
        slow = {**REPLICA, "ttft": "60ms"}
        async with (
            serving({"a": slow, "b": slow}, hedge=RACED, kind="openai") as site,
            async_client(site.url) as client,
        ):
            for store, attempts in (({}, "1"), ({"store": None}, "1"), ({"store": False}, "2")):
                raw = await client.responses.with_raw_response.create(model="m", input="hello", extra_body=store)
                assert raw.headers["x-ttft-attempts"] == attempts

    run_real(main())


def test_a_client_that_leaves_stops_the_work() -> None:
    """Closing the stream cancels the replica's work."""

    async def main() -> None:
        slow = {**REPLICA, "tokens": 1000, "gap": "1s"}
        async with serving({"a": slow}) as site, async_client(site.url) as client:
            stream = await client.responses.create(model="m", input="hello", stream=True)
            async for event in stream:
                if event.type == "response.output_text.delta":
                    break
            await stream.close()
            await site.until_idle()
            assert [record.ended for record in site.records()] == [RequestResult.CANCELLED]

    run_real(main())


def test_chat_on_a_replica_that_has_only_responses() -> None:
    """Chat completions work where a model is served in the Responses API alone, tools and streams included."""

    async def main() -> None:
        spoken = {name: {"apis": ["responses"]} for name in "ab"}
        async with (
            serving({"a": REPLICA, "b": REPLICA}, alike=True, hedge=RACED, own=spoken) as site,
            async_client(site.url) as client,
        ):
            usage: Any = {"include_usage": True}
            whole = await client.chat.completions.create(model="m", messages=HELLO, temperature=0)
            stream = await client.chat.completions.create(
                model="m", messages=HELLO, temperature=0, stream=True, stream_options=usage
            )
            chunks = [chunk async for chunk in stream]
            said = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
            assert said == whole.choices[0].message.content != ""
            assert (chunks[-1].usage, chunks[-2].choices[0].finish_reason) == (whole.usage, "stop")
            tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
            called = await client.chat.completions.create(
                model="m", messages=HELLO, tools=tools, tool_choice="required"
            )
            assert called.choices[0].finish_reason == "tool_calls"
            calls = called.choices[0].message.model_dump()["tool_calls"]
            assert [json.loads(call["function"]["arguments"]).keys() for call in calls] == [{"town", "days"}]
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="m", messages=HELLO, seed=3)
            assert refused.value.param == "seed"

    run_real(main())


def test_embeddings() -> None:
    """Numbers and base64 come as the replica gives them, arrays of texts and tokens included, and they are raced."""

    async def main() -> None:
        slow = {**REPLICA, "ttft": "300ms"}
        hedge = {**RACED, "delay": "20ms"}
        async with (
            serving({"a": REPLICA, "b": slow}, alike=True, hedge=hedge) as site,
            async_client(site.url) as client,
            async_client(site.replicas["a"].url) as direct,
        ):
            for given in ("hello", ["hello", "good bye"], [1, 2, 3], [[1, 2], [3]]):
                for form in ("float", "base64"):
                    fields: Any = {"model": "m", "input": given, "encoding_format": form, "dimensions": 5}
                    got = await client.embeddings.with_raw_response.create(**fields)
                    own = await direct.embeddings.with_raw_response.create(**fields)
                    assert got.content == own.content
            vectors = await asyncio.gather(*(client.embeddings.create(model="m", input=["a", "b"]) for _ in range(4)))
            assert all(len(each.data[1].embedding) == 8 for each in vectors)
            with pytest.raises(openai.BadRequestError):
                await client.embeddings.create(model="m", input=[])

    run_real(main())
