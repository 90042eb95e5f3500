"""A web page under a name that points to the gateway (DNS rebinding). Real sockets."""

import json

import pytest

from gateway_fixture import serving
from raw_http import ASK, CHAT, answer, request_bytes
from running import run_real

_PAGE = {"host": "evil.example:8080", "origin": "http://evil.example:8080"}


@pytest.mark.parametrize("keys", [False, True])
def test_a_page_reaches_no_replica(keys: bool) -> None:
    """Without keys a request for an unknown host gets a 421; with keys the page lacks one, and any host is served."""
    named = [{"name": "team", "key": "secret"}] if keys else []

    async def main() -> None:
        async with serving({"a": {"ttft": "1ms", "tokens": 1}}, hosts=["gateway.internal"], keys=named) as site:
            for path, method in ((CHAT, "POST"), ("/v1/messages", "POST"), ("/v1/models", "GET")):
                async with answer(site.port, request_bytes(json.dumps(ASK).encode(), path, method, _PAGE)) as refused:
                    assert refused.status == (401 if keys else 421)
                    assert b"configuration" in await refused.body() or keys
            assert site.reached == 0
            async with answer(site.port, request_bytes(b"", "/healthz", "GET", _PAGE)) as health:
                assert health.status == 200
            own = {"host": "any.example" if keys else "gateway.internal:8080", "x-api-key": "secret"}
            async with answer(site.port, request_bytes(json.dumps(ASK).encode(), CHAT, "POST", own)) as served:
                assert served.status == 200

    run_real(main())
