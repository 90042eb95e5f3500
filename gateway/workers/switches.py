"""The switches of a gateway with workers: hedging and replicas, at all workers, and for those that begin later.

No units.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from gateway import errors
from gateway.events import Event
from gateway.process_events import HedgingSwitched, ReplicaSwitched
from gateway.share.news import Reach
from gateway.workers.group import Worker, WorkerGroup
from gateway.workers.messages import SwitchHedging, SwitchReplica, SwitchReplicaDone

_SPREAD_S_MAX: Final = 4.0  # until a worker has passed a switch on to other hosts


class GroupSwitches:
    """The state of all switches.

    Args:
        group: the workers.
        models: returns the names of all models.
        emit: receives events.
        is_shared: True if workers share with those of other hosts, over a server.

    Attributes:
        revision: number of the changes that a worker which begins meanwhile would miss.
    """

    def __init__(
        self,
        group: WorkerGroup,
        models: Callable[[], Iterable[str]],
        emit: Callable[[Event], object],
        *,
        is_shared: bool,
    ) -> None:
        self._group = group
        self._models = models
        self._emit = emit
        self._is_shared = is_shared
        self._loop = asyncio.get_running_loop()
        self._hedging: dict[str, bool] = {}  # of models that were switched
        self._out: set[tuple[str, str]] = set()  # models and replicas
        self.revision = 0

    @property
    def off(self) -> list[str]:
        """Models whose hedging is switched off."""
        return [model for model, on in self._hedging.items() if not on]

    @property
    def out(self) -> list[tuple[str, str]]:
        """Models and names of the replicas that are taken out."""
        return sorted(self._out)

    async def switch_hedging(self, model: str | None, /, *, on: bool) -> Reach:
        """Switch hedging at every worker, then at the other hosts; see `gateway.admin.Switch`."""
        self._set_hedging(model, on=on)
        self.revision += 1
        switch = SwitchHedging(model, on)
        reach = reached(await self._group.ask("switch_hedging", switch))
        self._emit(HedgingSwitched(self._loop.time(), model, on))
        if self._is_shared:
            for _, answer in await self._group.ask("spread_switch", switch, _SPREAD_S_MAX, self._group.ready[:1]):
                spread = None if answer is None else msgspec.msgpack.decode(answer, type=Reach | None)
                return reach if spread is None else spread
        return reach

    def on_switch(self, switch: SwitchHedging) -> None:
        """Keep and report a switch of another host, once; every worker passes it on."""
        if self._set_hedging(switch.model, on=switch.on):
            self._emit(HedgingSwitched(self._loop.time(), switch.model, switch.on))

    def _set_hedging(self, model: str | None, *, on: bool) -> bool:
        """Keep a switch; return True if it changes anything."""
        names = self._models() if model is None else [model]
        changed = {name: on for name in names if self._hedging.get(name, True) is not on}
        self._hedging |= changed
        return bool(changed)

    async def switch_replica(self, replica: str, model: str | None, /, *, out: bool) -> Reach:
        """Take a replica out or in at every worker; see `gateway.admin.ReplicaSwitch`."""
        answers = await self._group.ask("switch_replica", SwitchReplica(replica, model, out))
        done = [msgspec.msgpack.decode(answer, type=SwitchReplicaDone) for _, answer in answers if answer is not None]
        for each in done:
            if each.error == errors.UnknownReplica.__name__:
                raise errors.UnknownReplica(each.message, param="replica")
            if each.error:
                raise errors.LastReplica(each.message, param="replica")
        if done:
            self.on_switched(done[0].switched)
        return reached(answers)

    def on_switched(self, switched: list[ReplicaSwitched]) -> None:
        """Keep and report the replicas that all workers have taken out or in."""
        self.revision += bool(switched)
        for each in switched:
            (self._out.add if each.out else self._out.discard)((each.model, each.replica))
            self._emit(ReplicaSwitched(self._loop.time(), each.model, each.replica, each.out))


def reached(answers: list[tuple[Worker, bytes | None]]) -> Reach:
    """Return the workers that have answered, and the number of all."""
    return Reach(sum(answer is not None for _, answer in answers), len(answers))
