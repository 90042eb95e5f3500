"""Large answers of a worker in parts: made in the worker, put together in the supervisor.

A thousand models have a megabyte of counts. In one piece, they would hold the loop of a worker, and so its streams, for
60 ms. Each part takes less than 1 ms. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, TypeVar

from gateway.health.facts import ProcessFacts
from gateway.health.windows import CountSlot
from gateway.workers.messages import WorkerScrape

_SLOT_MODELS: Final = 50
_LAST: Final = 400

_T = TypeVar("_T")


def fact_parts(facts: ProcessFacts) -> Iterator[ProcessFacts]:
    """Yield facts without pools in parts; a slot is divided into several with its number and parts of its counts."""
    for slot in facts.slots:
        yield ProcessFacts([CountSlot(slot.number, slot.requests, slot.slow_starts, {}, slot.keys, slot.rejected)])
        for models in _dicts(slot.models, _SLOT_MODELS):
            yield ProcessFacts([CountSlot(slot.number, models=models)])
    for last in _lists(facts.last, _LAST):
        yield ProcessFacts(last=last)
    yield ProcessFacts(totals=facts.totals, share=facts.share)


def joined_facts(parts: Iterable[ProcessFacts]) -> ProcessFacts:
    """Return the facts of which these are all parts; a slot with many models stays several slots of its number."""
    total = ProcessFacts()
    for part in parts:
        total.slots += part.slots
        total.last += part.last
        total.pools += part.pools
        total.totals += part.totals
        total.share = part.share
    return total


def joined_scrape(parts: Sequence[WorkerScrape]) -> WorkerScrape:
    """Return the values of which these are all parts; the last one has the values that are in no other."""
    return WorkerScrape([pool for part in parts for pool in part.pools], parts[-1].admission, parts[-1].process)


def _lists(items: Sequence[_T], size: int) -> Iterator[list[_T]]:
    """Yield parts of a sequence, at least one."""
    return (list(items[begin : begin + size]) for begin in range(0, max(1, len(items)), size))


def _dicts(items: Mapping[str, _T], size: int) -> Iterator[dict[str, _T]]:
    rest = iter(items.items())
    while part := dict(islice(rest, size)):
        yield part
