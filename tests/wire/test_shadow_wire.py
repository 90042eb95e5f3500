"""The policy `shadow` over sockets: a late request reaches one replica, and every surface shows the hedge."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import httpx

from gateway_fixture import serving
from raw_http import ASK, CHAT
from served import gateway, replicas

_HEDGE = {"policy": "shadow", "cold_start_delay": "20ms", "budget": "100%", "measure": {"slo": "100ms"}}
_LATE = {"ttft": "300ms", "headers": "at_once", "tokens": 2}


def _config(urls: Mapping[str, str]) -> dict[str, object]:
    rows = [{"name": name, "kind": "vllm", "base_url": url} for name, url in urls.items()]
    return {"hedge": _HEDGE, "models": [{"name": "m", "replicas": rows}]}


def test_a_late_request_reaches_one_replica() -> None:
    """The replicas receive one request together, for each of three late ones of the client."""

    async def main() -> tuple[int, list[str]]:
        async with serving({"a": _LATE, "b": _LATE}, hedge=_HEDGE) as site, httpx.AsyncClient() as client:
            answers = [await client.post(site.url + "/chat/completions", json=ASK) for _ in range(3)]
            await site.until_idle()
            return site.reached, [answer.headers["x-ttft-denied"] for answer in answers]

    assert asyncio.run(main()) == (3, ["shadow"] * 3)


def test_every_surface_has_the_hedge_that_was_not_sent(tmp_path: Path) -> None:
    """Header, log, metrics and report have the hedge that was not sent."""
    with replicas(a=_LATE, b=_LATE) as urls, gateway(_config(urls), tmp_path) as served:
        answer = httpx.post(served.url + CHAT, json=ASK)
        metrics = httpx.get(served.admin_url + "/metrics").text
        proof = httpx.get(served.admin_url + "/admin/proof").json()
    assert answer.headers["x-ttft-denied"] == "shadow"
    assert answer.headers["x-ttft-attempts"] == "1"
    lines = [json.loads(line) for line in (tmp_path / "gateway.log").read_text().splitlines()]
    (line,) = [line for line in lines if line["event"] == "request"]
    assert [attempt["role"] for attempt in line["attempts"]] == ["primary"]
    assert line["shadow"]["reason"] == "cold_start"
    assert line["shadow"]["after_ms"] >= 20
    assert line["shadow"]["wait_ms"] > 0
    assert 'ttft_gateway_shadow_hedges_total{gen_ai_request_model="m",reason="cold_start"} 1.0' in metrics
    assert 'ttft_gateway_shadow_wait_seconds_count{gen_ai_request_model="m"} 1.0' in metrics
    assert "ttft_gateway_hedges_fired_total{" not in metrics
    (shadow,) = proof["shadow"]
    assert (proof["models"], shadow["requests"], shadow["hedges"]) == ([], 1, 1)
    assert "m: a, b; hedging shadow (decided, not sent), budget 100%" in "".join(served.stderr)
