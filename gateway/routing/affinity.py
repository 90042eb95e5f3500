"""Maps ids of stored answers to their replicas, so that follow-up requests go to the replica that has the answer. Pure.

Bounded: the least recently used id is evicted first. No units.
"""

from collections import OrderedDict
from typing import Final

KEPT_MAX: Final = 100_000  # ids of about 60 bytes: 20 MB at most


class Affinity:
    """Answer ids and the replicas that produced them.

    Args:
        kept_max: maximum number of ids.
    """

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._replicas: OrderedDict[str, str] = OrderedDict()

    def learn(self, answer_id: str, replica: str) -> None:
        """Record the replica that produced an answer id."""
        self._replicas[answer_id] = replica
        self._replicas.move_to_end(answer_id)
        if len(self._replicas) > self._kept_max:
            self._replicas.popitem(last=False)

    def replica_of(self, answer_id: str) -> str | None:
        """Return the name of the replica that produced this id, or None if the id is unknown."""
        replica = self._replicas.get(answer_id)
        if replica is not None:
            self._replicas.move_to_end(answer_id)
        return replica
