"""The switches of this process: hedging of a model on or off, replicas out of use or in.

Part of the composition root; works on the models in force. Units: seconds of the loop's clock.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.errors import LastReplica, UnknownReplica
from gateway.events import Event
from gateway.process_events import HedgingSwitched, ReplicaSwitched
from gateway.race.context import Model
from gateway.server.topology import InForce
from gateway.share.sync import Reach


class _Publish(Protocol):
    async def __call__(self, model: str | None, /, *, on: bool) -> Reach: ...


class Switches:
    """The switches of one process.

    Args:
        in_force: the topology in force.
        emit: receives an event for each change.
        time: returns the time of the loop.

    Attributes:
        publish: passes a switch of hedging on to other hosts, and returns the number of processes that were reached;
            None without other hosts.
        on_switch: called after another process has switched hedging.
    """

    def __init__(self, in_force: InForce, emit: Callable[[Event], None], time: Callable[[], float]) -> None:
        self._in_force = in_force
        self._emit = emit
        self._time = time
        self.publish: _Publish | None = None
        self.on_switch: Callable[[HedgingSwitched], object] = emit

    def set_hedging(self, name: str | None, /, *, on: bool) -> bool:
        """Switch hedging of a model, or of every model if None, without an event; return True after a change."""
        models = self._models(name)
        changed = [pool for model in models for pool in model.pools if pool.hedging_on is not on]
        for pool in changed:
            pool.hedging_on = on
        return bool(changed)

    def follow_hedging(self, name: str | None, /, *, on: bool) -> None:
        """Switch hedging as another process did."""
        if self.set_hedging(name, on=on):
            self.on_switch(HedgingSwitched(self._time(), name, on))

    async def switch_hedging(self, name: str | None, /, *, on: bool) -> Reach | None:
        """Switch hedging of a model, or of every model if None, here and in the processes that share it."""
        self.set_hedging(name, on=on)
        self._emit(HedgingSwitched(self._time(), name, on))
        return None if self.publish is None else await self.publish(name, on=on)

    async def switch_replica(self, name: str, model_name: str | None, /, *, out: bool) -> None:
        """Take a replica out or in.

        Raises:
            UnknownReplica: no replica has this name.
            LastReplica: a model would have no replica left; nothing was changed.
        """
        for switched in self.set_replica(name, model_name, out=out):
            self._emit(switched)

    def set_replica(self, name: str, model_name: str | None, /, *, out: bool) -> list[ReplicaSwitched]:
        """Take a replica out or in, and return the events to emit.

        Raises:
            UnknownReplica: no replica has this name.
            LastReplica: a model would have no replica left; nothing was changed.
        """
        models = [model for model in self._models(model_name) if model.replica(name) is not None]
        if not models:
            raise UnknownReplica(
                f"replica {name[:80]!r} does not exist; GET /admin/replicas lists the replicas", param="replica"
            )
        for model in models if out else ():
            if all(replica.out or replica.name == name for replica in model.replicas):
                raise LastReplica(
                    f"{name} is the last replica of {model.name}; take another one in first", param="replica"
                )
        return [switched for model in models for switched in self._set(model, [name], out=out)]

    def take_in(self, model: Model) -> list[ReplicaSwitched]:
        """Take every replica of a model in, and return the events to emit."""
        return self._set(model, [replica.name for replica in model.replicas], out=False)

    def _models(self, name: str | None) -> list[Model]:
        return [model for model in self._in_force.topology.models.values() if name in (None, model.name)]

    def _set(self, model: Model, names: Sequence[str], *, out: bool) -> list[ReplicaSwitched]:
        now_s, switched = self._time(), []
        for pool in model.pools:
            for replica in pool.replicas:
                if replica.name in names and replica.taken_out is not out:
                    pool.switch(replica, now_s, out=out)
                    switched.append(ReplicaSwitched(now_s, model.name, replica.name, out))
        return switched
