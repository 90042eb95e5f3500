"""Reports to a service manager."""

import contextlib
import math
import os
import socket
from pathlib import Path

import pytest

from gateway.server.notify import READY, Watchdog, notify, reloading, watchdog_s


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


def test_the_watchdog_of_this_process_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice in each interval; not without an interval, and not for another process."""
    own, other = str(os.getpid()), str(os.getpid() + 1)
    intervals = [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": other}]
    assert [watchdog_s(each) for each in intervals] == [math.inf] * 3
    assert watchdog_s({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": own}) == 10.0
    assert Watchdog(1.0).due_s == math.inf
    monkeypatch.setenv("WATCHDOG_USEC", "10000000")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        watchdog, received = Watchdog(1.0), list[float]()
        for now_s in range(1, 17):
            watchdog.beat(float(now_s))
            with contextlib.suppress(BlockingIOError):
                assert sock.recv(100) == b"WATCHDOG=1"
                received.append(now_s)
    assert received == [6, 11, 16]
