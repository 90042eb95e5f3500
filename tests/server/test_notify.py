"""Reports to a service manager."""

import socket
from pathlib import Path

import pytest

from gateway.server.notify import READY, notify, reloading


def test_states_reach_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each state is one datagram, to a path or to an abstract name; nothing happens without a receiver."""
    notify(READY)
    for address, name in ((str(tmp_path / "notify"), None), ("\0ttft-test-notify", "@ttft-test-notify")):
        monkeypatch.setenv("NOTIFY_SOCKET", name or address)
        notify(READY)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.bind(address)
            notify(READY)
            notify(reloading())
            assert sock.recv(100) == b"READY=1"
            state, _, at_us = sock.recv(100).partition(b"\nMONOTONIC_USEC=")
            assert state == b"RELOADING=1"
            assert int(at_us) > 0
