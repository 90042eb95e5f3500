"""TTFT targets on real sockets: from the configuration or a header into the log of the request."""

import json

from gateway.events import RequestEnded
from gateway_fixture import serving
from raw_http import ASK, answer, request_bytes
from running import run_real


def test_a_target_reaches_the_record_of_its_request() -> None:
    """The model's target holds until a request brings its own or llm-d's; a value that is no duration is rejected."""

    async def main() -> list[float | None]:
        replica = {"ttft": "1ms", "tokens": 2}
        async with serving({"a": replica, "b": replica}, hedge={"ttft_target": "5s"}) as site:
            for headers in (
                {},
                {"x-ttft-target": "800ms"},
                {"x-llm-d-slo-ttft-ms": "700"},
                {"x-llm-d-slo-ttft-ms": "x"},
            ):
                payload = request_bytes(json.dumps(ASK).encode(), headers=headers)
                async with answer(site.port, payload) as got:
                    assert got.status == 200
                    await got.body()
            payload = request_bytes(json.dumps(ASK).encode(), headers={"x-ttft-target": "soon"})
            async with answer(site.port, payload) as got:
                assert got.status == 400
                assert json.loads(await got.body())["error"]["param"] == "x-ttft-target"
            await site.until_idle()
            return [event.ttft_target_s for event in site.events if isinstance(event, RequestEnded)]

    assert run_real(main()) == [5.0, 0.8, 0.7, 5.0]
