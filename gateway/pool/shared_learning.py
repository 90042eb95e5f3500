"""Exchange of the samples of one pool between gateways: own ones out, those of the others in. Pure.

Samples go out as counts of bins and as sums, which the engine adds; each gateway takes in what others have added since
its last answer, so that all have the same windows, equal to those of one gateway. A gateway that starts reads the last
two minutes. Before there is a fit, the first TTFTs go out by bin, so that all begin with the same base.

Without the loads of the others, common predictions of own engines would make all gateways send to the same one: then
nothing is taken in. Units: seconds of the loop's clock, tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.estimation.window import RELATIVE_ACCURACY, median_of
from gateway.pool.exchanged import Exchanged, Slice
from gateway.pool.pool import Pool
from gateway.pool.shared_loads import SharedLoads
from gateway.share.words import Answer, Ask, SliceAnswer

PERIOD_S: Final = 1.0
_FORM: Final = f"learn1 {RELATIVE_ACCURACY}"  # of the names and their units; another meaning is another form
_EVENTS, _CENSORED, _ANSWERS, _FIRST, _FIT = "ecayf"  # first letters of names; a number follows
_UNITS: Final = tuple(2.0**bits for bits in (0, 16, 12, 12, 8, 8, 8, 16, 12, 12))  # of the fit: number, matrix, right
_SUM_MAX: Final = 2**50
_BEGIN_SAMPLES: Final = 20  # first TTFTs of all gateways


class SharedLearning:
    """The exchange of what was learned about one pool: a `gateway.share.sync.Part`.

    Args:
        loads: the exchange of its loads.
    """

    def __init__(self, pool: Pool, loads: SharedLoads) -> None:
        self.pool = pool
        self._loads = loads
        self._batches = any(replica.batches for replica in pool.replicas)
        self._due_s = -1.0

    def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
        """Return the new samples once a second."""
        if now_s < self._due_s or not self._loads.is_used(now_s):
            return ()
        self._due_s = now_s + max(PERIOD_S, 10 * period_s) - period_s / 2
        key = f"{_FORM} {'work' if self.pool.first_token.times_work else 'content'} {self.pool.name}"
        learning = self.pool.learning
        if learning.exchanged is None or learning.exchanged.key != key:
            learning.exchanged = Exchanged(key, Slice(learning.restored_age_s))
            learning.exchanged.first_window.take_new()
            learning.take_new()
        return (learning.exchanged.slice.ask(key, self._take_new(learning.exchanged, now_s)),)

    def answered(self, answers: Sequence[Answer], now_s: float) -> None:
        """Take in the samples of the others."""
        exchanged = self.pool.learning.exchanged
        for answer in answers:
            if isinstance(answer, SliceAnswer) and exchanged is not None:
                others = exchanged.slice.others(answer)
                if others and not (self._batches and not self._loads.are_known):
                    self._put(exchanged, others, now_s)

    def _take_new(self, exchanged: Exchanged, now_s: float) -> dict[str, int]:
        learning = self.pool.learning
        learning.predictor.fold_new(now_s)
        (events, censored), lengths = learning.take_new()
        first = learning.predictor.first_s
        for ttft_s in first[exchanged.first_sent :]:
            exchanged.first_window.add_event(ttft_s, now_s)
        exchanged.first_sent = len(first)
        new_first = exchanged.first_window.take_new()[0]
        exchanged.first.update(new_first)
        fit = zip(learning.predictor.take_new(), _UNITS, strict=True)
        added = {f"{_FIT}{place}": min(_SUM_MAX, round(value * unit)) for place, (value, unit) in enumerate(fit)}
        for letter, counts in ((_EVENTS, events), (_CENSORED, censored), (_ANSWERS, lengths), (_FIRST, new_first)):
            added |= {f"{letter}{index}": count for index, count in counts.items()}
        return {name: value for name, value in added.items() if value}

    def _put(self, exchanged: Exchanged, others: Mapping[str, int], now_s: float) -> None:
        learning, predictor = self.pool.learning, self.pool.learning.predictor
        events, censored, lengths, first, fit = (_numbered(others, letter) for letter in "ecayf")
        exchanged.first.update(first)
        if not predictor.has_fit and exchanged.first.total() >= _BEGIN_SAMPLES:
            predictor.begin(median_of(exchanged.first))
        if fit.get(0):
            predictor.put(fit[0], [fit.get(place, 0) / unit for place, unit in enumerate(_UNITS)][1:])
        learning.put((events, censored), lengths, fit.get(0, 0) + sum(first.values()), now_s)


def _numbered(counts: Mapping[str, int], letter: str) -> dict[int, int]:
    """Return the counts whose names have a letter, by number."""
    return {int(name[1:]): count for name, count in counts.items() if name[0] == letter and name[1:].isdecimal()}
