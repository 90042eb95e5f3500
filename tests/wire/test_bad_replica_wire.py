"""One bad and one good replica over real sockets: callers notice nothing, and the bad one is soon out of use."""

import asyncio
import json

import pytest

from gateway_fixture import serving
from race_scenarios import Settings
from raw_http import answer, asking
from running import run_real
from ttft_gateway.routing.replicas import OPEN_S

_GOOD: Settings = {"ttft": "1ms", "tokens": 3}
_REQUESTS = 80
_OFF = {"policy": "off"}


@pytest.mark.parametrize("code", [400, 402, 403, 404, 405, 410, 413, 421, 424, 426, 431, 451, 499])
def test_a_replica_behind_something_that_rejects_everything(code: int) -> None:
    """0 of 80 requests fail; the replica answers at most 3 of them, and a probe each time its breaker may half open."""

    async def main() -> tuple[int, float]:
        profiles: dict[str, Settings] = {"bad": {"faults": [f"html:{code} always"]}, "good": _GOOD}
        async with serving(profiles, hedge=_OFF) as site:
            failed = 0
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            for _ in range(_REQUESTS):
                async with answer(site.port, asking()) as got:
                    await got.body()
                failed += got.status != 200
            probes = (loop.time() - began_s) / OPEN_S
            return failed, site.replicas["bad"].stats.requests - probes

    failed, asked = run_real(main())
    assert failed == 0
    assert asked <= 3


def test_a_prompt_that_a_firewall_rejects_harms_nobody_else() -> None:
    """A caller's 100 prompts that meet 403 at every replica open no breaker."""

    async def main() -> list[str]:
        rejecting: Settings = {"faults": ["html:403 always"]}
        async with serving({"a": rejecting, "b": rejecting}, hedge=_OFF) as site:
            for _ in range(100):
                async with answer(site.port, asking()) as got:
                    error = json.loads(await got.body())["error"]
                assert (got.status, error["code"]) == (502, "upstream_rejected")
            assert site.gateway is not None
            pools = [pool for model in site.gateway.in_force.topology.models.values() for pool in model.pools]
            return [replica.breaker.state.value for pool in pools for replica in pool.replicas]

    assert run_real(main()) == ["closed", "closed"]
