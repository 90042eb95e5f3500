"""One Claude at four simulated clouds that check each request: races, failures, recovery, limits, tokens that end."""

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from anthropic_calls import assert_valid, data_in
from cloud_servers import ELSEWHERE, LIMITED, WORDS, Cloud, clouds, row, sent
from gateway_fixture import Site, fronting, until
from raw_http import request_bytes
from running import run_real
from ttft_gateway.apis.base import Api

HASTY = {"hedge": {"policy": "static", "delay": "20ms", "hedge_delay_min": "1ms", "budget": "100%"}}
HELLO = [{"role": "user", "content": "hello"}]
TEXT = "".join(WORDS)
NAMES = ("anthropic", "bedrock", "vertex", "foundry")


@contextlib.asynccontextmanager
async def pool(
    found: dict[str, Cloud], *names: str, own: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Site]:
    """A gateway with one model at some of the clouds, hedged between all of them."""
    rows = {name: row(found[name], allow_billed_hedges=True, **(own or {}).get(name, {})) for name in names}
    urls = {name: found[name].root for name in names}
    options = {"recovery": "auto", **settings.pop("model", {})}
    async with fronting(urls, own=rows, model=options, allow_anonymous=True, **settings) as site:
        yield site


def asked(path: str = "/v1/messages", *, stream: bool = True, **more: Any) -> bytes:
    """A request of a client."""
    body = {"model": "m", "stream": stream, "max_tokens": 64, "messages": HELLO, **more}
    if path == "/v1/responses":
        body = {"model": "m", "stream": stream, "input": HELLO, "store": False}
    return request_bytes(json.dumps(body).encode(), path)


def text_in(raw: bytes) -> str:
    """The text of a valid stream of the Messages API."""
    assert_valid(raw)
    deltas = [each["delta"] for each in data_in(raw) if each["type"] == "content_block_delta"]
    return "".join(each["text"] for each in deltas)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
def test_each_cloud_answers_each_api(name: str, path: str) -> None:
    """Streams and whole answers of every API reach each cloud in its own form, and no check fails."""

    async def main() -> None:
        async with clouds() as found, pool(found, name) as site:
            for stream in (True, False):
                status, _, raw = await sent(site.port, asked(path, stream=stream))
                assert status == 200, raw
                assert "four" in raw.decode()
            assert found[name].faults == []
            assert len(found[name].seen) == 2

    run_real(main())


def test_a_race_between_clouds_is_won_by_the_quickest() -> None:
    """A late cloud is beaten by another one, whichever is late; each answer is whole."""

    async def main() -> None:
        async with clouds() as found, pool(found, *NAMES, **HASTY) as site:
            for _ in range(8):  # they earn the credit for hedges
                assert (await sent(site.port, asked()))[0] == 200
            for late in NAMES:
                for cloud in found.values():
                    cloud.ttft_s = 5.0 if cloud.name == late else 0.001
                for _ in range(3):
                    status, headers, raw = await sent(site.port, asked())
                    assert status == 200
                    assert text_in(raw) == TEXT
                    assert headers["x-ttft-replica"] != late
            assert [cloud.faults for cloud in found.values()] == [[]] * 4

    run_real(main())


@pytest.mark.parametrize("kind", ["limited", "elsewhere", "token"])
def test_a_cloud_that_rejects_costs_no_answer(kind: str) -> None:
    """A 429, a wrong route or region and an expired key of each cloud in turn are answered by another cloud."""

    async def main() -> None:
        for name in NAMES:
            async with clouds() as found, pool(found, *NAMES) as site:
                cloud = found[name]
                if kind == "token":
                    cloud.token = "another"
                else:
                    cloud.answer = (LIMITED if kind == "limited" else ELSEWHERE)[name]
                for number in range(5):
                    status, headers, raw = await sent(
                        site.port, asked(messages=[{"role": "user", "content": f"{number}"}])
                    )
                    assert (status, headers["x-ttft-replica"] != name) == (200, True), raw
                    assert text_in(raw) == TEXT

    run_real(main())


