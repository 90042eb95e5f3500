"""Streams that stall or break after their first content, over real sockets: requests sent, and bodies."""

import asyncio
from dataclasses import dataclass, field

import pytest

from gateway.events import RecoveryKind, RecoveryResult, RequestEnded
from gateway_fixture import Site, fronting, serving
from race_scenarios import Settings, spread
from raw_http import answer, asking
from recovering import Read, read
from running import run_real
from scripted_http import answering, read_request
from scripted_http import serving as scripted

OFF: Settings = {"policy": "off"}
STALL: Settings = {"stall": "300ms"}
GOOD: Settings = {"ttft": "10ms", "tokens": 5}
STALLED, CUT = "stall:3,60s", "cut_rst:3"
CHUNK = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
FINISH = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
EMPTY = b'data: {"id":"c","choices":[{"index":0,"delta":{}}]}\n\n'
WHOLE = b"%bcontent-length: %d\r\n\r\n%b" % (HEAD, len(2 * CHUNK + FINISH), 2 * CHUNK + FINISH)


@dataclass
class Traffic:
    """Responses of a run.

    Attributes:
        whole: complete answers.
        broken: replicas of the broken answers, one entry a response.
        asked: requests by replica.
    """

    whole: int = 0
    broken: list[str] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)


async def traffic(fault: str, requests: int) -> Traffic:
    """Send requests to a quick replica that breaks every answer, and two slower ones that do not."""
    result = Traffic()
    profiles: dict[str, Settings] = {"bad": {"ttft": "1ms", "tokens": 5, "faults": [f"{fault} always"]}}
    async with serving({**profiles, "b": GOOD, "c": GOOD}, timeouts=STALL) as site:

        async def one(_number: int) -> None:
            async with answer(site.port, asking()) as got:
                body = await got.body()
            if got.status == 200 and read(body).dones:
                result.whole += 1
            else:
                result.broken.append(got.headers["x-ttft-replica"])

        await spread(requests, 4, one)
        result.asked = {name: server.stats.requests for name, server in site.replicas.items()}
    return result


@pytest.mark.parametrize("fault", ["stall:1,60s", "cut_rst:1"])
def test_a_replica_that_breaks_its_answers_is_out_of_use(fault: str) -> None:
    """The quickest replica breaks each answer: it gets at most 8 of 150 requests, and only these fail."""
    result = run_real(traffic(fault, 150))
    assert result.asked["bad"] <= 8  # 3 open its breaker, 3 more are in flight by then, and probes of a slow run
    assert set(result.broken) <= {"bad"}
    assert len(result.broken) <= result.asked["bad"]
    assert result.whole == 150 - len(result.broken)


async def ask(site: Site, **fields: object) -> Read:
    """Return one answer, of a request that has the same answer each time."""
    async with answer(site.port, asking(**{"temperature": 0, **fields})) as got:
        return read(await got.body())


def ended(site: Site) -> list[RequestEnded]:
    """Return the reports of the requests."""
    return [event for event in site.events if isinstance(event, RequestEnded)]


def sent(site: Site) -> list[list[str]]:
    """Return the replicas that each request was sent to, in order."""
    return [[each.replica for each in event.attempts] for event in ended(site)]


async def broken_by(faults: dict[str, str]) -> tuple[Read, dict[str, int]]:
    """Return one answer of a pool in which every replica breaks it, and the requests by replica."""
    profiles: dict[str, Settings] = {name: {"faults": [f"{fault} always"]} for name, fault in faults.items()}
    model = {"recovery": "auto"}
    async with serving(profiles, alike=True, kind="compatible", model=model, timeouts=STALL, hedge=OFF) as site:
        got = await ask(site)
        return got, {name: server.stats.requests for name, server in site.replicas.items()}


@pytest.mark.parametrize(
    ("faults", "asked", "error"),
    [
        ({"a": STALLED}, {"a": 1}, "upstream_timeout"),
        ({"a": STALLED, "b": STALLED}, {"a": 1, "b": 1}, "upstream_timeout"),
        ({"a": CUT}, {"a": 2}, "upstream_cut"),
    ],
)
def test_no_replica_is_asked_for_a_break_again(faults: dict[str, str], asked: dict[str, int], error: str) -> None:
    """A replica that stalled is not asked again for the answer; one that cut it twice at the same place neither."""
    got, counts = run_real(broken_by(faults))
    assert counts == asked
    assert (got.error, got.dones) == (error, 0)
    assert len(got.texts["0.content"].split()) == 3


@pytest.mark.parametrize(
    ("fault", "mode", "kind", "way"),
    [
        ("stall:5,60s", "replay", "compatible", RecoveryKind.REPLAY),
        ("cut_rst:5", "continue", "simulated", RecoveryKind.CONTINUE),
    ],
)
def test_a_fallback_carries_a_stream_on(fault: str, mode: str, kind: str, way: RecoveryKind) -> None:
    """With the backup in `fallbacks`, a configured recovery makes the answer whole, with one request to each."""

    async def main() -> None:
        profiles: dict[str, Settings] = {"a": {"faults": [f"{fault} once"]}}
        model = {"recovery": mode}
        async with serving(
            profiles, fallback={"b": {}}, alike=True, kind=kind, model=model, timeouts=STALL, hedge=OFF
        ) as site:
            broken, whole = await ask(site), await ask(site)
            assert broken.valid
            assert broken.said == whole.said
            assert [server.stats.requests for server in site.replicas.values()] == [2, 1]
            assert [(each.kind, each.result) for each in ended(site)[0].recoveries] == [(way, RecoveryResult.RECOVERED)]

    run_real(main())


def test_a_rejected_continuation_does_not_prevent_another() -> None:
    """After one replica rejects a continuation, a second one continues the sampled answer, also of the next request."""

    async def main() -> None:
        profiles: dict[str, Settings] = {"a": {"faults": ["cut_rst:12 always"]}, "b": {"continues": False}, "c": {}}
        in_turn = {**OFF, "routing": "round_robin"}
        async with serving(profiles, alike=True, model={"recovery": "auto"}, hedge=in_turn) as site:
            for _ in range(2):
                assert (await ask(site, temperature=None)).valid
            assert sent(site) == [["a", "b", "c"], ["a", "c"]]  # it is not asked that way again
            assert [event.recoveries[-1].kind for event in ended(site)] == [RecoveryKind.CONTINUE] * 2

    run_real(main())


@pytest.mark.parametrize(("sign", "mode"), [(b": ping\n\n", "off"), (EMPTY, "replay")], ids=["ping", "empty delta"])
def test_signs_of_life_are_no_text(sign: bytes, mode: str) -> None:
    """A replica that sends only pings or empty deltas after some text has stalled: error, or another replica."""

    async def pinging(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + b"\r\n" + CHUNK)
        while not (reader.at_eof() or writer.is_closing()):  # until the gateway closes or resets the connection
            writer.write(sign)
            await asyncio.sleep(0.02)

    async def main() -> None:
        async with scripted(pinging) as bad, scripted(answering(WHOLE)) as good:
            first, second = (f"http://127.0.0.1:{server.port}/v1" for server in (bad, good))
            model = {"recovery": mode}
            async with (
                fronting({"a": first}, {"b": second}, model=model, timeouts=STALL, hedge=OFF) as site,
                asyncio.timeout(30),
            ):
                got = await ask(site)
                assert sent(site) == [["a", "b"] if mode == "replay" else ["a"]]
            assert (got.error, got.dones) == ((None, 1) if mode == "replay" else ("upstream_timeout", 0))
            assert got.texts == {"0.content": "wordword" if mode == "replay" else "word"}

    run_real(main())
