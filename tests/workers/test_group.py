"""Answers of workers to the supervisor."""

import asyncio

import msgspec
import pytest

from gateway.events import Event
from gateway.observe.dropped import DroppedState
from gateway.observe.state import PoolState
from gateway.observe.usage import UsageDump
from gateway.process_events import StateDropped
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

    async def main() -> Counts | None:
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

    counts = run_virtual(main())
    assert counts is not None
    assert counts.instruments == {"n": [((), [1.0])]}


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
