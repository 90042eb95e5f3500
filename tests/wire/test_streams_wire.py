"""Streams on real sockets: the same bytes at both ends, memory bounded by back-pressure, no broken stream that looks whole."""

import asyncio
from collections.abc import Callable

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from gateway_fixture import Site, serving
from race_scenarios import Settings
from raw_http import answer, asking
from running import run_real
from stream_scenarios import compared, slowed

_HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
_TOKENS = 12
_BROKEN = (
    "cut_rst:3",
    "cut_fin:3",  # looks complete to HTTP
    "cut_chunked:3",
    "cut_mid:3",
    "short:3",
    "error_frame:3",
    "error_event:3",
    "finish_error:3",
    "malformed:2+malformed:3",
    "stall:3,30s",
)


def test_bytes_are_the_same_at_both_ends() -> None:
    """Whatever way a replica writes its bytes, its hash of them is the client's, in parallel and raced."""
    result = run_real(compared(36))
    assert (result.equal, result.unequal) == (36, 0)
    assert result.raced


def test_a_slow_reader_pauses_its_upstream() -> None:
    """A client that does not read holds up its replica, not the gateway's memory, and is not taken for a stall."""
    result = run_real(slowed(2, wait_s=1.0))
    assert result.paused
    assert result.taken_bytes_max < result.whole_bytes * 2 // 3  # the rest waits at the replica
    assert result.equal == 2


def test_a_large_event_does_not_spoil_its_upstream_connection() -> None:
    """An answer that is over while its upstream is paused leaves a connection behind that the next request can use."""

    async def main() -> None:
        profile: Settings = {"tokens": 3, "faults": ["big:100000+coalesce:10"]}
        async with serving({"a": profile}, timeouts={"ttft_last": "3s"}) as site:
            for _ in range(3):
                async with answer(site.port, asking()) as got:
                    assert len(await got.body()) > 100_000
            assert site.replicas["a"].stats.connections_opened == 1

    run_real(main())


def _breaking(fault: str, check: Callable[[Site], None]) -> None:
    """Run a synchronous check against a gateway whose only replica breaks its streams."""

    async def main() -> None:
        profile: Settings = {"ttft": "5ms", "gap": "1ms", "tokens": _TOKENS, "faults": [fault]}
        async with serving({"a": profile}, timeouts={"stall": "300ms"}) as site:
            await asyncio.to_thread(check, site)

    run_real(main())


@pytest.mark.parametrize("fault", _BROKEN)
def test_a_broken_stream_makes_the_sdk_raise(fault: str) -> None:
    """A stream cut, stalled or malformed in the middle gives what had come, and then an error."""

    def check(site: Site) -> None:
        with openai.OpenAI(base_url=site.url, api_key="none", max_retries=0) as client:
            words = []
            with pytest.raises(openai.APIError) as raised:
                for chunk in client.chat.completions.create(model="m", messages=_HELLO, stream=True):
                    words += [choice.delta.content for choice in chunk.choices if choice.delta.content]
        assert 2 <= len(words) < _TOKENS
        assert raised.value.code

    _breaking(fault, check)


@pytest.mark.parametrize("fault", _BROKEN)
def test_a_broken_stream_makes_the_async_sdk_raise(fault: str) -> None:
    """The same for the SDK's asynchronous client."""

    async def main() -> None:
        profile: Settings = {"ttft": "5ms", "gap": "1ms", "tokens": _TOKENS, "faults": [fault]}
        async with (
            serving({"a": profile}, timeouts={"stall": "300ms"}) as site,
            openai.AsyncOpenAI(base_url=site.url, api_key="none", max_retries=0) as client,
        ):
            words = 0
            with pytest.raises(openai.APIError) as raised:
                async for chunk in await client.chat.completions.create(model="m", messages=_HELLO, stream=True):
                    words += any(choice.delta.content for choice in chunk.choices)
        assert 2 <= words < _TOKENS
        assert raised.value.code

    run_real(main())


@pytest.mark.parametrize("fault", _BROKEN)
def test_a_broken_answer_is_an_error_status_where_no_stream_was_asked_for(fault: str) -> None:
    """A non-streaming request whose replica breaks off gets an error, never half an answer."""

    def check(site: Site) -> None:
        with (
            openai.OpenAI(base_url=site.url, api_key="none", max_retries=0) as client,
            pytest.raises(openai.InternalServerError),
        ):
            client.chat.completions.create(model="m", messages=_HELLO)

    _breaking(fault, check)


@pytest.mark.parametrize("fault", _BROKEN)
def test_a_broken_answer_comes_from_another_replica_where_no_stream_was_asked_for(fault: str) -> None:
    """Nothing was sent yet, so a cut costs a non-streaming request nothing but time."""

    async def main() -> None:
        good: Settings = {"ttft": "5ms", "gap": "1ms", "tokens": _TOKENS}
        async with (
            serving({"bad": {**good, "faults": [fault]}}, fallback={"good": good}, timeouts={"stall": "300ms"}) as site,
            openai.AsyncOpenAI(base_url=site.url, api_key="none", max_retries=0) as client,
        ):
            completion = await client.chat.completions.create(model="m", messages=_HELLO)
            assert len((completion.choices[0].message.content or "").split()) == _TOKENS
            assert site.replicas["bad"].stats.requests == 1

    run_real(main())


def test_one_malformed_event_costs_only_itself() -> None:
    """A single event that is not JSON is left out, and the stream ends as it should."""

    def check(site: Site) -> None:
        with openai.OpenAI(base_url=site.url, api_key="none", max_retries=0) as client:
            chunks = list(client.chat.completions.create(model="m", messages=_HELLO, stream=True))
        words = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
        assert len(words) == _TOKENS
        assert chunks[-1].choices[0].finish_reason == "stop"

    _breaking("malformed:2", check)


@pytest.mark.parametrize("fault", ["fields", "pings", "no_done"])
def test_oddities_do_not_trip_the_sdk(fault: str) -> None:
    """Ids, retry fields, events without data, comments and a missing closing event leave the SDK a whole answer."""

    def check(site: Site) -> None:
        with openai.OpenAI(base_url=site.url, api_key="none", max_retries=0) as client:
            chunks = list(client.chat.completions.create(model="m", messages=_HELLO, stream=True))
        assert sum(bool(chunk.choices[0].delta.content) for chunk in chunks) == _TOKENS

    _breaking(fault, check)
