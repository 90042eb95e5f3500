"""A replica that stops answering, in virtual time: what it still gets, what clients notice, how it comes back."""

import asyncio
import random

from defaults import default_hedging, default_timeouts
from gateway.events import Event, RequestEnded
from gateway.race.context import Caller, Model, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.race.race import Race
from running import run_virtual
from scripted import ROLE, RecordingClient, Scripted, ScriptedStream, Step, answer
from ttft_gateway.apis.base import Api, Call, Sink
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

SILENT: list[Step] = [(0.001, "headers"), (0.001, ROLE)]
STALL_S, BACK_S, END_S = 20.0, 50.0, 80.0


class Stalling(Scripted):
    """Answers, is silent from STALL_S to BACK_S, answers again."""

    def open(self, call: Call, sink: Sink) -> ScriptedStream:
        """Play the script of the hour."""
        now_s = asyncio.get_running_loop().time()
        silent = STALL_S <= now_s < BACK_S
        self.scripts = (SILENT if silent else answer(0.03 + 0.01 * random.Random(len(self.streams)).random()),)
        return super().open(call, sink)


def test_a_stalled_replica_gets_only_probes_and_is_used_again() -> None:
    """After a second it gets one primary in five seconds; no request waits long; after its return it is used again."""
    stalling = Stalling(SILENT)
    steady = [Scripted(*(answer(0.03 + 0.0001 * (i % 97)) for i in range(2000))) for _ in range(2)]
    ended: list[RequestEnded] = []

    def emit(event: Event) -> None:
        if isinstance(event, RequestEnded):
            ended.append(event)

    async def main() -> None:
        loop, rand = asyncio.get_running_loop(), random.Random(1)
        replicas = [Replica(name, endpoint) for name, endpoint in zip("abc", [stalling, *steady], strict=True)]
        model = Model("m", [Pool("m", replicas, default_hedging())], default_timeouts())
        runtime = Runtime(loop, emit, rand.random, TimerQueue(loop))
        while loop.time() < END_S:
            client = RecordingClient()
            call = Call(Api.CHAT, b"{}", {}, 1, "m", streaming=True)
            facts = RequestFacts(prompt_tokens=20.0, coin=rand.random())
            Race(model, call, facts, client, Caller("r", "k", loop.time()), runtime).start()
            await asyncio.sleep(rand.expovariate(20))
        await asyncio.sleep(200)

    run_virtual(main())
    opened = [stream.opened_s for stream in stalling.streams]
    after_notice = [at_s for at_s in opened if STALL_S + 1.5 <= at_s < BACK_S]
    assert len(after_notice) <= (BACK_S - STALL_S) / 5 + 1
    assert any(BACK_S <= at_s <= BACK_S + 15 for at_s in opened)
    waited = sorted(event.ttft_s for event in ended if event.ttft_s is not None)
    assert len(waited) == len(ended)
    assert waited[int(0.99 * len(waited))] < 0.2
