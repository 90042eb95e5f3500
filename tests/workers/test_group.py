"""Answers of workers to the supervisor."""

import asyncio

import msgspec
import pytest

from gateway.events import Event
from gateway.observe.dropped import DroppedState
from gateway.observe.state import PoolState
from gateway.process_events import StateDropped
from gateway.workers.board import Board
from gateway.workers.group import Worker, WorkerGroup
from gateway.workers.messages import Counts
from running import run_virtual


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
