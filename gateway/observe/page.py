"""Bounds a scrape of many models and replicas: some are named, and what the others count is added up under `_OTHER`.

A page that is short enough stays as it is. Otherwise the models and replicas with the most attempts are named, chosen
again every hour, and the replicas in trouble, chosen at each scrape. Each increment of a counter belongs to one series
only, also after another choice: a series that begins to be named begins at 0, and what was counted before stays where
it was. So sums of rates are right. The counts of requests name more models, because they are few lines. Gauges are of
what is named, except that requests under way and in queues are added up for the others.

Units: samples, which are lines of the page; seconds of the loop's clock.
"""

import asyncio
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from gateway.observe.instruments import MODEL, OTHER, REPLICA, Family, Instruments, Series
from gateway.observe.metrics import Scrape
from gateway.observe.process import ProcessValue
from gateway.observe.state import SLOW_LEVEL, ModelAdmission, PoolState, QuotaState

PAGE_BYTES_MAX: Final = 2_000_000
_LINE_BYTES: Final = 105  # without the names of model and replica
_MODEL_LINES: Final = 90  # of a model with some kinds of errors
_REPLICA_LINES: Final = 70
_GAUGE_LINES: Final = 13  # of a replica, with its part of the gauges of the pool
_REQUESTS_SHARE: Final = 0.15  # of the page, for counts of requests
_REQUESTS_LINES: Final = 2  # of a model in these
_TROUBLED_SHARE: Final = 0.25  # of the page, which is left for replicas in trouble
_TROUBLED_MAX: Final = 50  # as many as the verdict names
_QUOTA_LOW: Final = 0.1  # the same
_CHOICE_S: Final = 3600.0
_SLICE: Final = 60  # histograms that are added up in one iteration of the event loop, about 1 ms
_SLICE_NAMES: Final = 600  # that are looked at in one, the same

Named = tuple[str, str]
"""Names of model and replica."""

Labels = tuple[str, ...]
"""Values of the labels of a series."""

_T = TypeVar("_T")

Place = Callable[[Labels], Labels]
"""Returns the labels of the series on the page that counts for a series."""


class Names(NamedTuple):
    """The names on a page.

    Attributes:
        models: models that are named everywhere.
        requests: models that are named in the counts of requests.
        replicas: replicas that are named.
    """

    models: frozenset[str]
    requests: frozenset[str]
    replicas: frozenset[Named]


