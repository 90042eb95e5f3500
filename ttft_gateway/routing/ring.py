"""Selects the replicas considered for one decision, so that a decision costs the same for ten and for hundreds. Pure.

A small pool is considered whole, and so is one with different weights. In a large pool, the decision starts with a
group at a random position and takes the next group only if the first has no candidate: the best of eight random
replicas is nearly as good as the best of all (Mitzenmacher, 2001), and many gateways do not send everything to the same
replica at the same time. Groups follow a fixed shuffled order, because neighbours in the configured order may share a
rack and its faults. The replica that last received a prompt's prefix is in the first group too; otherwise its prefix
cache would not be found again.

Independent of the reason for which a replica is chosen.
"""

import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from ttft_gateway.routing.replicas import Replica
from ttft_gateway.routing.strategies import in_turn, is_weighted, turns

WHOLE_MAX: Final = 16  # larger pools are searched in groups
_GROUP: Final = 8
_PREFIXES_MAX: Final = 65_536  # prefixes with a recorded last replica, about 100 bytes each


class Ring:
    """The replicas of one pool, or some of them.

    Args:
        replicas: replicas in the configured order.
        whole: ring of the whole pool, which records the prefixes; None if this is that ring.

    Attributes:
        is_large: True if a decision considers groups.
    """

    def __init__(self, replicas: Sequence[Replica], whole: "Ring | None" = None) -> None:
        self.replicas = replicas
        self._turns = turns(replicas)
        self._turn = 0  # index in it
        self._shuffled = sorted(replicas, key=lambda replica: zlib.crc32(replica.name.encode()))
        self._members = frozenset(replicas)
        self._whole = whole
        # Random groups would distort the shares of weighted replicas.
        self.is_large: bool = len(replicas) > WHOLE_MAX and (
            not is_weighted(replicas) if whole is None else whole.is_large
        )
        self._last_replicas: OrderedDict[int, Replica] = OrderedDict()  # by prefix hash

    def random(self, rand: float, prefixes: Sequence[int] = ()) -> tuple[Iterator[Sequence[Replica]], float]:
        """Return groups of replicas to consider, in order; together they are the pool.

        Args:
            rand: uniform random number in [0, 1).
            prefixes: prefix hashes of the prompt, see `ttft_gateway.estimation.prefixes`.

        Returns:
            The groups, and a random number that is uniform and independent of the groups.
        """
        if not self.is_large:
            return iter((self.replicas,)), rand
        position = rand * len(self._shuffled)
        return self._groups(self._shuffled, int(position), self._member(prefixes)), position - int(position)

    def in_turn(self) -> Iterator[Sequence[Replica]]:
        """Return the groups of `random` in round-robin order."""
        return self._groups(self._turns, self._turn, None) if self.is_large else iter((self.replicas,))

    def take_turn(self, candidates: Collection[Replica]) -> Replica:
        """Return the next candidate in round-robin order; at least one is in the ring."""
        replica, self._turn = in_turn(self._turns, candidates, self._turn)
        return replica

    def sent(self, replica: Replica, prefixes: Sequence[int]) -> None:
        """Record the replica that received a prompt with these prefixes."""
        if not self.is_large:
            return
        for prefix in prefixes:
            self._last_replicas[prefix] = replica
            self._last_replicas.move_to_end(prefix)
        while len(self._last_replicas) > _PREFIXES_MAX:
            self._last_replicas.popitem(last=False)

    def last_replica(self, prefixes: Sequence[int]) -> Replica | None:
        """Return the replica that last received the longest known prefix of this prompt."""
        return next(
            (self._last_replicas[prefix] for prefix in reversed(prefixes) if prefix in self._last_replicas), None
        )

    def _member(self, prefixes: Sequence[int]) -> Replica | None:
        """Return the replica of this ring that last received the longest known prefix of this prompt."""
        replica = (self._whole or self).last_replica(prefixes)
        return replica if replica in self._members else None

    @staticmethod
    def _groups(ring: Sequence[Replica], start: int, first: Replica | None) -> Iterator[Sequence[Replica]]:
        size = len(ring)
        end = start + size
        for group_start in range(start, end, _GROUP):
            group = [ring[index % size] for index in range(group_start, min(group_start + _GROUP, end))]
            if first is not None and group_start == start and first not in group:
                group.append(first)
            yield group
