"""Requests of several callers to one model in virtual time, over replicas that answer by what a request asks for."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from defaults import default_hedging, default_timeouts
from error_forms import Form
from gateway.errors import GatewayError
from gateway.events import BreakerChanged, Event, RequestEnded
from gateway.race.context import Caller, Model, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.race.race import Race
from providers.openai.chat import OpenAIChat
from running import run_virtual
from scripted import RecordingClient, Scripted, ScriptedStream, Step, answer
from ttft_gateway.apis.base import Api, Call, Sink
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

Rejects = Callable[[bytes], list[Step] | None]
"""Returns the script of a rejected request by its body; None if it is answered."""


def rejected(form: Form) -> list[Step]:
    """Return the script of an error response."""
    headers = [(b"x-amzn-errortype", form.amazon_type.encode())] if form.amazon_type else []
    return [(0.01, OpenAIChat().error(form.status, headers, json.dumps(form.body).encode()))]


class Picky(Scripted):
    """A replica that rejects some requests.

    Attributes:
        rejects: see `Rejects`; may be replaced.
    """

    def __init__(self, rejects: Rejects = lambda _body: None) -> None:
        super().__init__()
        self.rejects = rejects

    def open(self, call: Call, sink: Sink) -> ScriptedStream:
        self.scripts = (self.rejects(call.body) or answer(0.05),)
        return super().open(call, sink)

    @property
    def asked(self) -> int:
        """Number of requests so far."""
        return len(self.streams)


@dataclass
class Told:
    """The end of one request."""

    report: RequestEnded
    error: GatewayError | None


@dataclass
class House:
    """A model with requests that end one by one.

    Attributes:
        pools: its pools.
        changes: states of breakers, in order, with the names of their replicas.
    """

    pools: Sequence[Pool]
    changes: list[tuple[str, str]] = field(default_factory=list)
    _ended: dict[str, RequestEnded] = field(default_factory=dict)
    _sent: int = 0

    async def ask(self, key: str, body: bytes | None = None, facts: RequestFacts | None = None) -> Told:
        """Send a request and wait for its end; without a body, each request is another one."""
        loop = asyncio.get_running_loop()
        self._sent += 1
        name = f"req_{self._sent}"

        def emit(event: Event) -> None:
            if isinstance(event, RequestEnded):
                self._ended[name] = event
            elif isinstance(event, BreakerChanged):
                self.changes.append((event.replica, event.state))

        runtime = Runtime(loop, emit, lambda: 0.0, TimerQueue(loop))
        call = Call(Api.CHAT, body or b'{"n": "%d"}' % self._sent, {}, 1, "m", streaming=True)
        client = RecordingClient()
        model = Model("m", self.pools, default_timeouts(retry_after_s_max=0.0))
        Race(model, call, facts or RequestFacts(), client, Caller(name, key, loop.time()), runtime).start()
        await client.over.wait()
        await asyncio.sleep(0)
        return Told(self._ended[name], client.error)


def play(
    scene: Callable[[House], Awaitable[None]],
    replicas: Sequence[Scripted],
    fallbacks: Iterable[Scripted] = (),
    ledger: Ledger | None = None,
) -> House:
    """Run a scene, a coroutine function, over one pool and its fallbacks; replicas are named a, b, ..."""
    names = iter("abcdefgh")

    async def main() -> House:
        quota = None if ledger is None else "q"
        groups = [replicas, *([each] for each in fallbacks)]
        made = [[Replica(next(names), each, quota) for each in group] for group in groups]
        ledgers = {} if ledger is None else {"q": ledger}
        hedge = default_hedging(policy=Policy.OFF)
        house = House([Pool(f"pool-{number}", group, hedge, ledgers) for number, group in enumerate(made)])
        await scene(house)
        return house

    return run_virtual(main())
