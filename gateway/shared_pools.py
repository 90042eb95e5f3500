"""The exchange of this process's pools, quotas and switches with a fleet; part of the composition root.

Works over any engine: the hub of the host, or a server for many hosts. Units: seconds of the loop's clock.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gateway.limits.ledger import Ledger
from gateway.pool.shared import shared_parts
from gateway.race.context import Model, Runtime
from gateway.share.messages import Drop, Engine
from gateway.share.sync import Reach, SharedNews, Sync

_HEDGING: Final = "hedging"  # name of its news; a model's follows after a space
_COMPONENT: Final = "share"
_REACH_S: Final = 2.0  # longest wait for the other processes to have a switch
_LOOK_S: Final = 0.05


class SharedPools:
    """The exchange of one process.

    Args:
        engine: connection to the engine.
        switch: switches hedging of a model, or of every model if None, on (True) or off as another process did.
        drop: receives what other processes have sent and is out of range.

    Attributes:
        sync: the timer of the exchange.
    """

    def __init__(
        self, engine: Engine, runtime: Runtime, switch: Callable[[str | None, bool], None], drop: Drop
    ) -> None:
        self._switch = switch
        self._drop = drop
        self._news = SharedNews(self._apply)
        loop = runtime.loop
        self.sync = Sync(
            engine, loop.time, loop.call_later, runtime.rand, on_error=lambda error: runtime.report(_COMPONENT, error)
        )

    def use(self, models: Iterable[Model], ledgers: Mapping[str, Ledger]) -> None:
        """Exchange these models and quotas from now on, after a start or a reload."""
        pools = [(model.pools, model.retries) for model in models]
        self.sync.parts = [self._news, *shared_parts(pools, ledgers, self.sync.parts, self._drop)]

    def start(self) -> None:
        """Begin to exchange."""
        self.sync.start()

    def close(self) -> None:
        """Stop; the engine stays open."""
        self.sync.stop()

    async def switched(self, model: str | None, *, on: bool) -> Reach:
        """Pass a switch of this process on to the others, and return the number of those that have it within 2 s."""
        news = self._news
        news.publish(_HEDGING if model is None else f"{_HEDGING} {model}", "on" if on else "off")
        for _ in range(round(_REACH_S / _LOOK_S)):
            await asyncio.sleep(_LOOK_S)
            if news.is_sent and news.reached >= self.sync.heads:
                break
        return Reach(news.reached if news.is_sent else 1, self.sync.heads)

    def _apply(self, name: str, value: str) -> None:
        kind, _, model = name.partition(" ")
        if kind == _HEDGING and value in ("on", "off"):
            self._switch(model or None, value == "on")
