"""A replica that goes down under load and comes back, in virtual time: what callers notice, what it costs, how long."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from defaults import default_hedging, default_timeouts
from gateway.events import Event, RequestEnded
from gateway.race.context import Caller, Model, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.race.race import Race
from running import run_virtual
from scripted import RecordingClient, Scripted, ScriptedStream, Step, answer, status
from ttft_gateway.apis.base import Api, Call, Sink
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import BreakerState, Replica
from ttft_gateway.routing.strategies import Routing

PER_S = 50.0
UP_S, DOWN_S, END_S = 20.0, 30.0, 90.0
Weather = Callable[[float], list[Step]]


class Changing(Scripted):
    """A replica with answers that depend on the time; it records the times of its calls."""

    def __init__(self, weather: Weather) -> None:
        super().__init__()
        self.weather = weather

    def open(self, call: Call, sink: Sink) -> ScriptedStream:
        self.scripts = (self.weather(asyncio.get_running_loop().time()),)
        return super().open(call, sink)

    def calls(self, since_s: float, until_s: float) -> int:
        """The number of its calls at that time."""
        return sum(since_s <= stream.opened_s < until_s for stream in self.streams)


def well(_now_s: float) -> list[Step]:
    """200 ms to the first token."""
    return answer(0.2)


def long(_now_s: float) -> list[Step]:
    """200 ms to the first token, 8 s to the last one."""
    return answer(0.2, gap_s=4.0)


def down(failing: list[Step], usual: Weather = well) -> Weather:
    """A replica that fails in this way for 30 s."""
    return lambda now_s: failing if UP_S <= now_s < UP_S + DOWN_S else usual(now_s)


@dataclass
class Storm:
    """The outcomes of all requests."""

    ended: list[RequestEnded] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """Requests without a whole answer."""
        return sum(event.status != 200 for event in self.ended)


def storm(groups: Sequence[Sequence[Changing]], routing: Routing = Routing.PREDICTED) -> Storm:
    """Poisson traffic over these pools."""

    async def main() -> Storm:
        loop, rng, seen = asyncio.get_running_loop(), random.Random(7), Storm()
        names = iter("abcdef")
        seen.pools = [
            Pool("p", [Replica(next(names), each) for each in group], default_hedging(routing=routing))
            for group in groups
        ]
        model = Model("m", seen.pools, default_timeouts())

        def emit(event: Event) -> None:
            if isinstance(event, RequestEnded):
                seen.ended.append(event)

        runtime = Runtime(loop, emit, rng.random, TimerQueue(loop))
        call = Call(Api.CHAT, b"{}", {}, 1, "m", streaming=True)

        def ask(at_s: float) -> None:
            Race(
                model, call, RequestFacts(coin=rng.random()), RecordingClient(), Caller("r", "k", at_s), runtime
            ).start()

        at_s, sent = 0.0, 0
        while (at_s := at_s + rng.expovariate(PER_S)) < END_S:
            sent += 1
            loop.call_at(at_s, ask, at_s)
        over = asyncio.Event()
        loop.call_at(END_S + 700, over.set)  # longer than any request may take
        await over.wait()
        assert len(seen.ended) == sent
        assert all(not replica.in_flight for pool in seen.pools for replica in pool.replicas)
        return seen

    return run_virtual(main())


@pytest.mark.parametrize("index", range(3))
def test_one_of_three_down_for_half_a_minute(index: int) -> None:
    """Callers get answers, extra calls stay within the retry and hedge budgets, and it is used again within 16 s.

    The replicas are equal, and the third one happens to get most requests.
    """
    replicas = [Changing(well) for _ in range(3)]
    bad = replicas[index] = Changing(down(status(0.01, 503)))
    seen = storm([replicas])
    requests = len(seen.ended)
    assert seen.failed <= requests / 1000
    calls = sum(len(each.streams) for each in replicas)
    assert calls - requests <= 0.2 * requests + END_S + 10
    assert bad.calls(UP_S, UP_S + DOWN_S) <= 10  # three to notice, then probes
    assert bad.calls(UP_S + DOWN_S, UP_S + DOWN_S + 16) >= 1
    assert seen.pools[0].replicas[index].breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize("index", range(3))
def test_a_replica_that_drains_is_left_at_once(index: int) -> None:
    """It rejects what is new, and still ends long answers: they do not show that it takes requests."""
    replicas = [Changing(long) for _ in range(3)]
    bad = replicas[index] = Changing(down(status(0.01, 503), long))
    seen = storm([replicas])
    assert seen.failed == 0
    assert bad.calls(UP_S, UP_S + DOWN_S) <= 10
    assert seen.pools[0].replicas[index].breaker.state is BreakerState.CLOSED


def test_a_replica_that_is_back_is_not_flooded() -> None:
    """Right after its return a replica gets less than a healthy one's share, and soon all of its own."""
    bad, *others = replicas = [Changing(down(status(0.01, 503))), Changing(well), Changing(well)]
    storm([replicas], Routing.LEAST_IN_FLIGHT)
    back_s = min(stream.opened_s for stream in bad.streams if stream.opened_s >= UP_S + DOWN_S)
    early = bad.calls(back_s, back_s + 3)
    usual = sum(each.calls(back_s, back_s + 3) for each in others) / 2
    assert early < 0.5 * usual
    late = bad.calls(END_S - 15, END_S)
    assert late > 0.8 * sum(each.calls(END_S - 15, END_S) for each in others) / 2


def test_a_fallback_is_left_by_itself_when_the_pool_is_back() -> None:
    """While the pool is down the fallback answers, and soon after its return no request needs the fallback."""
    bad, spare = Changing(down(status(0.01, 503))), Changing(well)
    seen = storm([[bad], [spare]])
    assert seen.failed == 0
    assert spare.calls(UP_S + 1, UP_S + DOWN_S) > 0.9 * PER_S * (DOWN_S - 1)
    assert spare.calls(UP_S + DOWN_S + 16, END_S) == 0
    assert spare.calls(0, UP_S) == 0


def test_when_everything_is_down_the_budget_bounds_what_is_added() -> None:
    """With every replica failing each request still gets an answer of its own, and retries stay a share of them."""
    replicas = [Changing(down(status(0.01, 503))) for _ in range(3)]
    seen = storm([replicas])
    while_down = [event for event in seen.ended if UP_S <= event.at_s < UP_S + DOWN_S]
    calls = sum(each.calls(UP_S, UP_S + DOWN_S) for each in replicas)
    saved = 10 + 0.2 * PER_S * 10
    assert calls <= 1.2 * len(while_down) + DOWN_S + saved
    assert all(event.status in (200, 503) for event in while_down)
    assert all(event.status == 200 for event in seen.ended if event.at_s > UP_S + DOWN_S + 16)
