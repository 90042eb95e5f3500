"""A fleet of processes that share the limits of one key, and the traffic that they get; on any event loop."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.admission.admission import Admission, Permit, RequestSize
from gateway.admission.caller_limits import CallerLimits, KeyLimiter
from gateway.errors import GatewayError
from gateway.events import Event
from gateway.race.context import Caller, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.share.asker import TICK_S, Asker
from gateway.share.fleet import Fleet, WhenAway
from gateway.share.leases import Leases
from gateway.share.messages import Engine, Reply

SIZE = RequestSize(100.0, 100.0)


@dataclass
class Meter:
    """One true bucket that is charged for everything admitted.

    Attributes:
        over: deepest debt.
        admitted: time of each admission.
    """

    limit: float
    start_s: float
    over: float = 0.0
    admitted: list[float] = field(default_factory=list)
    _left: float = math.nan
    _now_s: float = 0.0

    def charge(self, now_s: float, cost: float = 1.0) -> None:
        """Charge one admission."""
        self._left = self.left(now_s) - cost
        self._now_s = now_s
        self.over = max(self.over, -self._left)
        self.admitted.append(now_s)

    def left(self, now_s: float) -> float:
        """Return the amount left."""
        if math.isnan(self._left):
            self._left, self._now_s = self.limit, self.start_s
        return min(self.limit, self._left + (now_s - self._now_s) * self.limit / 60)

    def allowed(self, now_s: float) -> float:
        """Return what a bucket that was never full again would have admitted."""
        return self.limit * (1 + (now_s - self.start_s) / 60)


class Admitted:
    """A request that notes its admission, and never ends."""

    def __init__(self, on_start: Callable[[], None]) -> None:
        self.start = on_start

    def client_gone(self) -> None:
        """Do nothing."""

    def shut_down(self) -> None:
        """Do nothing."""


class FleetProcess:
    """One gateway process, as far as limits matter.

    Attributes:
        waits: time from arrival to admission of each admitted request.
        refused: number of rejected requests by code.
        events: events emitted.
        errors: bugs in leases.
        changes: the times at which the engine went (False) and came back (True).
    """

    def __init__(
        self,
        engine: Engine,
        limits: CallerLimits,
        loop: asyncio.AbstractEventLoop,
        rand: random.Random,
        when_away: WhenAway = WhenAway.SHARE,
    ) -> None:
        self.loop = loop
        self.fleet = Fleet(when_away)
        self.changes: list[tuple[float, bool]] = []
        self.errors: list[Exception] = []
        self.asker = Asker(
            engine,
            self.fleet,
            loop,
            rand.random,
            lambda: self._note(is_up=False),
            lambda: self._note(is_up=True),
            self.errors.append,
        )
        self.limits = Leases(self.fleet)
        self.engine = engine
        self.asker.ticks += [self.limits.tick, self._exchange]
        self.events: list[Event] = []
        self.runtime = Runtime(loop, self.events.append, rand.random, TimerQueue(loop))
        self.limiter = KeyLimiter(limits, "key:k", self.limits)
        self.admission = Admission({"k": self.limiter}, {}, self.runtime)
        self.waits: list[float] = []
        self.refused: dict[str, int] = {}

    def _exchange(self, now_s: float) -> None:
        """Exchange how far limits are used up, as `gateway.share.sync.Sync` does."""

        def answered(reply: Reply | None) -> None:
            if reply is not None:
                self.limits.low.answered(reply.answers, self.loop.time())

        if asks := self.limits.low.asks(now_s, TICK_S):
            self.engine.ask(asks, answered)

    def _note(self, *, is_up: bool) -> None:
        self.changes.append((self.loop.time(), is_up))

    def request(self, meter: Meter, size: RequestSize = SIZE) -> Permit | None:
        """Let a request arrive; return its permit, None if it was rejected immediately."""
        arrived_s = self.loop.time()

        def admitted() -> None:
            now_s = self.loop.time()
            self.waits.append(now_s - arrived_s)
            meter.charge(now_s)

        try:
            entry = self.admission.enter("k")
            permit = self.admission.admit(Caller("id", "k", arrived_s), "m", size, entry)
            permit.run(Admitted(admitted), self._refuse)
        except GatewayError as error:
            self._refuse(error)
            return None
        return permit

    def _refuse(self, error: GatewayError) -> None:
        code = error.code or error.kind
        self.refused[code] = self.refused.get(code, 0) + 1

    async def traffic(self, per_s: float, until_s: float, meter: Meter, rand: random.Random) -> None:
        """Let requests arrive at random times."""
        while True:
            await asyncio.sleep(rand.expovariate(per_s))
            if self.loop.time() >= until_s:
                return
            self.request(meter)


async def offer(
    processes: Sequence[FleetProcess], rates: Sequence[float], for_s: float, meter: Meter, seed: int
) -> None:
    """Offer traffic to each process at its rate."""
    until_s = processes[0].loop.time() + for_s
    async with asyncio.TaskGroup() as tasks:
        for number, (process, per_s) in enumerate(zip(processes, rates, strict=True)):
            tasks.create_task(process.traffic(per_s, until_s, meter, random.Random(f"{seed} {number}")))