@pytest.mark.parametrize("name", NAMES)
def test_a_rejection_by_the_only_cloud_is_the_gateways_fault(name: str) -> None:
    """A wrong route and an expired key are a 502 without the upstream's text; a 429 is the caller's to wait for."""

    async def main() -> None:
        async with clouds() as found, pool(found, name) as site:
            cloud = found[name]
            cloud.answer = ELSEWHERE[name]
            status, _, raw = await sent(site.port, asked())
            assert (status, b"isn't supported" in raw) == (502, False), raw
            cloud.answer = LIMITED[name]
            assert (await sent(site.port, asked()))[0] == 429

    run_real(main())


def test_a_broken_stream_is_carried_on_by_another_cloud() -> None:
    """A stream of chat completions that one cloud cuts is continued by another one, and its text is whole."""

    async def main() -> None:
        async with clouds() as found, pool(found, "anthropic", "bedrock", "vertex", "foundry") as site:
            for cut in NAMES:
                for cloud in found.values():
                    cloud.cuts_after = 2 if cloud.name == cut else None
                for _ in range(2):
                    status, _, raw = await sent(site.port, asked("/v1/chat/completions"))
                    assert status == 200
                    pieces = [
                        each["choices"][0]["delta"].get("content") or ""
                        for each in data_in(raw)[:-1]
                        if each["choices"]
                    ]
                    assert "".join(pieces) == TEXT
                    assert raw.endswith(b"data: [DONE]\n\n")

    run_real(main())


def test_cached_tokens_of_every_cloud_are_counted() -> None:
    """The usage of each cloud includes its cached tokens."""

    async def main() -> None:
        for name in NAMES:
            async with clouds() as found, pool(found, name) as site:
                _, _, raw = await sent(site.port, asked("/v1/chat/completions", stream=False))
                usage = json.loads(raw)["usage"]
                assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (8, 3)

    run_real(main())


def _write_token(file: Path, value: str, lifetime_s: float) -> None:
    end = datetime.now(UTC) + timedelta(seconds=lifetime_s)
    file.write_text(
        json.dumps({"kind": "ExecCredential", "status": {"token": value, "expirationTimestamp": end.isoformat()}}),
        encoding="utf-8",
    )


def _credential(file: Path) -> dict[str, Any]:
    return {"credential": {"source": "command", "command": ["/bin/cat", str(file)]}}


@pytest.mark.parametrize("name", NAMES)
def test_a_rejected_token_is_renewed_and_the_request_succeeds(name: str, tmp_path: Path) -> None:
    """With one replica, a token that the cloud rejects is fetched again, and the same request gets its answer."""

    async def main() -> None:
        file = tmp_path / "token"
        _write_token(file, "sk-first-0123456789", 3600)
        async with (
            clouds(token="sk-first-0123456789") as found,
            pool(found, name, own={name: _credential(file)}) as site,
        ):
            assert (await sent(site.port, asked()))[0] == 200
            _write_token(file, "sk-second-0123456789", 3600)
            found[name].token = "sk-second-0123456789"
            status, _, raw = await sent(site.port, asked())
            assert (status, found[name].rejected) == (200, 1), raw
            assert text_in(raw) == TEXT

    run_real(main())


def test_a_source_without_a_token_takes_its_cloud_out(tmp_path: Path) -> None:
    """A program that prints garbage takes its replica out with the reason; others answer; no output has a token."""

    async def main() -> None:
        file = tmp_path / "token"
        file.write_text("garbage sk-very-secret-0123456789", encoding="utf-8")
        async with clouds() as found, pool(found, "anthropic", "vertex", own={"vertex": _credential(file)}) as site:
            winners = Counter([(await sent(site.port, asked()))[1]["x-ttft-replica"] for _ in range(8)])
            assert winners == {"anthropic": 8}
            gateway = site.gateway
            assert gateway is not None
            described = json.dumps(await gateway.view.describe("m", (0.5,)), default=str)
            assert "cat printed no usable token" in described
            assert "very-secret" not in described + repr(site.events)
            _write_token(file, found["vertex"].token, 3600)
            await until(lambda: not gateway.in_force.topology.replicas["m", "vertex"].out)
            assert Api.MESSAGES in gateway.in_force.topology.replicas["m", "vertex"].apis

    run_real(main())
