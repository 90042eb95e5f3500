"""Tiers over sockets, with a simulated provider that answers by `service_tier`: refusals, bills, names of ways."""

import json

import httpx

from gateway.events import RequestEnded
from gateway_fixture import serving
from running import run_real

MODEL = {
    "recovery": "off",
    "prices": {"prompt": 1_000_000, "completion": 2_000_000},
    "hedge": {"prefer": "cost", "ttft_target": "1s"},
}
ASK = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], "service_tier": "auto"}
TIERS = ["flex: 1ms, 100% refused", "default: 1ms", "priority: 1ms, served as default"]


def test_requests_are_billed_at_the_tier_that_served_them() -> None:
    """A way without capacity is left at once; the answer's tier is in the header, its price in the bill."""

    async def main() -> None:
        own = {"a": {"kind": "openai", "tiers": ["flex", "default", "priority"]}}
        profiles = {"a": {"tiers": TIERS, "tokens": 5}}
        async with serving(profiles, model=MODEL, own=own) as site, httpx.AsyncClient() as client:
            ways = set[str]()
            for _ in range(60):
                answer = await client.post(f"{site.url}/chat/completions", json=ASK, timeout=30)
                assert answer.status_code == 200
                chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
                assert {chunk["service_tier"] for chunk in chunks} == {"default"}
                ways.add(answer.headers["x-ttft-replica"])
            ended = [event for event in site.events if isinstance(event, RequestEnded)]
        assert ways == {"a/default"}
        assert sum(len(event.attempts) > 1 for event in ended) >= 2  # probes, which were refused
        for event in ended:
            assert event.usual_cost
            assert event.usual_cost == sum(each.charge.cost or 0.0 for each in event.attempts)

    run_real(main())