class Page:
    """Makes the scrapes of one gateway short.

    Args:
        bytes_max: approximate length of a page.
    """

    def __init__(self, bytes_max: int = PAGE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = asyncio.Lock()
        self._names: Names | None = None
        self._chosen: Names | None = None  # without the replicas in trouble
        self._chosen_s = -math.inf
        self._troubled: list[Named] = []  # now, and then the last ones that were
        self._attempts: dict[Named, float] = {}  # at the last choice
        self._past: dict[str, dict[Labels, dict[Labels, list[float]]]] = {}  # counts of series in other places

    async def bounded(self, scrape: Scrape) -> Scrape:
        """Return a scrape of at most about the length of a page."""
        async with self._lock:
            before, lines = self._names, self._bytes_max / _line_bytes(scrape.pools)
            await asyncio.sleep(0)
            if before is None and _lines(scrape) <= lines:
                return scrape
            names = self._names = await self._choose(scrape, int(lines))
            instruments = await self._folded(scrape.instruments, names, None if before is names else before)
            process = self._values(scrape.process, names, before)
            await asyncio.sleep(0)
            return (await _shown(scrape, names))._replace(instruments=instruments, process=process)

    async def _choose(self, scrape: Scrape, lines: int) -> Names:
        """Return the names; the previous object if they have not changed."""
        now_s = asyncio.get_running_loop().time()
        known, troubled = await _known(scrape.pools)
        if self._chosen is None or now_s >= self._chosen_s + _CHOICE_S:
            attempts = await _attempts(scrape.instruments)
            recent = {named: count - self._attempts.get(named, 0.0) for named, count in attempts.items()}
            self._chosen = await _choice(known, recent, lines)
            if known:  # else no worker has answered in time, and the next scrape chooses
                self._attempts, self._chosen_s = attempts, now_s
        self._troubled = list(dict.fromkeys((*troubled, *self._troubled)))[:_TROUBLED_MAX]
        extra = {each for each in self._troubled if each in known}
        models = self._chosen.models | {model for model, _ in extra}
        chosen = {each for each in self._chosen.replicas if each in known}
        names = Names(models, self._chosen.requests | models, frozenset(chosen | extra))
        return self._names if self._names == names else names

    async def _folded(self, given: Instruments, names: Names, before: Names | None) -> Instruments:
        """Return the counters and histograms with these names; `before` has the former names if there are others."""
        folded = Instruments()
        for family, target in zip(given.families(), folded.families(), strict=True):
            if MODEL not in family.labels:
                target.share(family)
                continue
            place, old_place = _place(family.labels, names), None if before is None else _place(family.labels, before)
            if before is not None:
                self._forget(family)
            items: Iterator[tuple[Labels, Series]] = family.items()
            while part := list(islice(items, _SLICE)):
                for values, series in part:
                    if series.is_shown:
                        for at, numbers in self._parts(family.name, values, series.dump(), place, old_place):
                            shown = target.at(*at)
                            shown.add(numbers)
                            shown.show()  # also at 0, from which a series must begin
                await asyncio.sleep(0)
        return folded

    def _parts(
        self, name: str, values: Labels, total: list[float], place: Place, old_place: Place | None
    ) -> Iterator[tuple[Labels, list[float]]]:
        """Yield what a series has counted, in each of the places in which it has counted."""
        here, past = place(values), self._past.get(name, {}).get(values)
        if old_place is not None and (was := old_place(values)) != here:
            past = self._past.setdefault(name, {}).setdefault(values, {})
            past[was] = _less(total, [numbers for at, numbers in past.items() if at != was])
        if past is None:
            yield here, total
            return
        for at, numbers in past.items():
            if at not in (here, values) and place(at) == at:  # otherwise its name has gone, with its counts
                yield at, numbers
        yield here, _less(total, [numbers for at, numbers in past.items() if at != here])

    def _forget(self, family: Family[Any]) -> None:
        """Forget the series of removed replicas."""
        past = self._past.get(family.name, {})
        for values in [each for each in past if not family.has(each)]:
            del past[values]

    def _values(self, values: Iterable[ProcessValue], names: Names, before: Names | None) -> list[ProcessValue]:
        """Return the values of the process, with added counters of models that have no name."""
        shown: dict[tuple[str, Labels], ProcessValue] = {}
        for each in values:
            labels = tuple(each.labels)
            if MODEL not in labels or each.kind != "counter":
                shown[each.name, (*labels, *each.labels.values())] = each
                continue
            place, old_place = _place(labels, names), None if before is None else _place(labels, before)
            for at, (number,) in self._parts(each.name, tuple(each.labels.values()), [each.value], place, old_place):
                found = shown.get((each.name, at))
                value = number + (0.0 if found is None else found.value)
                shown[each.name, at] = each._replace(value=value, labels=dict(zip(labels, at, strict=True)))
        return list(shown.values())


def _less(total: Sequence[float], parts: Iterable[Sequence[float]]) -> list[float]:
    left = list(total)
    for part in parts:
        left = [max(0.0, number - other) for number, other in zip(left, part, strict=True)]
    return left


def _place(labels: Labels, names: Names) -> Place:
    """Return the places of the series of a metric."""
    model = labels.index(MODEL)
    replica = labels.index(REPLICA) if REPLICA in labels else None
    models = names.models if replica is not None or "status_class" not in labels else names.requests

    def place(values: Labels) -> Labels:
        name, shown = values[model], list(values)
        if name not in models:
            shown[model] = OTHER
        if replica is not None and (name, values[replica]) not in names.replicas:
            shown[replica] = OTHER
        return tuple(shown)

    return place


def _line_bytes(pools: Sequence[PoolState]) -> float:
    """Return the mean length of a line."""
    names = sum(len(pool.model) + len(each.replica) for pool in pools for each in pool.replicas)
    return _LINE_BYTES + names / max(1, sum(len(pool.replicas) for pool in pools))


def _lines(scrape: Scrape) -> int:
    """Return the number of lines without a bound, at most."""
    counted = sum(family.count * family.lines_max for family in scrape.instruments.families())
    quotas = sum(len(pool.quotas) for pool in scrape.pools)
    return counted + sum(_GAUGE_LINES * len(pool.replicas) for pool in scrape.pools) + 5 * quotas


async def _known(pools: Iterable[PoolState]) -> tuple[dict[Named, None], list[Named]]:
    """Return the replicas; and the replicas in trouble, the worst first, as many as are named."""
    known: dict[Named, None] = {}
    found = []
    for number, pool in enumerate(pools, 1):
        for each in pool.replicas:
            known[pool.model, each.replica] = None
            is_closed = each.breaker == "closed" and each.locked is None
            if not is_closed or each.suspect or each.out or each.level > SLOW_LEVEL:
                found.append((is_closed, not each.suspect, pool.model, each.replica))
        if number % _SLICE == 0:
            await asyncio.sleep(0)
    return known, [(model, replica) for _, _, model, replica in heapq.nsmallest(_TROUBLED_MAX, found)]


async def _attempts(instruments: Instruments) -> dict[Named, float]:
    """Return the number of attempts at each replica."""
    found: dict[Named, float] = {}
    for number, (values, series) in enumerate(instruments.attempts.items(), 1):
        named = values[0], values[1]
        found[named] = found.get(named, 0.0) + series.value
        if number % _SLICE_NAMES == 0:
            await asyncio.sleep(0)
    return found


async def _choice(known: Iterable[Named], attempts: Mapping[Named, float], lines: int) -> Names:
    """Return the replicas with the most attempts, and their models, as far as the lines of the page go."""
    by_model: dict[str, float] = {}
    for named in known:
        by_model[named[0]] = by_model.get(named[0], 0.0) + attempts.get(named, 0.0)
    await asyncio.sleep(0)
    requests = int(_REQUESTS_SHARE * lines)
    left = lines - requests - min(_TROUBLED_MAX * _REPLICA_LINES, int(_TROUBLED_SHARE * lines))
    counted = await _first(by_model, requests // _REQUESTS_LINES, lambda model: (-by_model[model], model))
    models: set[str] = set()
    replicas: set[Named] = set()
    most = max(0, left // _REPLICA_LINES)
    for named in await _first(known, most, lambda each: (-attempts.get(each, 0.0), -by_model[each[0]], each)):
        left -= _REPLICA_LINES if named[0] in models else _REPLICA_LINES + _MODEL_LINES
        if left < 0:
            break
        models.add(named[0])
        replicas.add(named)
    return Names(frozenset(models), frozenset(counted), frozenset(replicas))


async def _first(names: Iterable[_T], count: int, key: Callable[[_T], Any]) -> list[_T]:
    """Return the first names in the order of the key."""
    rest, found = iter(names), list[_T]()
    while part := list(islice(rest, _SLICE_NAMES)):
        found = heapq.nsmallest(count, [*found, *part], key)
        await asyncio.sleep(0)
    return found


async def _shown(scrape: Scrape, names: Names) -> Scrape:
    """Return a scrape with the states of what is named or in trouble, and the sums of the others."""
    under_way: dict[Named, float] = {}
    pools = []
    for number, pool in enumerate(scrape.pools, 1):
        if number % _SLICE == 0:
            await asyncio.sleep(0)
        is_named = pool.model in names.models
        replicas = tuple(each for each in pool.replicas if (pool.model, each.replica) in names.replicas)
        others = sum(each.in_flight for each in pool.replicas) - sum(each.in_flight for each in replicas)
        if len(replicas) < len(pool.replicas):
            place = pool.model if is_named else OTHER, OTHER
            under_way[place] = under_way.get(place, 0.0) + others
        quotas = tuple(each for each in pool.quotas if is_named or _is_low(each))
        if is_named or quotas or not pool.hedging_on:
            pools.append((is_named, replace(pool, replicas=replicas, quotas=quotas)))
    few = [pool for is_named, pool in pools if not is_named][:_TROUBLED_MAX]
    admission = scrape.admission
    return scrape._replace(
        pools=[*(pool for is_named, pool in pools if is_named), *few],
        others_in_flight=under_way,
        admission=replace(admission, models=_queues(admission.models, names)),
        discovery=[
            *(each for each in scrape.discovery if each.model in names.models),
            *[each for each in scrape.discovery if each.model not in names.models and each.fault][:_TROUBLED_MAX],
        ],
    )


def _is_low(quota: QuotaState) -> bool:
    return quota.cooling_s > 0 or any(limit.left < _QUOTA_LOW * limit.limit for limit in quota.limits)


def _queues(models: Sequence[ModelAdmission], names: Names) -> tuple[ModelAdmission, ...]:
    """Return the queues of the models that are named, the longest other ones, and their sum."""
    others = sorted((each for each in models if each.model not in names.models), key=lambda each: -each.waiting)
    longest = [each for each in others[:_TROUBLED_MAX] if each.waiting]
    rest = others[len(longest) :]
    if not rest:
        return tuple(models)
    in_flight, waiting = sum(each.in_flight for each in rest), sum(each.waiting for each in rest)
    total = replace(rest[0], model=OTHER, in_flight=in_flight, waiting=waiting, waiting_by_key={})
    return (*(each for each in models if each.model in names.models), *longest, total)
