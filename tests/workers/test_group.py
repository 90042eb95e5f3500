"""Answers of workers to the supervisor."""

import asyncio

import msgspec
import pytest

from gateway.events import Event
from gateway.observe.dropped import DroppedState
from gateway.observe.instruments import Instruments
from gateway.observe.state import PoolState
from gateway.observe.usage import UsageDump, UsageTable
from gateway.process_events import StateDropped
from gateway.proof.tally import Tally
from gateway.server.own_view import count_parts
from gateway.workers.board import Board
from gateway.workers.group import Worker, WorkerGroup
from gateway.workers.messages import Counts
from running import run_virtual


class _Channel:
    """A channel that answers one question after the other, each after a delay and with its number."""

    def __init__(self, delays_s: list[float]) -> None:
        self._delays_s = delays_s
        self._asked = 0

    async def ask_parts(self, _method: str, _payload: object, _deadline_s: float) -> list[bytes]:
        number = self._asked
        self._asked += 1
        await asyncio.sleep(self._delays_s[number])
        return [msgspec.msgpack.encode(Counts({"n": [((), [float(number)])]}, UsageDump([], [])))]


def test_a_late_answer_is_older_than_one_to_a_later_question() -> None:
    """Counts that a dead worker leaves are not before a scrape."""

    async def main() -> list[bytes]:
        async with asyncio.TaskGroup() as tasks:
            group = WorkerGroup(tasks, bool, lambda *_: True, bool, bool, bool, bool, DroppedState(bool, lambda: 0.0))
            worker = Worker(1, 101, Board(1)[0])
            worker.is_ready, worker.channel = True, _Channel([3.0, 1.0])  # type: ignore[assignment]
            group.workers.append(worker)
            first = tasks.create_task(group.read_counts())
            await asyncio.sleep(0.5)
            await group.read_counts()
            await first
            return worker.counts

    [counts] = run_virtual(main())
    assert msgspec.msgpack.decode(counts, type=Counts).instruments == {"n": [((), [1.0])]}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"\xc1", Counts),
        (msgspec.msgpack.encode({"instruments": 5, "usage": {}}), Counts),
        (msgspec.msgpack.encode([{"model": "m"}]), list[PoolState]),
        (b"\x91" * 100_000, list[PoolState]),
    ],
    ids=["bytes", "type", "field", "depth"],
)
def test_a_damaged_answer_is_none(answer: bytes, kind: type) -> None:
    """It is counted, and named once for each worker."""
    events: list[Event] = []
    board = Board(2)

    async def main() -> None:
        dropped = DroppedState(events.append, lambda: 0.0)
        async with asyncio.TaskGroup() as tasks:
            group = WorkerGroup(tasks, events.append, lambda *_: True, bool, bool, bool, bool, dropped)
            workers = [Worker(number, 100 + number, board[number]) for number in (1, 2)]
            assert group.decoded(workers[0], None, kind) is None
            for worker in (*workers, *workers):
                assert group.decoded(worker, answer, kind) is None
        assert {value.labels["source"]: value.value for value in dropped.values()}["worker"] == 4

    run_virtual(main())
    assert [event.name for event in events if isinstance(event, StateDropped)] == [
        "an answer of worker 1",
        "an answer of worker 2",
    ]


def test_counts_of_ended_workers_are_added_up_once() -> None:
    """While they are added, in turns, no count is missing and none counts twice; a damaged part counts nothing."""

    def numbers(group: WorkerGroup) -> float:
        total = Instruments()
        for part in group.counted():
            total.add(group.counts_of(part).instruments)
        return total.requests.at("chat", "m", "2xx", "", "primary").value

    def counted(count: float) -> list[bytes]:
        instruments = Instruments()
        instruments.requests.at("chat", "m", "2xx", "", "primary").value = count
        for number in range(500):
            instruments.requests.at("chat", f"m{number}", "2xx", "", "primary").value = 1
        tallies = {"m": Tally(1.0, 2.0)}
        return [msgspec.msgpack.encode(Counts(*each)) for each in count_parts(instruments, UsageTable(), tallies)]

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            group = WorkerGroup(tasks, bool, lambda *_: True, bool, bool, bool, bool, DroppedState(bool, lambda: 0.0))
            group.carry_on([*counted(5), b"\xc1"], 1)
            parts = len(group.counts_of_dead)
            for number in (1, 2):
                worker = Worker(number, 100 + number, Board(2)[number])
                worker.keep(counted(number), 1.0)
                group.workers.append(worker)
            seen = []
            for worker in tuple(group.workers):
                group._on_end(worker)
                for _ in range(30):
                    seen.append(numbers(group))
                    await asyncio.sleep(0)
        assert set(seen) == {8.0}
        assert numbers(group) == 8.0
        assert len(group.counts_of_dead) == parts - 1
        assert list(group.dead_proof) == ["m"]

    run_virtual(main())
