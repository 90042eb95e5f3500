"""The caller's deadline, and short faults, as OpenAI's SDK sees them over sockets; scripts/acceptance has the times."""

import json

import openai
import pytest

from deadline_scenarios import SILENT, blips
from gateway.events import RequestEnded, RequestRejected
from gateway_fixture import serving
from raw_http import ASK, answer, request_bytes
from running import run_real
from sdk_clients import async_client, read_async

TIMEOUT_S = 0.3


@pytest.mark.parametrize("silent", SILENT)
def test_the_sdk_gets_an_error_at_its_timeout(silent: str) -> None:
    """A silent stream ends with the gateway's error, which the SDK raises once, although it would retry a timeout."""

    async def main() -> tuple[int, object, int]:
        async with serving({"a": SILENT[silent]}) as site, async_client(site.url, retries=2) as client:
            words: list[str] = []
            with pytest.raises(openai.APIError) as caught:
                await read_async(client.with_options(timeout=TIMEOUT_S), "m", words)
            return len(words), caught.value.code, site.reached

    assert run_real(main()) == (4 if silent == "after four tokens" else 0, "upstream_timeout", 1)


def test_a_deadline_header_has_a_status_and_another_attempt() -> None:
    """`x-ttft-deadline` gives any client a 504 with the status, after two replicas were asked."""

    async def main() -> None:
        silent = {"faults": ["silence always"]}
        async with serving({"a": silent, "b": silent}) as site:
            payload = request_bytes(json.dumps({**ASK, "stream": True}).encode(), headers={"x-ttft-deadline": "300ms"})
            async with answer(site.port, payload) as got:
                error = json.loads(await got.body())["error"]
                assert (got.status, error["code"], got.headers["x-should-retry"]) == (504, "upstream_timeout", "false")
            assert site.reached == 2

    run_real(main())


def test_the_sdk_does_not_see_a_blip() -> None:
    """Both replicas fail for 200 ms: the SDK with its defaults gets the answer."""
    assert [ended.error for ended in run_real(blips(1, process=False))] == [None]


@pytest.mark.parametrize(
    ("faults", "code", "limit"),
    [(["429:7s,azure"], "upstream_rate_limited", "provider"), ([], "rate_limit_exceeded", "key")],
)
def test_the_owner_of_the_limit_of_a_429(faults: list[str], code: str, limit: str) -> None:
    """A header, the code and the log tell the limit of the caller's key from the limit of the providers."""

    async def main() -> None:
        keys = [{"name": "team", "key": "sk-team", "requests_per_min": 60}]
        payload = request_bytes(json.dumps(ASK).encode(), headers={"authorization": "Bearer sk-team"})
        async with serving({"a": {"ttft": "0ms", "tokens": 1, "faults": faults}}, keys=keys) as site:
            status, limits, body = 200, None, b""
            for _ in range(100):  # more than a minute's requests
                if status == 200:
                    async with answer(site.port, payload) as got:
                        status, limits, body = got.status, got.headers.get("x-ttft-limit"), await got.body()
            error = json.loads(body)["error"]
            assert (status, error["type"], error["code"]) == (429, "rate_limit_error", code)
            assert limits == limit
            await site.until_idle()
            told = [event.limit for event in site.events if isinstance(event, (RequestEnded, RequestRejected))]
            assert (told[-1], set(told[:-1])) == (limit, set(told[:-1]) & {None})

    run_real(main())
