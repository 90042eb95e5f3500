"""The detector of blocking calls: it must be able to fail, or it proves nothing."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import blocking
from running import run_virtual


def _read_file() -> None:
    Path("/dev/null").read_bytes()


def _look_up_name() -> None:
    socket.getaddrinfo("127.0.0.1", 80)


def _start_process() -> None:
    subprocess.run([sys.executable, "--version"], check=True, capture_output=True)


async def _in_loop(call: Callable[[], None]) -> None:
    call()


@pytest.mark.parametrize("call", [_read_file, _look_up_name, _start_process])
def test_a_blocking_call_on_the_loop_raises(call: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a file, looking up a name or starting a process on the event loop fails the test, naming the line."""
    monkeypatch.setattr(blocking, "OURS", (__file__,))
    with pytest.raises(blocking.BlockingCallError, match=r"test_blocking\.py:\d+"):
        run_virtual(_in_loop(call))


def test_only_the_loop_of_the_gateway_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test may block its loop, and the gateway may block where no loop runs."""
    run_virtual(_in_loop(_read_file))
    monkeypatch.setattr(blocking, "OURS", (__file__,))
    _read_file()
