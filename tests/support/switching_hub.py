"""The hub of a host that also carries switches, as a server does."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.share import messages
from gateway.share.hub import ShareHub
from gateway.share.messages import Ask, Reply, SwitchesAnswer, SwitchesAsk, SwitchState


@dataclass(frozen=True)
class _Item:
    switch: SwitchState
    number: int
    until_s: float


class SwitchingHub(ShareHub):
    """The engine of several hosts, in process."""

    def __init__(self) -> None:
        super().__init__()
        self._items: dict[str, _Item] = {}  # oldest first
        self._number = 0
        self._read: dict[str, int] = {}  # number of the last switch that a process has

    def answer(self, now_s: float, process: str, asks: Sequence[Ask], until_s: float = math.inf) -> Reply:
        """Execute a batch of a process."""
        reply = super().answer(now_s, process, asks, until_s)
        for place, ask in enumerate(asks):
            if isinstance(ask, SwitchesAsk):
                reply.answers[place] = self._switch(now_s, process, ask)
        return reply

    def gone(self, process: str) -> None:
        """Forget a process."""
        self._read.pop(process, None)
        super().gone(process)

    def _switch(self, now_s: float, process: str, ask: SwitchesAsk) -> SwitchesAnswer:
        self._items = {name: item for name, item in self._items.items() if now_s < item.until_s}
        for switch in ask.switches:
            self._items.pop(switch.name, None)
            if len(self._items) >= messages.SWITCHES_MAX:
                del self._items[next(iter(self._items))]
            self._number = max(self._number + 1, int(1000 * now_s))
            self._items[switch.name] = _Item(switch, self._number, now_s + switch.left_s)
        after = ask.after if ask.after <= self._number else 0  # a number from before a loss
        self._read[process] = after
        items = [item for item in self._items.values() if item.number > after]
        return SwitchesAnswer(
            self._number,
            [SwitchState(item.switch.name, item.switch.value, item.until_s - now_s) for item in items],
            sum(self._number <= read for read in self._read.values()),
        )
