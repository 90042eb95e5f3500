"""Large answers in parts: together they are the whole, and no part is large."""

import contextlib
from collections.abc import Iterator

import msgspec

from gateway.health.facts import ProcessFacts
from gateway.health.history import History
from gateway.health.windows import CountSlot, LastAttempt, ModelSlot, ReplicaSlot
from gateway.observe.instruments import Instruments
from gateway.observe.state import AdmissionState, PoolState, pool_parts
from gateway.observe.usage import UsageTable
from gateway.proof.tally import Tally
from gateway.server.own_view import count_parts
from gateway.workers.messages import Counts, WorkerScrape
from gateway.workers.parts import fact_parts, joined_facts, joined_scrape
from running import run_virtual
from sample_events import pool
from ttft_gateway.hedging.charges import ChargeTotal, Disposition

_MODELS = 1_000
_PART_BYTES_MAX = 100_000


def _counted() -> tuple[Instruments, UsageTable]:
    instruments, usage = Instruments(), UsageTable()
    for number in range(_MODELS):
        instruments.requests.at("chat", f"m{number}", "2xx", "", "primary").value = number
        instruments.content.at(f"m{number}", "r").observe(0.5, number)
        usage.requests["key", f"m{number}"] = number
        usage.totals["key", f"m{number}", Disposition.WINNER] = ChargeTotal(1, number, 2)
    return instruments, usage


def test_counts_in_parts_are_the_counts() -> None:
    """Metrics and usage are complete, and the parts are many and small."""
    instruments, usage = _counted()
    parts = [Counts(*part) for part in count_parts(instruments, usage, {f"m{n}": Tally(1.0, 2.0) for n in range(50)})]
    assert max(len(msgspec.msgpack.encode(part)) for part in parts) < _PART_BYTES_MAX
    added, added_usage, turns = Instruments(), UsageTable(), 0
    for part in parts:
        turns += sum(1 for _ in added.add_parts(part.instruments))
        added_usage.add(part.usage)
    assert (added.dump(), added_usage.dump(), turns >= 20) == (instruments.dump(), usage.dump(), True)
    assert sum(len(part.proof) for part in parts) == 50


def test_a_scrape_in_parts_is_the_scrape() -> None:
    """The parts of two kinds of values, and the rest in the last part."""
    pools = [pool("m") for _ in range(_MODELS)]
    rest = WorkerScrape(admission=AdmissionState(body_bytes=7))

    async def read() -> list[WorkerScrape]:
        return [WorkerScrape(part) async for part in pool_parts(lambda: pools)]

    parts = [*run_virtual(read()), rest]
    assert joined_scrape(parts) == WorkerScrape(pools, rest.admission)
    assert max(len(msgspec.msgpack.encode(part)) for part in parts) < _PART_BYTES_MAX


def test_the_first_part_is_there_before_the_last_pool_is_read() -> None:
    """A slow worker sends it in time, and the supervisor waits for each part anew."""
    read: list[str] = []

    def source() -> Iterator[PoolState]:
        for number in range(_MODELS):
            read.append(f"m{number}")
            yield pool(read[-1])

    async def first() -> list[PoolState]:
        async with contextlib.aclosing(pool_parts(source)) as parts:
            return await anext(parts)

    assert [each.model for each in run_virtual(first())] == read
    assert len(read) < 50


def test_facts_in_parts_count_the_same() -> None:
    """A slot arrives in several, which the history adds up to one; pools, last attempts and totals are complete."""
    models = {f"m{number}": ModelSlot(number, replicas={"r": ReplicaSlot(number)}) for number in range(_MODELS)}
    slots = [CountSlot(number, 500, 1, models, {"key": 500}, {"full": 2}) for number in (7, 8)]
    last = [LastAttempt(f"m{number}", "r", 1.0) for number in range(_MODELS)]
    whole = ProcessFacts(slots, last, [pool("m")] * _MODELS, [("cpu", "", 1.0)])
    parts = list(fact_parts(whole))
    joined = joined_facts([ProcessFacts(pools=whole.pools), *parts])
    assert (joined.last, joined.pools, joined.totals) == (whole.last, whole.pools, whole.totals)
    assert joined.slots[-1].number == 8
    assert max(len(msgspec.msgpack.encode(part)) for part in parts) < _PART_BYTES_MAX
    histories = []
    for facts in (whole, joined):
        history = History(0.0)
        run_virtual(history.add(facts.slots))
        histories.append(run_virtual(history.last(60.0, 45.0)))
    assert histories[0] == histories[1]


def test_nothing_is_one_part() -> None:
    """An answer has a last part, also without a pool."""

    async def read() -> list[list[PoolState]]:
        return [part async for part in pool_parts(tuple)]

    assert run_virtual(read()) == [[]]
    assert joined_facts(fact_parts(ProcessFacts())) == ProcessFacts()
