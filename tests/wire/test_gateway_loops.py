"""Gateways that lead to each other, over real sockets: a request goes through a few at most, and harms no replica."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from gateway.events import RequestEnded, RequestPassed, RequestRejected
from gateway_fixture import Site, fronting, serving
from raw_http import ASK, CHAT, answer, request_bytes
from running import run_real
from ttft_gateway.routing.replicas import BreakerState
from unused_ports import unused_port

_HOPS = "x-ttft-hops"
_BODIES: Mapping[str, Mapping[str, object]] = {
    CHAT: ASK,
    "/v1/completions": {"model": "m", "prompt": "hello", "stream": True},
    "/v1/responses": {"model": "m", "input": "hello", "stream": True},
    "/v1/messages": {**ASK, "max_tokens": 5},
    "/v1/embeddings": {"model": "m", "input": "hello"},
    "/v1/audio/speech": {"model": "m", "input": "hello", "voice": "alloy"},
}
_WHOLE = {"pass_through": ["audio", "files"], "recovery": "off"}


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1"


@asynccontextmanager
async def _ring() -> AsyncIterator[list[Site]]:
    """Two gateways that lead to each other."""
    one, two = unused_port(), unused_port()
    async with (
        fronting({"next": _url(two)}, listen=f"127.0.0.1:{one}", model=_WHOLE, kind="vllm") as first,
        fronting({"next": _url(one)}, listen=f"127.0.0.1:{two}", model=_WHOLE, kind="vllm") as second,
    ):
        yield [first, second]


async def _ask(
    site: Site, path: str = CHAT, body: Mapping[str, object] | None = None, **headers: str
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    content = json.dumps(_BODIES[path] if body is None else body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with answer(site.port, request_bytes(content, path, headers=named)) as got:
        text = await got.body()
        return got.status, json.loads(text) if got.status >= 400 else {}, got.headers


def _states(site: Site) -> dict[str, BreakerState]:
    assert site.gateway is not None
    models = site.gateway.in_force.topology.serving.models
    return {each.name: each.breaker.state for pool in models["m"].pools for each in pool.replicas}


def _requests(sites: list[Site]) -> Counter[type]:
    ends = (RequestEnded, RequestPassed, RequestRejected)
    return Counter(type(event) for site in sites for event in site.events if isinstance(event, ends))


@pytest.mark.parametrize("path", _BODIES)
def test_a_ring_of_gateways_ends_a_request(path: str) -> None:
    """A request that comes back again and again is rejected by the fifth gateway, and no gateway retries it."""

    async def main() -> None:
        async with _ring() as sites:
            status, body, headers = await _ask(sites[0], path)
            assert (status, body["error"]["code"]) == (508, "loop_detected")
            assert "went through 4 gateways" in body["error"]["message"]
            assert (body.get("type") == "error") == (path == "/v1/messages")
            assert headers["x-should-retry"] == "false"
            found = _requests(sites)
            assert (found.total(), found[RequestRejected]) == (5, 1)

    run_real(main())


def test_a_ring_costs_no_answer_where_a_replica_has_one() -> None:
    """A gateway in front of a ring answers from its other replica, and takes out the one that leads into the ring."""

    async def main() -> None:
        async with serving({"sim": {}}) as behind, _ring() as sites:
            pool = {"next": sites[0].url, "good": behind.url}
            async with fronting(pool, kind="vllm") as site:
                asked = 0
                while _states(site)["next"] is BreakerState.CLOSED:
                    assert (await _ask(site))[0] == 200
                    asked += 1
                    assert asked < 500  # each picks a replica at random
                assert behind.reached == asked
                assert _states(site) == {"next": BreakerState.OPEN, "good": BreakerState.CLOSED}
            assert all(_states(each) == {"next": BreakerState.CLOSED} for each in sites)

    run_real(main())


def test_a_chain_of_gateways_is_no_ring() -> None:
    """Three gateways in a row, such as a sidecar, a team's and a company's, serve a request as one does."""

    async def main() -> None:
        async with AsyncExitStack() as opened:
            last = await opened.enter_async_context(serving({"sim": {}}))
            site = last
            for _ in range(3):
                site = await opened.enter_async_context(fronting({"next": site.url}, kind="vllm"))
            assert (await _ask(site))[0] == 200
            assert last.reached == 1

    run_real(main())


def test_a_caller_harms_no_replica_with_the_header() -> None:
    """A caller that claims hops gets the error itself; neither gateway nor replica is blamed for it."""

    async def main() -> None:
        async with serving({"sim": {}}) as behind, fronting({"next": behind.url}, kind="vllm") as site:
            for _ in range(6):
                status, body, _ = await _ask(site, x_ttft_hops="3")
                assert (status, body["error"]["code"]) == (508, "loop_detected")
            assert behind.reached == 0
            assert _states(site) == {"next": BreakerState.CLOSED}
            assert (await _ask(site))[0] == 200
            assert (await _ask(site, x_ttft_hops="99"))[0] == 508
            for odd in ("-7", "4.0", "", "1e9", "\xb2", "9" * 5000):
                assert (await _ask(site, x_ttft_hops=odd))[0] == 200, odd
            assert (await _ask(site, x_ttft_hops="2"))[0] == 200

    run_real(main())
