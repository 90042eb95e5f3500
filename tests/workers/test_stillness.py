"""Processes that hang, and processes that only wait for a CPU."""

import os
import sys

import pytest

from gateway.workers.board import Board
from gateway.workers.stillness import BEGIN_CHECKS_MAX, Check, Stillness, missed, waited_s


@pytest.mark.parametrize(
    ("before", "now", "counted"),
    [
        (Check(1.0, 7, 0.0), Check(2.0, 8, 0.0), 0.0),
        (Check(1.0, 7, 0.0), Check(2.0, 7, 0.0), 1.0),
        (Check(1.0, 7, 0.0), Check(2.0, 7, 0.4), 1.0),
        (Check(1.0, 7, 3.0), Check(2.0, 7, 3.75), 0.25),
        (Check(1.0, 7, 3.0), Check(2.0, 7, 4.0), 1 / 6),
        (Check(1.0, 7, 3.0), Check(2.0, 8, 4.0), 0.0),
        (Check(1.0, 7, 3.0), Check(5.0, 7, 6.0), 0.25),
        (Check(1.0, 7, 3.0), Check(2.0, 7, 13.0), 1 / 6),
        (Check(1.0, 7, None), Check(2.0, 7, 4.0), 1.0),
        (Check(1.0, 7, 3.0), Check(2.0, 7, None), 1.0),
        (Check(2.0, 7, 3.0), Check(2.0, 7, 4.0), 1.0),
    ],
    ids=[
        "it beats",
        "it is stopped, or waits for something else",
        "it computes on a busy machine",
        "it waits for a CPU most of the time",
        "it gets no CPU",
        "it beats on a busy machine",
        "the check is late, too",
        "the first wait has ended",
        "a new process",
        "another system",
        "the clock stands",
    ],
)
def test_a_check_without_a_beat_counts_unless_the_process_waits_for_a_cpu(
    before: Check, now: Check, counted: float
) -> None:
    """It counts whole, in part, or not at all."""
    assert missed(before, now) == pytest.approx(counted)


@pytest.mark.parametrize(
    ("waiting", "checks"),
    [(0.0, 10), (0.45, 10), (0.8, 50), (1.0, 60)],
    ids=["stopped", "computes beside another process", "computes at load 10", "no CPU"],
)
def test_a_process_that_hangs_is_found_on_any_machine(waiting: float, checks: int) -> None:
    """Ten checks count on an idle machine; on one with too much to do, a minute is enough."""
    board = Board(1)
    stillness, counted = Stillness(board[1]), 0
    board[1].beat()
    stillness.check(0.0, 0.0)
    while stillness.missed < 9.999:
        counted += 1
        stillness.check(float(counted), waiting * counted)
    assert (counted, stillness.checks) == (checks, checks)
    board[1].beat()
    stillness.check(counted + 1.0, 0.0)
    assert (stillness.missed, stillness.checks) == (0, 0)


def test_a_process_that_has_not_beaten_yet_begins() -> None:
    """Many more checks may pass before the first beat; a new process begins anew."""
    board = Board(1)
    stillness = Stillness(board[1])

    def seen(checks: int) -> list[float]:
        found = []
        for _ in range(checks):
            stillness.check(0.0, None)
            found.append(stillness.missed)
        return found

    assert seen(3) == [0, 0, 0]
    board[1].beat()
    assert seen(3) == [0, 1, 2]
    board[1].clear()
    stillness.begin()
    assert set(seen(BEGIN_CHECKS_MAX)) == {0}
    assert seen(1) == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts the time")
def test_the_time_without_a_cpu_is_known() -> None:
    """A process that runs has a number that never falls; one that does not exist has none."""
    first = waited_s(os.getpid())
    last = waited_s(os.getpid())
    assert first is not None
    assert last is not None
    assert 0.0 <= first <= last
    assert waited_s(2**30) is None
