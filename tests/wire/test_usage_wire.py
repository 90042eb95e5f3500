"""What a request cost, told to its caller on request: in a comment that SDKs skip, in a header, never unasked."""

import json
from typing import Any

import msgspec

from gateway.events import RequestEnded
from gateway_fixture import Site, serving
from race_scenarios import Settings
from raw_http import ASK, Answer, answer, request_bytes
from running import run_real
from scrapes import rendered
from sdk_clients import HELLO, async_client, words_of
from ttft_gateway.limits.prices import Prices

KEY = "sk-right-right-right"
RACED: Settings = {"policy": "static", "delay": "1ms", "hedge_delay_min": "1ms", "budget": "100%"}
REPLICA: Settings = {"ttft": "300ms", "gap": "500us", "tokens": 8}
ON = {"x-ttft-usage": "on", "authorization": f"Bearer {KEY}"}
OFF = {"authorization": f"Bearer {KEY}"}


def asked(headers: dict[str, str], **fields: object) -> bytes:
    """A chat completion, streamed unless these fields say otherwise."""
    return request_bytes(json.dumps({**ASK, **fields}).encode(), headers=headers)


def check(site: Site, told: Any, headers: dict[str, str]) -> None:
    """The note of a raced request: its winner as reported, its loser for its prompt, and the money."""
    attempts = {attempt["disposition"]: attempt for attempt in told["attempts"]}
    winner, loser = attempts["winner"], attempts["loser"]
    assert winner["replica"] == headers["x-ttft-replica"] != loser["replica"]
    ended = next(event for event in reversed(site.events) if isinstance(event, RequestEnded))
    logged = [{"replica": each.replica, **msgspec.to_builtins(each.charge)} for each in ended.attempts]
    assert told["attempts"] == logged
    assert winner["completion_tokens"] == 8
    assert (loser["billed"], loser["estimated"], "completion_tokens" in loser) == ("used", True, False)
    assert loser["cost"] == loser["prompt_tokens"] * 2.0 / 1e6
    assert told["cost"] == winner["cost"] + loser["cost"]


async def ask(site: Site, payload: bytes) -> tuple[Answer, bytes]:
    """A whole exchange."""
    async with answer(site.port, payload) as got:
        return got, await got.body()


def test_a_raced_request_says_what_it_cost_if_asked() -> None:
    """`x-ttft-usage: on` adds one comment before `[DONE]`, or one header; unasked there is neither, and no secret."""

    async def scenario() -> None:
        profiles = {"a": REPLICA, "b": REPLICA}
        async with serving(profiles, alike=True, hedge=RACED, keys=[{"name": "team-a", "key": KEY}]) as site:
            assert site.gateway is not None
            for replica in site.gateway.in_force.topology.models["m"].pools[0].replicas:
                replica.prices = Prices(2.0, 1.0, 8.0)
            got, body = await ask(site, asked(ON))
            *events, note, done, end = body.split(b"\n\n")
            assert (done, end) == (b"data: [DONE]", b"")
            assert note.startswith(b": x-ttft-usage ")
            assert not [event for event in events if event.startswith(b":")]
            check(site, json.loads(note.removeprefix(b": x-ttft-usage ")), got.headers)
            got, body = await ask(site, asked(OFF))
            assert b"x-ttft-usage" not in body
            assert "x-ttft-usage" not in got.headers

            got, body = await ask(site, asked(ON, stream=False))
            check(site, json.loads(got.headers["x-ttft-usage"]), got.headers)
            assert json.loads(body)["usage"]["completion_tokens"] == 8
            got, _ = await ask(site, asked(OFF, stream=False))
            assert "x-ttft-usage" not in got.headers

            async with async_client(site.url, key=KEY) as client:
                stream = await client.chat.completions.create(
                    model="m", messages=HELLO, stream=True, extra_headers={"x-ttft-usage": "on"}
                )
                assert len(words_of([chunk async for chunk in stream])) == 8
            told = msgspec.json.encode(await site.gateway.view.usage(None, None))
            assert json.loads(told)["total"]["requests"] == 5
            assert json.loads(told)["total"]["loser"]["attempts"] == 5
            assert KEY.encode() not in told + await rendered(await site.gateway.view.metrics.scrape())

    run_real(scenario())


def test_a_wrong_word_is_told() -> None:
    """Neither `on` nor `off` is a 400 that says what to write, and reaches no replica."""

    async def scenario() -> None:
        async with serving({"a": REPLICA}) as site:
            got, body = await ask(site, asked({"x-ttft-usage": "maybe"}))
            error = got.error(body)
            assert (got.status, error["param"], error["code"]) == (400, "x-ttft-usage", "invalid_value")
            assert error["message"] == "header `x-ttft-usage` is `maybe`; write `on` or `off`, or remove it"
            assert site.reached == 0

    run_real(scenario())
