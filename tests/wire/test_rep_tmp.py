import asyncio, sys
from gateway_fixture import serving
from raw_http import answer, asking
from running import run_real
import pytest
@pytest.mark.parametrize("process",[False,True])
def test_big(process):
    async def main():
        async with serving({"a":{"tokens":3,"faults":["big:100000+coalesce:10"]}},process=process, timeouts={"ttft_last":"2s","ttft":"1s"}) as site:
            for i in range(5):
                async with answer(site.port, asking()) as a:
                    assert a.status==200, await a.body()
                    b=await a.body()
                assert len(b)>100000
            assert site.replicas["a"].stats.connections_opened==1
    run_real(main())
