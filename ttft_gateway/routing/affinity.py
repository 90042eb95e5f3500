"""Maps ids of stored answers to their keys and replicas. Pure.

A request that continues an answer goes to the replica that has it. An answer belongs to the API key whose request it
answered: an upstream has only the gateway's own key, so that it would continue the answer of any caller.

Bounded: the least recently used id is evicted first, and long ids are not kept. No units.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

KEPT_MAX: Final = 100_000  # ids of about 60 characters: 30 MB at most
ID_CHARS_MAX: Final = 256  # OpenAI's have 55


class Kept(NamedTuple):
    """A stored answer.

    Attributes:
        key_name: name of the API key whose request it answered.
        model, replica: names of the model and of the replica that produced it.
    """

    key_name: str
    model: str
    replica: str


class Affinity:
    """Ids of stored answers.

    Args:
        kept_max: maximum number of ids.
    """

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def learn(self, answer_id: str, kept: Kept) -> None:
        """Record an answer; ignore an id that is too long."""
        if len(answer_id) > ID_CHARS_MAX:
            return
        self._kept[answer_id] = kept
        self._kept.move_to_end(answer_id)
        if len(self._kept) > self._kept_max:
            self._kept.popitem(last=False)

    def find(self, answer_id: str) -> Kept | None:
        """Return the answer with this id, or None if the id is unknown."""
        kept = self._kept.get(answer_id)
        if kept is not None:
            self._kept.move_to_end(answer_id)
        return kept
