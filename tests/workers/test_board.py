"""Beats and connections in shared memory."""

import math

from gateway.workers.board import Board, ConnectionTurns


def test_a_worker_leaves_time_to_workers_with_fewer_connections() -> None:
    """The worker with the fewest accepts at once; workers that accept nothing do not count."""
    board = Board(4)
    for number, count in ((1, 2), (2, 1), (3, 2)):
        turns = ConnectionTurns(board, number)
        for _ in range(count):
            turns.opened()
    waits = {number: board.turn_s(number) for number in (1, 2, 3)}
    assert waits == {1: 0.005, 2: 0.0, 3: 0.005}
    assert board[4].open == math.inf
    ConnectionTurns(board, 4).start()
    assert [board.turn_s(number) for number in (1, 2, 3, 4)] == [0.01, 0.005, 0.01, 0.0]


def test_a_worker_counts_its_connections_until_it_stops() -> None:
    """The end of a connection is counted; after the stop, no end makes a worker accept again."""
    board = Board(1)
    turns = ConnectionTurns(board, 1)
    turns.opened()
    turns.opened()
    turns.closed()
    assert (board[1].open, board[1].accepted) == (1, 2)
    turns.stop()
    turns.closed()
    assert board[1].open == math.inf
    board[1].clear()
    assert (board[1].beats, board[1].open, board[1].accepted) == (0, math.inf, 0)
