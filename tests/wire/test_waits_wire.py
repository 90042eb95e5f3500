"""Breakers and rate limits over real sockets: the number of requests that a failing or limited replica receives."""

import asyncio
from http import HTTPStatus

from gateway.server.app import Gateway
from gateway_fixture import fronting, serving
from race_scenarios import Settings, spread
from raw_http import answer, asking
from running import run_real
from scripted_http import answering
from scripted_http import serving as scripted
from ttft_gateway.routing.replicas import COOL_DOWN_S_MAX, Replica

OFF: Settings = {"policy": "off"}
GOOD: Settings = {"ttft": "1ms", "tokens": 3}
DAYS_31_S = 31 * 86_400
LIMITED = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: %d\r\ncontent-length: 0\r\n\r\n" % DAYS_31_S
EVENTS = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(EVENTS), EVENTS)


async def status_of(port: int) -> tuple[HTTPStatus, float]:
    """Return the status of a request, and its Retry-After in seconds, 0 without the header."""
    async with answer(port, asking()) as got:
        await got.body()
        return HTTPStatus(got.status), float(got.headers.get("retry-after", 0))


def replicas_of(gateway: Gateway | None) -> list[Replica]:
    """Return the replicas of a gateway in this process."""
    assert gateway is not None
    return list(gateway.in_force.topology.replicas.values())


def test_one_request_probes_an_open_breaker() -> None:
    """The only replica is down: after the first second each request is sent once, as a probe; nothing is retried."""

    async def main() -> None:
        async with serving({"a": {"faults": ["500 always"]}}, hedge=OFF) as site:
            asked = [0]
            for _ in range(4):
                assert (await status_of(site.port))[0] == HTTPStatus.INTERNAL_SERVER_ERROR
                asked.append(site.reached)
                [replica] = replicas_of(site.gateway)
                replica.breaker.open_until_s = replica.breaker.opened_s = 0.0  # its wait is over
            assert asked == [0, 3, 4, 5, 6]

    run_real(main())


def test_a_few_bare_429s_cost_one_other_try_each() -> None:
    """Of 400 requests to three replicas, which answer 2 % of them with a 429 without a wait, at most one fails."""

    async def main() -> None:
        limited: Settings = {**GOOD, "faults": ["429:vllm 2%"]}
        failed = 0
        timeouts = {"retry_after_max": "0s"}  # a cool-down of all replicas is an immediate error
        async with serving(dict.fromkeys("abc", limited), hedge=OFF, timeouts=timeouts) as site:

            async def one(_number: int) -> None:
                nonlocal failed
                failed += (await status_of(site.port))[0] != HTTPStatus.OK

            await spread(400, 8, one)
            assert failed <= 1
            assert 400 < site.reached <= 420

    run_real(main())


def test_an_absurd_wait_is_bounded_and_a_reload_ends_it() -> None:
    """After a Retry-After of 31 days nothing is sent for 5 minutes, the wait that callers get; a reload ends it."""

    async def main() -> None:
        async with (
            scripted(answering(LIMITED, WHOLE)) as server,
            fronting({"a": f"http://127.0.0.1:{server.port}/v1"}, kind="vllm", hedge=OFF) as site,
            asyncio.timeout(20),
        ):
            assert await status_of(site.port) == (HTTPStatus.TOO_MANY_REQUESTS, COOL_DOWN_S_MAX)
            status, wait_s = await status_of(site.port)
            assert status == HTTPStatus.TOO_MANY_REQUESTS
            assert 0 < wait_s <= COOL_DOWN_S_MAX
            assert site.gateway is not None
            assert (await site.gateway.reloads.reload()).kept == 1
            assert await status_of(site.port) == (HTTPStatus.OK, 0)

    run_real(main())
