"""Which of many replicas are looked at for one decision, so that it costs the same for ten and for hundreds. Pure.

A small pool is looked at whole. Of a large one a group from a random place is, and the next group only where that has
nothing to offer: the best of eight random ones is nearly as good as the best of all (Mitzenmacher, 2001), and many
gateways do not send everything to the same replica at once. Groups are drawn from a fixed order that is unlike the
configured one, because neighbours there share a rack and its faults. Whoever was last sent a prompt's beginning belongs
to the first group, too, or no prefix cache would be found again.

It must not know why a replica is chosen.
"""

import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from gateway.routing.replicas import Replica

WHOLE_MAX: Final = 16  # replicas of a pool that is looked at whole
_GROUP: Final = 8
_HOLDERS_MAX: Final = 65_536  # prefixes of which it is known who had them last, about 100 bytes each


class Ring:
    """The replicas of one pool.

    Args:
        replicas: in the configured order.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._shuffled = sorted(replicas, key=lambda replica: zlib.crc32(replica.name.encode()))
        self.is_large = len(replicas) > WHOLE_MAX
        self._holders: OrderedDict[int, Replica] = OrderedDict()  # by prefix hash

    def random(self, rand: float, prefixes: Sequence[int] = ()) -> tuple[Iterator[Sequence[Replica]], float]:
        """Groups to look at, one after the other; all of them together are the pool.

        Args:
            rand: uniform in [0, 1).
            prefixes: of the prompt, see `gateway.estimation.prefixes`.

        Returns:
            The groups, and a random number that is uniform still, whatever the groups are.
        """
        if not self.is_large:
            return iter((self._replicas,)), rand
        place = rand * len(self._shuffled)
        return self._groups(self._shuffled, int(place), self._holder(prefixes)), place - int(place)

    def in_turn(self, turn: int) -> Iterator[Sequence[Replica]]:
        """The same, from a place in the configured order on."""
        return self._groups(self._replicas, turn, None) if self.is_large else iter((self._replicas,))

    def sent(self, replica: Replica, prefixes: Sequence[int]) -> None:
        """A prompt with these prefixes was sent to a replica."""
        if not self.is_large:
            return
        for link in prefixes:
            self._holders[link] = replica
            self._holders.move_to_end(link)
        while len(self._holders) > _HOLDERS_MAX:
            self._holders.popitem(last=False)

    def _holder(self, prefixes: Sequence[int]) -> Replica | None:
        """Who was sent most of this prompt last."""
        return next((self._holders[link] for link in reversed(prefixes) if link in self._holders), None)

    @staticmethod
    def _groups(ring: Sequence[Replica], start: int, first: Replica | None) -> Iterator[Sequence[Replica]]:
        turned = range(start, start + len(ring), _GROUP)
        for at in turned:
            group = [ring[number % len(ring)] for number in range(at, min(at + _GROUP, start + len(ring)))]
            if first is not None and at == start and first not in group:
                group.append(first)
            yield group
