"""Connections from the supervisor to workers: counted exactly, and not lost if a worker ends too early."""

import asyncio
import socket

from gateway.workers.passing import Lane, Receiver
from running import run_real


def client() -> tuple[socket.socket, socket.socket]:
    """A client, and the accepted connection."""
    ours, accepted = socket.socketpair()
    accepted.setblocking(False)
    return ours, accepted


def test_connections_are_counted_until_they_are_closed() -> None:
    """A passed connection counts immediately, until the worker reports its end; the worker gets the same connection."""

    async def main() -> None:
        changed = asyncio.Event()
        first, second = socket.socketpair()
        lane, receiver = Lane(first, changed.set), Receiver(second)
        taken: list[socket.socket] = []
        receiver.take = taken.append
        receiver.start()
        clients = []
        for _ in range(40):  # more than a batch
            ours, accepted = client()
            assert lane.pass_on(accepted)
            clients.append(ours)
        assert (lane.open, lane.passed) == (40, 40)
        while len(taken) < 40:
            await asyncio.sleep(0)
        for number, ours in enumerate(clients):
            ours.send(b"%d" % number)
        assert [sock.recv(8) for sock in taken] == [b"%d" % number for number in range(40)]
        for _ in range(15):
            receiver.closed()
        while lane.open > 25:
            changed.clear()
            await changed.wait()
        assert lane.close() == []
        receiver.close()
        second.close()
        for sock in (*clients, *taken):
            sock.close()

    run_real(main())


def test_connections_that_a_worker_has_not_taken_are_kept() -> None:
    """After the end of a worker, the lane returns what it has passed and the worker has not taken."""

    async def main() -> None:
        first, second = socket.socketpair()
        lane = Lane(first, bool)
        clients = [client() for _ in range(3)]
        for _, accepted in clients:
            assert lane.pass_on(accepted)
        second.close()
        rest = lane.close()
        assert rest == [accepted for _, accepted in clients]
        assert lane.open == 0
        ours, accepted = client()
        assert not lane.pass_on(accepted)
        for sock in (ours, accepted, *(sock for pair in clients for sock in pair)):
            sock.close()

    run_real(main())


def test_a_lane_without_room_rejects_connections() -> None:
    """A worker that takes nothing gets a bounded number of connections."""

    async def main() -> None:
        first, second = socket.socketpair()
        lane = Lane(first, bool)
        ours, accepted = client()
        count, last = 0, accepted.dup()
        while lane.pass_on(last) and count < 5_000:
            count, last = count + 1, accepted.dup()
        assert 0 < count < 5_000
        for sock in (*lane.close(), last, ours, accepted, second):
            sock.close()

    run_real(main())
