"""Exchanges the waits of pools that prefer a low bill: which ways keep the target, and which do not pay. Pure.

Own waits go out once a second as counts of bins of 8 %, with refusals; the engine adds them, and each gateway takes in
the additions of the others. So a fleet needs no more probes of a cheap way than one gateway, and all leave a way that
does not pay within four seconds. The order of the others' waits within a second is not known: they are mixed.

Units: seconds.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct, convert

from gateway.share.loads import LoadExchange
from gateway.share.messages import Answer, Ask, SliceAnswer
from gateway.share.slices import SAMPLES_PERIOD_S, Slice
from ttft_gateway.pool.bills import Bills
from ttft_gateway.pool.learned import Drop
from ttft_gateway.pool.pool import Pool

_FORM: Final = "waits1"  # of the names; another meaning is another form
_SHORTEST_S: Final = 1e-3
_STEP: Final = math.log(1.08)  # width of a bin: a backup is planned in thirtieths of a target
_BINS: Final = 240  # to 10^5 s
_ENDED, _GIVEN_UP, _REFUSED = "egr"
_TAKEN_MAX: Final = 480  # waits of a way in a second: as many as it remembers
_GOLDEN: Final = 0.6180339887  # multiples of it modulo 1 are spread evenly


class _Counts(Struct, frozen=True):
    """Counts of one way by bin; refusals are in bin 0."""

    e: dict[Annotated[int, Meta(ge=0, lt=_BINS)], Annotated[int, Meta(ge=0)]] = {}
    g: dict[Annotated[int, Meta(ge=0, lt=_BINS)], Annotated[int, Meta(ge=0)]] = {}
    r: dict[Annotated[int, Meta(ge=0, le=0)], Annotated[int, Meta(ge=0)]] = {}


class WayExchange:
    """The exchange of the waits of one pool (a `gateway.share.sync.Exchange`).

    Args:
        bills: the waits.
        loads: exchange of the pool's loads.
        drop: receives waits that are out of range, and are not used.
        before: slice of the pool with the same name before a reload, with which the exchange goes on.
    """

    def __init__(self, pool: Pool, bills: Bills, loads: LoadExchange, drop: Drop, before: Slice | None = None) -> None:
        self.name = pool.name
        self._bills = bills
        self._loads = loads
        self._drop = drop
        self._restored_s = pool.learning.restored_age_s
        self.slice = before
        self._due_s = -math.inf

    def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
        """Return the new waits once a second."""
        if now_s < self._due_s or not self._loads.is_used(now_s):
            return ()
        self._due_s = now_s + max(SAMPLES_PERIOD_S, 10 * period_s) - period_s / 2
        added: Counter[str] = Counter()
        for name, waits in self._bills.waits.items():
            for wait in waits.take_new():
                added[f"{_place(wait)} {name}"] += 1
        self.slice = self.slice or Slice(self._restored_s)
        return (self.slice.ask(f"{_FORM} {self.name}", added),)

    def answered(self, answers: Sequence[Answer], now_s: float) -> None:
        """Take in the waits of the others."""
        for answer in answers:
            if isinstance(answer, SliceAnswer) and self.slice is not None:
                try:
                    found = _by_way(self.slice.others(answer))
                except ValueError as error:
                    self._drop(f"the waits of {self.name}", str(error))
                    return
                for name, counts in found.items():
                    if name in self._bills.waits:
                        refusals = sum(counts.r.values())
                        self._bills.waits[name].put(_mixed(counts), refusals)


def _place(wait: tuple[float, bool] | None) -> str:
    if wait is None:
        return f"{_REFUSED}0"
    wait_s, is_end = wait
    return f"{_ENDED if is_end else _GIVEN_UP}{_bin(wait_s)}"


def _bin(wait_s: float) -> int:
    return min(_BINS - 1, int(math.log(max(_SHORTEST_S, wait_s) / _SHORTEST_S) / _STEP))


def _by_way(sums: Mapping[str, int]) -> dict[str, _Counts]:
    """Return counts by the name of the way.

    Raises:
        ValueError: a name or a count is out of range.
    """
    found: dict[str, dict[str, dict[str, int]]] = {}
    for name, count in sums.items():
        place, _, way = name.partition(" ")
        found.setdefault(way, {}).setdefault(place[:1], {})[place[1:]] = count
    return {way: convert(counts, _Counts, strict=False) for way, counts in found.items()}


def _mixed(counts: _Counts) -> list[tuple[float, bool]]:
    """Return the waits of counts, short and long ones in turn: the last ones are as good a sample as all."""
    waits = [
        (_SHORTEST_S * math.exp((number + 0.5) * _STEP), is_end)
        for bins, is_end in ((counts.e, True), (counts.g, False))
        for number, count in sorted(bins.items())
        for _ in range(min(count, _TAKEN_MAX))
    ]
    order = sorted(range(len(waits)), key=lambda index: index * _GOLDEN % 1.0)
    return [waits[index] for index in order[:_TAKEN_MAX]]
