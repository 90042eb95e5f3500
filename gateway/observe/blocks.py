"""Counts requests by the block of an experiment in which they arrived.

Nothing is counted before the first block. A request that ends after its block still counts there, while the block is
one of the last eight. Units: seconds of the events' clock.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from gateway.events import Event, RequestEnded
from gateway.observe.proof import Goal, count_request
from gateway.proof.blocks import Block

BLOCKS_KEPT: Final = 8
COUNTED_S_MAX: Final = 3 * 3600.0  # since the last block began: an experiment that was given up costs nothing


class BlockCounts:
    """Counts the requests of every model in the current block and the last ones.

    Attributes:
        goals: SLO and limit of each model, by name.
    """

    def __init__(self) -> None:
        self.goals: Mapping[str, Goal] = {}
        self._blocks: deque[tuple[float, Block]] = deque(maxlen=BLOCKS_KEPT)

    def begin(self, name: str, now_s: float) -> None:
        """Begin a block, unless it has begun."""
        if all(block.name != name for _, block in self._blocks):
            self._blocks.append((now_s, Block(name)))

    def blocks(self) -> list[Block]:
        """Return the kept blocks."""
        return [block for _, block in self._blocks]

    def clear(self) -> None:
        """Forget every block."""
        self._blocks.clear()

    def on_event(self, event: Event) -> None:
        """Count a request (a `gateway.events.Listener`)."""
        if type(event) is not RequestEnded or event.model not in self.goals:
            return
        arrived_s = event.at_s - _length_s(event)
        for start_s, block in reversed(self._blocks):
            if start_s <= arrived_s:
                tally = block.models.get(event.model)
                if tally is None:
                    tally = block.models[event.model] = self.goals[event.model].tally()
                count_request(event, tally)
                return


def _length_s(event: RequestEnded) -> float:
    """Return the time from a request's arrival to its record, which follows the end of an attempt that is read on."""
    if event.measured is None or not event.attempts:
        return event.total_s
    last_s = max(attempt.start_s + attempt.end_s for attempt in event.attempts)
    return max(event.total_s, event.queued_s + event.gateway_s + last_s)
