"""A real Redis or Valkey server as a process of its own, on a free port, without persistence.

The variable REDIS_SERVER names its program; else it is redis-server or valkey-server. In CI on Linux it is never
missing; elsewhere its tests are skipped, in red.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from unused_ports import unused_port

PROGRAM: Final = os.environ.get("REDIS_SERVER") or shutil.which("redis-server") or shutil.which("valkey-server")
WAIT_S: Final = 20.0  # of a loaded machine
_ATTEMPTS: Final = 400


class RedisServer:
    """A server that may be killed, stopped and started again; its data do not outlive its process.

    Attributes:
        port: port on this machine.
        socket: path of its unix socket.
    """

    def __init__(self, folder: Path, *options: str, sentinel: Path | None = None) -> None:
        self.port = unused_port()
        self.socket = folder / f"{self.port}.sock"
        folder.mkdir(exist_ok=True)
        assert PROGRAM is not None
        places = ("--port", str(self.port), "--unixsocket", str(self.socket), "--dir", str(folder))
        without = ("--bind", "127.0.0.1", "--loglevel", "warning")
        if sentinel is None:
            self._argv = (PROGRAM, *places, *without, "--save", "", "--appendonly", "no", *options)
        else:
            self._argv = (PROGRAM, str(sentinel), *places, *without, "--sentinel", *options)
        self._log = folder / f"{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._argv, stdout=log, stderr=log)
        for _ in range(_ATTEMPTS):
            assert self._process.poll() is None, self._log.read_text()
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
                client.settimeout(WAIT_S / _ATTEMPTS)
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                if client.recv(100):
                    return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(WAIT_S / _ATTEMPTS)
        raise AssertionError(self._log.read_text())

    def kill(self) -> None:
        """End it immediately; its data are lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self.socket.unlink(missing_ok=True)

    def hang(self) -> None:
        """Stop it: it accepts connections, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it answer again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def require_redis() -> None:
    """Skip the calling test if there is no server to start; fail in CI."""
    if PROGRAM is None:
        if os.environ.get("CI") and sys.platform == "linux":
            pytest.fail("redis-server is missing; apt install redis-server")
        pytest.skip("\033[31mNOT TESTED: redis-server is missing; apt install redis-server\033[0m")


@contextlib.contextmanager
def redis_server(folder: Path, *options: str, sentinel: Path | None = None) -> Iterator[RedisServer]:
    """Run a server with these options, or a Sentinel with this file."""
    require_redis()
    server = RedisServer(folder, *options, sentinel=sentinel)
    try:
        server.start()
        yield server
    finally:
        server.kill()
