"""The learned state of the pools of this process: read in slices, and given to pools that start with it.

Independent of where it is kept (gateway/server/learned_file.py). Units: seconds.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final, NamedTuple, Protocol

from gateway.server.topology import InForce
from ttft_gateway.pool.learned import Drop, LearnedModel, LearnedPool, learned_pool, restore_pool, sound_pool

_SLICE_PARTS: Final = 8  # replicas read between two turns of the event loop, about 1 ms

_PART_MODELS: Final = 8  # of a message; each has the times of its replicas


class Restored(NamedTuple):
    """The result of a restore.

    Attributes:
        pools: number of pools with restored state.
        cold: number of other pools.
    """

    pools: int
    cold: int


class LearnedState(Protocol):
    """A learned state, of one process or of several."""

    async def collect(self) -> dict[str, LearnedModel]:
        """Return the state of all models with samples."""

    def restore(self, models: Mapping[str, LearnedModel], elapsed_s: float) -> Restored | None:
        """Begin with a state.

        Args:
            elapsed_s: time since it was recorded.

        Returns:
            The result; None if it is known later.
        """


class OwnState:
    """The learned state of this process.

    Args:
        in_force: the topology in force.
        drop: receives the name of each pool with damaged state, and the reason.
    """

    def __init__(self, in_force: InForce, drop: Drop) -> None:
        self._in_force = in_force
        self._drop = drop
        self._loop = asyncio.get_running_loop()

    async def collect(self) -> dict[str, LearnedModel]:
        return {name: model async for part in self.parts() for name, model in part.items()}

    async def parts(self) -> AsyncIterator[dict[str, LearnedModel]]:
        """Yield the state in parts, read in slices that do not block the event loop for long."""
        learned, parts = dict[str, LearnedModel](), 0
        for model in self._in_force.models():
            pools: dict[str, LearnedPool] = {}
            for pool in model.pools:
                for state in learned_pool(pool, self._loop.time()):
                    parts += 1
                    if state is not None and state.is_worth_keeping:
                        sound = sound_pool(pool.name, state, self._drop)
                        pools |= {} if sound is None else {pool.name: sound}
                    if parts % _SLICE_PARTS == 0:
                        await asyncio.sleep(0)
            learned[model.name] = LearnedModel(model.scale.state, pools)
            if len(learned) >= _PART_MODELS:
                yield learned
                learned = {}
        yield learned

    def restore(self, models: Mapping[str, LearnedModel], elapsed_s: float) -> Restored:
        restored, every, now_s = 0, 0, self._loop.time()
        for name, model in self._in_force.topology.models.items():
            state = models.get(name)
            for pool in model.pools:
                every += 1
                if state is None or pool.name not in state.pools:
                    continue
                try:
                    if restore_pool(pool, state.pools[pool.name], elapsed_s, now_s):
                        restored += 1
                        model.scale.restore(state.tokens)
                except ValueError as error:
                    self._drop(pool.name, str(error))
        return Restored(restored, every - restored)
