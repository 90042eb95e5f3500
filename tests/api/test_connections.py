"""Bounds on client connections without an admitted request, and accepting at the limit of open files."""

import asyncio
import errno
import os
import socket

import pytest

from gateway.api import acceptor
from gateway.api.acceptor import Acceptor, Connecting
from gateway.api.http_protocol import ClientConnection, WaitingConnections
from running import run_real

_FILES = 16  # 4 connections of unknown callers, 4 of known ones


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


class _Clients:
    """Connections, and which of them are closed."""

    def __init__(self) -> None:
        self.waiting = WaitingConnections(_FILES)
        self.transports: list[_Transport] = []

    def connect(self, count: int) -> list[ClientConnection]:
        made = []
        for _ in range(count):
            self.transports.append(_Transport())
            made.append(ClientConnection(self.waiting, self.transports[-1]))
        return made

    @property
    def closed(self) -> list[int]:
        return [number for number, transport in enumerate(self.transports) if transport.aborted]


def test_the_oldest_unknown_connection_is_closed() -> None:
    """Above the bound, the connection of an unknown caller that has waited longest is closed, and no other."""
    clients = _Clients()
    clients.connect(4)
    assert clients.closed == []
    clients.connect(2)
    assert clients.closed == [0, 1]


def test_an_admitted_request_protects_its_connection() -> None:
    """A connection is not closed for room while its request is under way, with or without a key."""
    clients = _Clients()
    first, second = clients.connect(2)
    first.admit(known=True)
    second.admit(known=False)
    clients.connect(10)
    assert clients.closed == [2, 3, 4, 5, 6, 7]
    second.wait()  # from now on it is the youngest
    clients.connect(3)
    assert clients.closed == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    clients.connect(1)
    assert 1 in clients.closed


def test_known_callers_have_a_bound_of_their_own() -> None:
    """Connections of unknown callers never close connections of known callers, and the other way round."""
    clients = _Clients()
    for connection in clients.connect(4):
        connection.admit(known=True)
        connection.wait()
    clients.connect(6)
    assert clients.closed == [4, 5]
    (connection,) = clients.connect(1)
    connection.admit(known=True)
    connection.wait()
    clients.waiting.trim()
    assert clients.closed == [0, 4, 5, 6]


def test_room_is_made_by_unknown_callers_first() -> None:
    """At the limit of open files, connections below the bounds are closed: unknown callers' first."""
    clients = _Clients()
    first, _ = clients.connect(2)
    first.admit(known=True)
    first.wait()
    clients.waiting.make_room(1)
    assert clients.closed == [1]
    clients.waiting.make_room(5)
    assert clients.closed == [0, 1]


def test_a_closed_connection_takes_no_room() -> None:
    """A connection that has ended is no longer counted, whatever its state was."""
    clients = _Clients()
    for connection in clients.connect(4):
        connection.closed()
    busy, _ = clients.connect(2)
    busy.admit(known=True)
    busy.closed()
    assert len(clients.waiting.unknown) == 1
    assert clients.closed == []


class _FullSocket(socket.socket):
    """A listening socket that cannot accept for a while."""

    failures = 3

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_a_failure_to_accept_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepting is tried again after a pause, room is made each time, and the state is reported when it changes."""
    monkeypatch.setattr(acceptor, "_PAUSE_S", 0.001)
    monkeypatch.setattr(acceptor, "_QUIET_S", 0.0)
    made_room: list[None] = []
    changes: list[str | None] = []
    connected = asyncio.Event()

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()
            connected.set()

    async def main() -> None:
        with _FullSocket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen()
            accepting = Acceptor(
                sock,
                Connecting(Connection).take,
                8,
                lambda: made_room.append(None),
                lambda error: changes.append(None if error is None else error.strerror),
            )
            accepting.start()
            _, writer = await asyncio.open_connection(*sock.getsockname())
            await connected.wait()
            await asyncio.sleep(0)
            accepting.check()
            accepting.check()
            accepting.close()
            writer.close()
            await writer.wait_closed()

    run_real(main())
    assert (len(made_room), changes) == (3, ["Too many open files", None])
