"""Which replica holds what: ids of kept answers, so that requests which go on with them are sent there. Pure.

Bounded: the least recently used id is forgotten first. No units.
"""

from collections import OrderedDict
from typing import Final

KEPT_MAX: Final = 100_000  # ids of some 60 bytes: 20 MB at most


class Affinity:
    """Ids and the replicas that gave them.

    Args:
        kept_max: how many ids are known at most.
    """

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._replicas: OrderedDict[str, str] = OrderedDict()

    def learn(self, answer_id: str, replica: str) -> None:
        """A replica has given an answer this id."""
        self._replicas[answer_id] = replica
        self._replicas.move_to_end(answer_id)
        if len(self._replicas) > self._kept_max:
            self._replicas.popitem(last=False)

    def replica_of(self, answer_id: str) -> str | None:
        """Name of the replica that gave this id, None where nobody knows."""
        replica = self._replicas.get(answer_id)
        if replica is not None:
            self._replicas.move_to_end(answer_id)
        return replica
