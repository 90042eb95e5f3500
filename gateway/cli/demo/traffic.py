"""The demo's traffic: streamed requests at a steady rate, with seeded intervals, half to the model without hedging.

Requests alternate between the two models, so that both use the same replicas at the same time. The load is open: a
request is sent when it is due, and its TTFT is measured from then. Units: seconds.
"""

import asyncio
import json
import random

import httpx

from gateway.cli.demo.table import LATE_S, HedgeCount, ModeTally, TtftSample
from gateway.config.values import Address

REQUESTS_PER_S = 20.0
MODEL_ON, MODEL_OFF = "demo", "demo-off"

_TOKENS = 16
_REQUEST_S_MAX = 30.0
_ADMIN_S_MAX = 1.0
_IN_FLIGHT_MAX = 200  # ten seconds of traffic; further requests count as failed


async def send(public: Address, key: str | None, off: ModeTally, on: ModeTally, *, seed: int, length_s: float) -> None:
    """Send requests for `length_s`, and wait for all of them.

    Args:
        public: address of the gateway.
        key: API key, None where the gateway needs none.
        off, on: receive the samples of each model.
        seed: seed of the intervals between requests.
        length_s: duration of sending; infinite until cancelled.
    """
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    in_flight: set[asyncio.Task[None]] = set()
    due_s = loop.time()
    end_s = due_s + length_s
    number = 0
    async with client(public, key) as http, asyncio.TaskGroup() as tasks:
        while due_s < end_s:
            await asyncio.sleep(due_s - loop.time())
            model, tally = ((MODEL_OFF, off), (MODEL_ON, on))[number % 2]
            tally.late += loop.time() > due_s + LATE_S or len(in_flight) >= _IN_FLIGHT_MAX
            if len(in_flight) < _IN_FLIGHT_MAX:
                task = tasks.create_task(_count(http, model, due_s, tally))
                in_flight.add(task)
                task.add_done_callback(in_flight.discard)
            else:
                tally.add(None)
            number += 1
            due_s += rng.expovariate(REQUESTS_PER_S)


def client(public: Address, key: str | None) -> httpx.AsyncClient:
    """Return a client of the gateway."""
    return httpx.AsyncClient(
        base_url=f"http://{public}",
        headers={"authorization": f"Bearer {key}"} if key else {},
        limits=httpx.Limits(max_connections=_IN_FLIGHT_MAX, max_keepalive_connections=_IN_FLIGHT_MAX),
        timeout=_REQUEST_S_MAX,
        trust_env=False,
    )


async def read_budget(admin: Address) -> HedgeCount | None:
    """Return the hedge budget of the hedged model, None where the admin address does not report one."""
    try:
        async with httpx.AsyncClient(timeout=_ADMIN_S_MAX, trust_env=False) as http:
            models = (await http.get(f"http://{admin}/admin/models")).json()["models"]
        [pool] = next(each["pools"] for each in models if each["model"] == MODEL_ON)
        return HedgeCount(float(pool["budget_level"]), float(pool["budget_cap"]))
    except (httpx.HTTPError, ValueError, LookupError, TypeError, StopIteration):
        return None


async def ask(http: httpx.AsyncClient, model: str, due_s: float) -> TtftSample | None:
    """Stream one answer; return None if it is incomplete."""
    loop = asyncio.get_running_loop()
    message = {"role": "user", "content": "Tell me something."}
    body = {"model": model, "stream": True, "max_tokens": _TOKENS, "messages": [message]}
    content_s, is_complete = None, False
    try:
        async with asyncio.timeout(_REQUEST_S_MAX), http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if content_s is None and _is_content(line):
                    content_s = loop.time()
                is_complete = is_complete or line == "data: [DONE]"
    except (OSError, httpx.HTTPError):
        return None
    if content_s is None or not is_complete:
        return None
    result = response.headers.get("x-ttft-result", "")
    return TtftSample(
        ttft_s=content_s - due_s,
        attempts=int(response.headers.get("x-ttft-attempts", "1")),
        hedged=result.startswith("backup_"),
        won=result == "backup_won",
        denied="x-ttft-denied" in response.headers,
    )


def _is_content(line: str) -> bool:
    if not line.startswith("data: {"):
        return False
    choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
    return bool(choices[0].get("delta", {}).get("content"))


async def _count(http: httpx.AsyncClient, model: str, due_s: float, tally: ModeTally) -> None:
    tally.add(await ask(http, model, due_s))
