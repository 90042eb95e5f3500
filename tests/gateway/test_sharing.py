"""Limits that a process shares: their state, and what is reported when the engine goes and comes back."""

import asyncio
import math
import random

import pytest

from gateway.events import ComponentFailed, Event
from gateway.limits.leases import Lease
from gateway.observe.instruments import Instruments
from gateway.observe.state import LeaseState, MismatchState, ShareState
from gateway.process_events import ShareAway, ShareBack
from gateway.race.context import Runtime
from gateway.race.timers import TimerQueue
from gateway.share.fleet import ASK_WAIT_S, WhenAway
from gateway.share.messages import BucketAsk
from gateway.sharing import SharedLimits
from running import run_virtual
from shared_engine import EngineHost, HostedEngine

_NO_REPLY = "no reply within 90 ms, three times in a row"


def test_the_state_of_sharing() -> None:
    """Hands, a lower limit elsewhere, and one event each for the engine's absence and return."""

    async def main() -> None:
        loop, events = asyncio.get_running_loop(), list[Event]()
        host = EngineHost(loop)
        runtime = Runtime(loop, events.append, random.Random(1).random, TimerQueue(loop))
        shared = SharedLimits(HostedEngine(host, "me"), WhenAway.SHARE, runtime)
        instruments = Instruments()
        shared.count_in(instruments)
        await shared.start()
        host.hub.answer(loop.time(), "other", [BucketAsk("key:a:requests", 500.0, 60.0)])
        rate = shared.limits.rate("key:a:requests", 600)
        assert rate.wait_s(1.0, loop.time()) == ASK_WAIT_S
        await asyncio.sleep(0.01)
        rate.take(1.0, loop.time())
        await asyncio.sleep(0.05)
        state = shared.state(0.05)
        assert state == ShareState(
            engine="hub",
            up=True,
            since_s=0.061,
            fault=None,
            reply_age_s=0.05,
            exchange_age_s=0.011,
            heads=2,
            when_away="share",
            away_part=0.45,
            leases=(LeaseState("key:a:requests", 2.0),),
            mismatches=(MismatchState("key:a:requests", 600, 500.0),),
        )
        host.kill()
        await asyncio.sleep(5.0)
        state = shared.state(0.05)
        assert (state.up, state.fault) == (False, _NO_REPLY)
        host.start()
        await asyncio.sleep(1.0)
        state = shared.state(-math.inf)
        assert (state.up, state.fault, state.exchange_age_s) == (True, None, None)
        away, back = events
        assert isinstance(away, ShareAway)
        assert (away.heads, away.when_away, away.part, away.reason) == (2, "share", 0.45, _NO_REPLY)
        assert isinstance(back, ShareBack)
        assert 3.5 < back.away_s < 5.5
        rows = {name: value for family in instruments.families() for name, _, value in family.lines()}
        assert rows["ttft_gateway_share_ask_seconds_count"] > 2
        assert rows["ttft_gateway_share_ask_seconds_sum"] == pytest.approx(
            0.0005 * rows["ttft_gateway_share_ask_seconds_count"]
        )
        shared.close()

    run_virtual(main())


def test_a_bug_in_a_lease_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of any other part."""

    async def main() -> None:
        loop, events = asyncio.get_running_loop(), list[Event]()
        runtime = Runtime(loop, events.append, random.Random(1).random, TimerQueue(loop))
        shared = SharedLimits(HostedEngine(EngineHost(loop), "me"), WhenAway.SHARE, runtime)
        await shared.start()
        monkeypatch.setattr(Lease, "ask", lambda *_: 1 / 0)
        shared.limits.rate("key:a:requests", 600).wait_s(1.0, loop.time())
        await asyncio.sleep(0.1)
        [event] = events
        assert isinstance(event, ComponentFailed)
        assert (event.component, event.error) == ("share", "ZeroDivisionError")
        shared.close()

    run_virtual(main())
