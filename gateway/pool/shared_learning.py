"""Exchange of the samples of one pool between gateways: own ones out, those of the others in. Pure.

Samples go out as counts of bins and as sums, which the engine adds; each gateway takes in what others have added since
its last answer, so that all have the same windows, equal to those of one gateway. A gateway that starts reads the last
two minutes. Before there is a fit, the first TTFTs go out by bin, so that all begin with the same base.

Without the loads of the others, common predictions of own engines would make all gateways send to the same one: then
nothing is taken in. Units: seconds of the loop's clock, tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct, convert

from gateway.estimation.window import RELATIVE_ACCURACY, BinCount, BinIndex, median_of
from gateway.pool.exchanged import Exchanged, Slice
from gateway.pool.pool import Pool
from gateway.pool.shared_loads import SharedLoads
from gateway.share.words import Answer, Ask, Drop, SliceAnswer, keep_silent

PERIOD_S: Final = 1.0
_FORM: Final = f"learn1 {RELATIVE_ACCURACY}"  # of the names and their units; another meaning is another form
_EVENTS, _CENSORED, _ANSWERS, _FIRST, _FIT = _LETTERS = "ecayf"  # first letters of names; a number follows
_DIGITS_MAX: Final = 6
_UNITS: Final = tuple(2.0**bits for bits in (0, 16, 12, 12, 8, 8, 8, 16, 12, 12))  # of the fit: number, matrix, right
_SUM_MAX: Final = 2**50
_BEGIN_SAMPLES: Final = 20  # first TTFTs of all gateways

_Bins = dict[BinIndex, BinCount]
_FitSum = Annotated[int, Meta(ge=0, le=2**62)]  # of all gateways


class _Samples(Struct, frozen=True):
    """The samples of other gateways: by bin, and the sums of the fit by place."""

    e: _Bins = {}
    c: _Bins = {}
    a: _Bins = {}
    y: _Bins = {}
    f: dict[Annotated[int, Meta(ge=0, lt=len(_UNITS))], _FitSum] = {}


class SharedLearning:
    """The exchange of what was learned about one pool: a `gateway.share.sync.Part`.

    Args:
        loads: the exchange of its loads.
        drop: receives samples that are out of range, and are not used.
        before: exchanges before a reload; if the pool has the samples of one, the exchange goes on.

    Attributes:
        exchanged: state of the exchange; None before it, and after the pool has forgotten its samples.
    """

    def __init__(
        self, pool: Pool, loads: SharedLoads, drop: Drop = keep_silent, before: Iterable["SharedLearning"] = ()
    ) -> None:
        self.pool = pool
        states = (part.exchanged for part in before)
        own = (state for state in states if state is not None and state.predictor is pool.learning.predictor)
        self.exchanged: Exchanged | None = next(own, None)
        self._drop = drop
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
        exchanged = self._current()
        if exchanged is None or exchanged.key != key:
            self.exchanged = exchanged = Exchanged(learning.predictor, key, Slice(learning.restored_age_s))
            exchanged.first_window.take_new()
            learning.take_new()
        return (exchanged.slice.ask(key, self._take_new(exchanged, now_s)),)

    def answered(self, answers: Sequence[Answer], now_s: float) -> None:
        """Take in the samples of the others."""
        exchanged = self._current()
        for answer in answers:
            if isinstance(answer, SliceAnswer) and exchanged is not None:
                others = exchanged.slice.others(answer)
                if others and not (self._batches and not self._loads.are_known):
                    try:
                        self._put(exchanged, _samples(others), now_s)
                    except ValueError as error:
                        self._drop(f"the samples of {self.pool.name}", str(error))

    def _current(self) -> Exchanged | None:
        """Return the state of the exchange, None if it is not that of the pool's present samples."""
        state = self.exchanged
        return state if state is not None and state.predictor is self.pool.learning.predictor else None

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

    def _put(self, exchanged: Exchanged, others: _Samples, now_s: float) -> None:
        learning, predictor = self.pool.learning, self.pool.learning.predictor
        exchanged.first.update(others.y)
        if not predictor.has_fit and exchanged.first.total() >= _BEGIN_SAMPLES:
            predictor.begin(median_of(exchanged.first))
        count = others.f.get(0, 0)
        if count:
            predictor.put(count, [others.f.get(place, 0) / unit for place, unit in enumerate(_UNITS)][1:])
        learning.put((others.e, others.c), others.a, count + sum(others.y.values()), now_s)


def _samples(sums: Mapping[str, int]) -> _Samples:
    """Return samples by their names; names with another letter belong to a later version.

    Raises:
        ValueError: a name or a sum is out of range.
    """
    found: dict[str, dict[int, int]] = {letter: {} for letter in _LETTERS}
    for name, value in sums.items():
        if name[:1] in found:
            digits = name[1:]
            if not digits.isdecimal() or len(digits) > _DIGITS_MAX:
                raise ValueError(f"a sample has the name {name[:20]!r}")
            found[name[0]][int(digits)] = value
    return convert(found, _Samples)
