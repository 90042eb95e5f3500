"""Maps ids of stored answers to their keys and replicas. Pure.

A request that continues an answer goes to the replica that has it. An answer belongs to the API key of the request that
it answered: an upstream has only the gateway's own key, so that it would continue the answer of any caller.

Bounded: the least recently used id is evicted first, and long ids are not recorded. No units.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

ANSWERS_MAX: Final = 100_000  # ids of about 60 characters: 30 MB at most
ID_CHARS_MAX: Final = 256  # OpenAI's have 55


class StoredAnswer(NamedTuple):
    """A stored answer.

    Attributes:
        key_name: name of the API key of the request that it answered.
        model, replica: names of the model and of the replica that produced it.
    """

    key_name: str
    model: str
    replica: str


class Affinity:
    """Ids of stored answers.

    Args:
        answers_max: maximum number of ids.
    """

    def __init__(self, answers_max: int = ANSWERS_MAX) -> None:
        self._answers_max = answers_max
        self._answers: OrderedDict[str, StoredAnswer] = OrderedDict()

    def learn(self, answer_id: str, answer: StoredAnswer) -> None:
        """Record an answer; ignore an id that is too long."""
        if len(answer_id) > ID_CHARS_MAX:
            return
        self._answers[answer_id] = answer
        self._answers.move_to_end(answer_id)
        if len(self._answers) > self._answers_max:
            self._answers.popitem(last=False)

    def find(self, answer_id: str) -> StoredAnswer | None:
        """Return the answer with this id, or None if the id is unknown."""
        answer = self._answers.get(answer_id)
        if answer is not None:
            self._answers.move_to_end(answer_id)
        return answer
