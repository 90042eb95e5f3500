"""Streams on real sockets: the same bytes at both ends, back-pressure, and no broken stream that looks whole."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import openai
import pytest

from gateway_fixture import Site, serving
from race_scenarios import Settings
from raw_http import answer, asking
from running import run_real
from sdk_clients import HELLO, async_client, read, read_async, sync_client, words_of
from stream_scenarios import BREAKING, BROKEN, STALL, STALLING, TOKENS, compared, slowed


def test_bytes_are_the_same_at_both_ends() -> None:
    """Whatever way a replica writes its bytes, its hash of them is the client's, in parallel and raced."""
    result = run_real(compared(36))
    assert (result.equal, result.unequal) == (36, 0)
    assert result.raced


def test_a_slow_reader_pauses_its_upstream() -> None:
    """A client that does not read holds up its replica, not the gateway's memory, and is not taken for a stall."""
    result = run_real(slowed(1, stall_s=2.0))
    assert result.paused
    assert result.taken_bytes_max < result.whole_bytes * 2 // 3  # the rest waits at the replica
    assert result.equal == 1


def test_a_large_event_does_not_spoil_its_upstream_connection() -> None:
    """An answer that is over while its upstream is paused leaves a connection behind that the next request can use."""

    async def main() -> None:
        profile: Settings = {"tokens": 3, "faults": ["big:100000+coalesce:10"]}
        async with serving({"a": profile}, timeouts={"ttft_max": "30s"}) as site:
            for _ in range(3):
                async with answer(site.port, asking()) as got:
                    assert len(await got.body()) > 100_000
            assert site.replicas["a"].stats.connections_opened <= 2  # one of them a spare

    run_real(main())


def _breaking(
    subtests: pytest.Subtests,
    faults: Sequence[str],
    check: Callable[[Site, str], Awaitable[None]],
    fallback: Mapping[str, Settings] | None = None,
) -> None:
    """Check each fault with a model of its own; its first pool is one replica that shows the fault."""

    async def main(faults: Sequence[str], timeouts: Settings) -> None:
        async with serving({"a": BREAKING}, fallback=fallback, models=len(BROKEN), timeouts=timeouts) as site:
            for number, fault in enumerate(faults):
                site.replicas["a"].configure(faults=[fault])
                with subtests.test(fault):
                    await check(site, f"m{number}")

    run_real(main([fault for fault in faults if fault != STALLING], {}))
    if STALLING in faults:
        run_real(main([STALLING], STALL))


def test_a_broken_stream_makes_the_sdk_raise(subtests: pytest.Subtests) -> None:
    """A stream cut, stalled or malformed in the middle gives what had come, and then an error."""

    def check(url: str, model: str) -> None:
        words: list[str] = []
        with sync_client(url) as client, pytest.raises(openai.APIError) as raised:
            read(client, model, words)
        assert 2 <= len(words) < TOKENS
        assert raised.value.code

    _breaking(subtests, BROKEN, lambda site, model: asyncio.to_thread(check, site.url, model))


def test_a_broken_stream_makes_the_async_sdk_raise(subtests: pytest.Subtests) -> None:
    """The same for the SDK's asynchronous client."""

    async def check(site: Site, model: str) -> None:
        words: list[str] = []
        async with async_client(site.url) as client:
            with pytest.raises(openai.APIError) as raised:
                await read_async(client, model, words)
        assert 2 <= len(words) < TOKENS
        assert raised.value.code

    _breaking(subtests, BROKEN, check)


def test_a_broken_answer_is_an_error_status_where_no_stream_was_asked_for(subtests: pytest.Subtests) -> None:
    """A non-streaming request gets an error, never half an answer, if its only replica breaks off."""

    async def check(site: Site, model: str) -> None:
        async with async_client(site.url) as client:
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(model=model, messages=HELLO)

    _breaking(subtests, BROKEN, check)


def test_a_broken_answer_comes_from_another_replica_where_no_stream_was_asked_for(subtests: pytest.Subtests) -> None:
    """Nothing was sent yet, so a cut costs a non-streaming request nothing but time."""

    async def check(site: Site, model: str) -> None:
        asked = site.replicas["a"].stats.requests
        async with async_client(site.url) as client:
            completion = await client.chat.completions.create(model=model, messages=HELLO)
        assert len((completion.choices[0].message.content or "").split()) == TOKENS
        assert site.replicas["a"].stats.requests > asked

    _breaking(subtests, BROKEN, check, fallback={"b": BREAKING})


def test_oddities_do_not_trip_the_sdk(subtests: pytest.Subtests) -> None:
    """One event that is no JSON, ids, retry fields, events without data, comments, no closing event: a whole answer."""

    async def check(site: Site, model: str) -> None:
        async with async_client(site.url) as client:
            stream = await client.chat.completions.create(model=model, messages=HELLO, stream=True)
            chunks = [chunk async for chunk in stream]
        assert len(words_of(chunks)) == TOKENS
        assert chunks[-1].choices[0].finish_reason == "stop"

    _breaking(subtests, ["malformed:2", "fields", "pings", "no_done"], check)
