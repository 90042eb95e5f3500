"""Poisson traffic on one pool in virtual time."""

import asyncio
import random

from defaults import default_timeouts
from gateway.events import Event, RequestEnded
from gateway.race.context import Caller, Model, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.race.race import Race
from scripted import RecordingClient
from ttft_gateway.apis.base import Api, Call
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.pool.pool import Pool


async def poisson(pool: Pool, requests: int, per_s: float, rng: random.Random, settle_s: float) -> list[RequestEnded]:
    """Send requests, wait, and return their ends.

    Args:
        settle_s: time from the last request to the end.
    """
    loop, ended = asyncio.get_running_loop(), list[RequestEnded]()
    model = Model("m", [pool], default_timeouts())

    def emit(event: Event) -> None:
        if isinstance(event, RequestEnded):
            ended.append(event)

    runtime = Runtime(loop, emit, rng.random, TimerQueue(loop))
    call = Call(Api.CHAT, b"{}", {}, 1, "m", streaming=True)

    def ask(at_s: float) -> None:
        facts = RequestFacts(prompt_tokens=100.0, coin=rng.random())
        Race(model, call, facts, RecordingClient(), Caller("r", "k", at_s), runtime).start()

    at_s = 0.0
    for _ in range(requests):
        at_s += rng.expovariate(per_s)
        loop.call_at(at_s, ask, at_s)
    await asyncio.sleep(at_s + settle_s)
    return ended
