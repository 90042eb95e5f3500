"""Exchanges the samples of pools and the usage of quotas. Pure.

Other files have the loads of pools (loads.py), and the waits of pools that prefer a low bill (ways.py).

Samples go out as counts of bins and as sums, which the engine adds; each gateway takes in the additions of the others
since its last answer, so that all have the same windows, equal to the windows of one gateway. A gateway that starts
reads the last two minutes. Before there is a fit, the first TTFTs go out by bin, so that all begin with the same base.
Without the loads of the others, common predictions of own engines would make all gateways send to the same one: then
nothing is taken in.

The own usage of a provider's quota goes out, and the usage by others comes in: the mirror of the quota then counts all
that the provider counts. A cool-down after a 429 holds for all gateways. Leased limits are left to their leases.

Units: seconds of the loop's clock, requests, tokens.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from msgspec import Meta, Struct, convert

from gateway.share.loads import LoadExchange
from gateway.share.messages import SILENT_S, Answer, Ask, GaugeAnswer, GaugeAsk, SliceAnswer, keep_silent
from gateway.share.rows import USAGE, Row, checked
from gateway.share.slices import SAMPLES_PERIOD_S, Slice
from gateway.share.sync import Exchange
from gateway.share.ways import WayExchange
from ttft_gateway.estimation.crowding import CROWD_SUMS
from ttft_gateway.estimation.predictor import Predictor
from ttft_gateway.estimation.window import RELATIVE_ACCURACY, BinCount, BinIndex, Window, median_of
from ttft_gateway.limits.bucket import Spend
from ttft_gateway.limits.budget import RetryBudget
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.learned import Drop
from ttft_gateway.pool.pool import Pool

_SAMPLES_FORM: Final = f"learn1 {RELATIVE_ACCURACY}"  # of the names and their units; another meaning is another form
_EVENTS, _CENSORED, _ANSWERS, _FIRST, _FIT, _CROWD = _LETTERS = "ecayfx"  # first letters of names; a number follows
_DIGITS_MAX: Final = 6
_UNITS: Final = tuple(2.0**bits for bits in (0, 16, 12, 12, 8, 8, 8, 16, 12, 12))
"""Units of the sums of the fit: sample count, normal matrix, right-hand side."""
_CROWD_UNIT: Final = 2.0**16  # of the sums of crowds
_SUM_MAX: Final = 2**50
_BEGIN_SAMPLES: Final = 20  # first TTFTs of all gateways
_USAGE_FORM: Final = "quota1"  # of the row; another meaning of a place is another form
_NO_USAGE: Final = (0,) * 5
_FORGOTTEN_S: Final = SILENT_S - 1.0  # without an answer, after which the others may have no row of this gateway
_IDLE_S: Final = 60.0  # without a request, the usage of a quota is not exchanged

_Bins = dict[BinIndex, BinCount]
_FitSum = Annotated[int, Meta(ge=0, le=2**62)]  # of all gateways


def exchanges_of(
    models: Sequence[tuple[Sequence[Pool], RetryBudget]],
    ledgers: Mapping[str, Ledger],
    old: Sequence[Exchange] = (),
    drop: Drop = keep_silent,
) -> list[Exchange]:
    """Return the exchanges of a gateway's models and quotas.

    Args:
        models: pools and retries of each model.
        ledgers: ledgers by quota.
        old: exchanges of the previous models and quotas.
        drop: receives what other gateways have sent and is out of range.
    """
    former = Former(old)
    of_models = (each for pools, retries in models for each in former.of_model(pools, retries, drop))
    return [*former.of_quotas(ledgers, drop), *of_models]


class Former:
    """Exchanges of models and quotas before a reload, which go on if their pool or quota is still in use."""

    def __init__(self, old: Sequence[Exchange]) -> None:
        self._quotas = {each.ledger: each for each in old if isinstance(each, UsageExchange)}
        self._loads = {each.pool: each for each in old if isinstance(each, LoadExchange)}
        self._samples = {each.pool: each for each in old if isinstance(each, SampleExchange)}
        samples = self._samples.values()
        self._states = {id(each.state.predictor): each.state for each in samples if each.state is not None}
        self._slices = {each.name: each.slice for each in old if isinstance(each, WayExchange)}

    def of_quotas(self, ledgers: Mapping[str, Ledger], drop: Drop = keep_silent) -> list[Exchange]:
        """Return the exchanges of quotas."""
        return [self._quotas.get(ledger) or UsageExchange(name, ledger, drop) for name, ledger in ledgers.items()]

    def of_model(self, pools: Sequence[Pool], retries: RetryBudget, drop: Drop = keep_silent) -> list[Exchange]:
        """Return the exchanges of a model."""
        found: list[Exchange] = []
        for number, pool in enumerate(pools):
            if (load := self._loads.get(pool)) is not None and pool in self._samples:
                found += [load, self._samples[pool]]
            else:
                load = load or LoadExchange(pool, None if number else retries, drop)
                found += [load, SampleExchange(pool, load, drop, self._states.get(id(pool.learning.predictor)))]
            if pool.bills is not None:
                found.append(WayExchange(pool, pool.bills, load, drop, self._slices.get(pool.name)))
        return found


@dataclass(eq=False)
class SampleState:
    """The state of the exchange of one pool's samples.

    Attributes:
        predictor: the samples.
        key: key of the slice, which contains the event that is timed.
        first_sent: number of first TTFTs that were sent.
        first: first TTFTs of all gateways by bin.
    """

    predictor: Predictor
    key: str
    slice: Slice
    first_sent: int = 0
    first_window: Window = field(default_factory=Window)
    first: Counter[int] = field(default_factory=Counter)


class _Samples(Struct, frozen=True):
    """The samples of other gateways: by bin, and the sums of the fit and of crowds by place."""

    e: _Bins = {}
    c: _Bins = {}
    a: _Bins = {}
    y: _Bins = {}
    f: dict[Annotated[int, Meta(ge=0, lt=len(_UNITS))], _FitSum] = {}
    x: dict[Annotated[int, Meta(ge=0, lt=CROWD_SUMS)], _FitSum] = {}


class SampleExchange:
    """The exchange of one pool's samples (a `gateway.share.sync.Exchange`).

    Args:
        loads: the exchange of its loads.
        drop: receives samples that are out of range, and are not used.
        state: state of the exchange of the same samples before a reload, with which it goes on.

    Attributes:
        state: state of the exchange; None before it, and after the pool has forgotten its samples.
    """

    def __init__(
        self, pool: Pool, loads: LoadExchange, drop: Drop = keep_silent, state: SampleState | None = None
    ) -> None:
        self.pool = pool
        self.state = state
        self._drop = drop
        self._loads = loads
        self._batches = any(replica.batches for replica in pool.replicas)
        self._due_s = -1.0

    def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
        """Return the new samples once a second."""
        if now_s < self._due_s or not self._loads.is_used(now_s):
            return ()
        self._due_s = now_s + max(SAMPLES_PERIOD_S, 10 * period_s) - period_s / 2
        key = f"{_SAMPLES_FORM} {'work' if self.pool.first_token.times_work else 'content'} {self.pool.name}"
        learning = self.pool.learning
        state = self._current()
        if state is None or state.key != key:
            self.state = state = SampleState(learning.predictor, key, Slice(learning.restored_age_s))
            state.first_window.take_new()
            learning.take_new()
        return (state.slice.ask(key, self._take_new(state, now_s)),)

    def answered(self, answers: Sequence[Answer], now_s: float) -> None:
        """Take in the samples of the others."""
        state = self._current()
        for answer in answers:
            if isinstance(answer, SliceAnswer) and state is not None:
                others = state.slice.others(answer)
                if others and not (self._batches and not self._loads.are_known):
                    try:
                        self._put(state, _samples(others), now_s)
                    except ValueError as error:
                        self._drop(f"the samples of {self.pool.name}", str(error))

    def _current(self) -> SampleState | None:
        """Return the state of the exchange, None if it belongs to samples that the pool has forgotten."""
        state = self.state
        return state if state is not None and state.predictor is self.pool.learning.predictor else None

    def _take_new(self, state: SampleState, now_s: float) -> dict[str, int]:
        learning = self.pool.learning
        learning.predictor.fold_new(now_s)
        (events, censored), lengths = learning.take_new()
        first = learning.predictor.first_s
        for ttft_s in first[state.first_sent :]:
            state.first_window.add_event(ttft_s, now_s)
        state.first_sent = len(first)
        new_first = state.first_window.take_new()[0]
        state.first.update(new_first)
        added = {}
        if any(sums := learning.predictor.take_new()):
            fit = zip(sums, _UNITS, strict=True)
            added = {f"{_FIT}{place}": min(_SUM_MAX, round(value * unit)) for place, (value, unit) in enumerate(fit)}
        crowds = (round(_CROWD_UNIT * value) for value in learning.crowding.take_new())
        added |= {f"{_CROWD}{place}": min(_SUM_MAX, value) for place, value in enumerate(crowds)}
        for letter, counts in ((_EVENTS, events), (_CENSORED, censored), (_ANSWERS, lengths), (_FIRST, new_first)):
            added |= {f"{letter}{index}": count for index, count in counts.items()}
        return {name: value for name, value in added.items() if value}

    def _put(self, state: SampleState, others: _Samples, now_s: float) -> None:
        learning, predictor = self.pool.learning, self.pool.learning.predictor
        state.first.update(others.y)
        if not predictor.has_fit and state.first.total() >= _BEGIN_SAMPLES:
            predictor.begin(median_of(state.first))
        count = others.f.get(0, 0)
        if count:
            predictor.put(count, [others.f.get(place, 0) / unit for place, unit in enumerate(_UNITS)][1:])
        if others.x:
            learning.crowding.put([others.x.get(place, 0) / _CROWD_UNIT for place in range(CROWD_SUMS)])
        learning.put((others.e, others.c), others.a, count + sum(others.y.values()), now_s)


class UsageExchange:
    """The exchange of the usage of one quota (a `gateway.share.sync.Exchange`).

    Args:
        name: name of the quota.
        drop: receives each row that is out of range, and is not used.

    Attributes:
        ledger: its ledger.
    """

    def __init__(self, name: str, ledger: Ledger, drop: Drop = keep_silent) -> None:
        self._name = name
        self._key = f"{_USAGE_FORM} {name}"
        self._drop = drop
        self.ledger = ledger
        self._base: Spend | None = None  # own usage at the start of the exchange, or since the others have none of it
        self._used: tuple[Spend, float] = (ledger.spent(), 0.0)  # last own usage, and the time of its change
        self._answered_s = -math.inf
        self._summed = 0  # number of gateways at the last answer
        self._seen: Row | None = None  # last sums of the others
        self._seen_s = 0.0

    def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
        """Return the usage of this gateway since it was last unknown to the others; the first row is 0."""
        before, spent = self._used[0], self.ledger.spent()
        if spent != before or self._base is None:
            self._used = (spent, now_s)
        if now_s >= self._used[1] + _IDLE_S:
            self._seen = None  # usage by others is then counted from 0 again
            return ()
        if self._base is None or now_s >= self._answered_s + _FORGOTTEN_S:
            self._base = spent = before
        own, cooling_s = spent.minus(self._base), self.ledger.cooling_s(now_s)
        row = (own.requests, own.prompt, own.answer, round(1000 * cooling_s), int(cooling_s > 0))
        return (GaugeAsk(self._key, {"": row}),)

    def answered(self, answers: Sequence[Answer], now_s: float) -> None:
        """Count the usage of the others since the last answer, and cool down with them."""
        for answer in answers:
            if isinstance(answer, GaugeAnswer):
                self._answered_s = now_s
                row = (answer.others or {}).get("", _NO_USAGE)
                try:
                    self._put(checked(row, USAGE, max(1, answer.processes - 1)), answer.processes, now_s)
                except ValueError as error:
                    self._drop(f"the usage of {self._name}", str(error))
                    self._seen = None  # usage by others is then counted from 0 again

    def _put(self, row: Row, processes: int, now_s: float) -> None:
        seen, since_s = self._seen or (*row[:4], 0), self._seen_s
        are_same_summed, self._summed = processes == self._summed, processes
        self._seen, self._seen_s = row, now_s
        requests, prompt, answer = (new - old for new, old in zip(row[:3], seen[:3], strict=True))
        # Fewer requests: some were given back. Of other gateways than before, it is not known what is new.
        if are_same_summed and requests >= 0 and (requests or prompt or answer):
            self.ledger.spent_elsewhere(Spend(prompt, answer, requests), now_s, since_s)
        if row[4] > seen[4]:
            self.ledger.limited_elsewhere(row[3] / row[4] / 1000, now_s)


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
