"""Several simulated gateways before the same replicas, alone or with what they share, in virtual time.

Each request goes to a random gateway, as a balancer would send it. Owns the gateways; the engine is the gateway's own,
in the process, with a delay in place of a network. Units: seconds of the loop's clock.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.race.context import Model
from gateway.race.deadlines import Timeouts
from gateway.share.hub import ShareHub
from gateway.share.messages import Answered, Ask
from gateway.share.pools import exchanges_of
from gateway.share.sync import Sync
from streaming_bench.simulation.world import World
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.learned import learned_pool, restore_pool
from ttft_gateway.pool.pool import Pool

_DELAY_S = 0.001  # of an answer of the engine

NewPool = Callable[[Mapping[str, Ledger]], Pool]


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The gateways of a run.

    Attributes:
        gateways: number of gateways.
        share_s: time between two exchanges of what they share; None if they share nothing.
    """

    gateways: int = 1
    share_s: float | None = None


class Gateway:
    """One simulated gateway.

    Args:
        new_model: returns a model that has learned nothing.
        ledgers: ledgers of its quotas.
        sync: its exchange; None if it shares nothing.

    Attributes:
        model: its only model.
    """

    def __init__(self, new_model: Callable[[], Model], ledgers: Mapping[str, Ledger], sync: Sync | None) -> None:
        self._new_model = new_model
        self._ledgers = ledgers
        self._sync = sync
        self.model = new_model()

    @property
    def pool(self) -> Pool:
        """The pool of its only model."""
        return self.model.pools[0]

    def start(self) -> None:
        """Begin to share."""
        if self._sync is not None:
            self._sync.exchanges = exchanges_of([(self.model.pools, self.model.retries)], self._ledgers)
            self._sync.start()

    def restart(self, now_s: float, *, keeps: bool) -> None:
        """Forget what was learned, unless it `keeps` it as a file would."""
        old, self.model = self.pool, self._new_model()
        if keeps:
            for learned in learned_pool(old, now_s):
                if learned is not None:
                    restore_pool(self.pool, learned, 0.0, now_s)
        if self._sync is not None:
            self._sync.stop()
            self.start()


class Gateways:
    """All gateways of a run.

    Args:
        new_pool: returns a pool that has learned nothing.
        timeouts: time limits of requests.
        seed: seed of the choice of gateways.

    Attributes:
        each: the gateways.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fleet: FleetPlan,
        world: World,
        new_pool: NewPool,
        timeouts: Timeouts,
        seed: int,
    ) -> None:
        self._rng = random.Random(f"{seed}/fleet")
        self._restarted = 0
        hub = ShareHub()

        def gateway(number: int) -> Gateway:
            ledgers, sync = world.new_ledgers(), self._sync(loop, fleet, hub, str(number))
            return Gateway(lambda: Model("bench", [new_pool(ledgers)], timeouts), ledgers, sync)

        self.each = [gateway(number) for number in range(fleet.gateways)]

    def start(self) -> None:
        """Begin to share."""
        for gateway in self.each:
            gateway.start()

    def pick(self) -> Gateway:
        """Return the gateway of the next request."""
        return self.each[0] if len(self.each) == 1 else self._rng.choice(self.each)

    def restart(self, now_s: float, *, keeps: bool) -> None:
        """Restart the next gateway."""
        self.each[self._restarted % len(self.each)].restart(now_s, keeps=keeps)
        self._restarted += 1

    def _sync(self, loop: asyncio.AbstractEventLoop, fleet: FleetPlan, hub: ShareHub, name: str) -> Sync | None:
        if fleet.share_s is None:
            return None
        engine = _HubEngine(loop, hub, name)
        return Sync(engine, loop.time, loop.call_later, self._rng.random, 60, fleet.share_s)


class _HubEngine:
    """The engine in the process, for one gateway."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hub: ShareHub, name: str) -> None:
        self._loop = loop
        self._hub = hub
        self._name = name

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        reply = self._hub.answer(self._loop.time(), self._name, asks)
        self._loop.call_later(_DELAY_S, answered, reply)

    def close(self) -> None:
        """Do nothing: nothing is open."""
