"""Child processes of the bench: a gateway with a configuration, and the end of any child.

Ports are chosen by the system. Everything here blocks: call it only while nothing is measured. Units: seconds.
"""

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from streaming_bench.errors import BenchError

ROOT: Final = Path(__file__).resolve().parents[1]  # the folder of the packages
SERVE: Final = ("gateway", "serve", "--config")
START_S_MAX: Final = 30.0
_WRAPPED_TIMES: Final = 4  # a start under valgrind takes ten times as long, some 10 s

_END_S_MAX: Final = 5.0
_READ_BYTES: Final = 65_536
_READY: Final = re.compile(r"ready at http://127\.0\.0\.1:(\d+)/v1")
_ADMIN: Final = re.compile(r"admin at http://127\.0\.0\.1:(\d+) ")


class GatewayProcess(NamedTuple):
    """A running gateway.

    Attributes:
        port: port of its API.
        admin_port: port of its admin address.
        pid: id of its process.
        start_s: time from its start until it was ready.
    """

    port: int
    admin_port: int
    pid: int
    start_s: float

    @property
    def url(self) -> str:
        """Base URL of its API."""
        return f"http://127.0.0.1:{self.port}/v1"


@contextlib.contextmanager
def start_gateway(
    config: Mapping[str, object],
    *,
    module: Sequence[str] = SERVE,
    environment: Mapping[str, str] | None = None,
    wrapper: Sequence[str] = (),
    folder: Path = ROOT,
    on_start: Callable[[int], None] = lambda _pid: None,
) -> Iterator[GatewayProcess]:
    """Run a gateway while inside.

    Args:
        config: its configuration; the addresses and drain_timeout have defaults for the bench.
        module: module to run, with its arguments before the path of the configuration.
        environment: additional environment variables.
        wrapper: program that runs the gateway, with its arguments; empty for none.
        folder: folder of the packages.
        on_start: called with the process id as soon as the process exists.

    Raises:
        BenchError: The gateway did not start.
    """
    defaults = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0", "drain_timeout": "300ms"}
    with tempfile.TemporaryDirectory(prefix="ttft-bench-") as made:
        file = Path(made) / "gateway.yaml"
        file.write_text(json.dumps({**defaults, **config}), encoding="utf-8")  # JSON is YAML
        command = [*wrapper, sys.executable, "-m", *module, str(file)]
        nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
        begin = datetime.now(UTC)
        # A session of its own: Ctrl-C in a terminal goes to all processes of this one.
        with subprocess.Popen(
            command,
            stdin=nothing,
            stdout=nothing,
            stderr=pipe,
            cwd=folder,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        ) as process:
            on_start(process.pid)
            try:
                output = _startup_output(process, START_S_MAX * (_WRAPPED_TIMES if wrapper else 1))
                port, admin = _READY.search(output), _ADMIN.search(output)
                if port is None or admin is None:
                    raise BenchError(f"the gateway did not start: {output.strip() or 'it printed nothing'}")
                start_s = (datetime.now(UTC) - begin).total_seconds()
                yield GatewayProcess(int(port[1]), int(admin[1]), process.pid, start_s)
            finally:
                process.terminate()
                end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Close the input of a process and wait for its end; kill it if it does not end."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_END_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    """Read one line of a process's output; return nothing if none comes in time."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_S_MAX)
    return process.stdout.readline() if ready else b""


def _startup_output(process: subprocess.Popen[bytes], wait_s: float) -> str:
    """Read standard error until the admin address is printed, or until nothing comes for that time."""
    stream = process.stderr
    assert stream is not None
    output = b""
    while not _ADMIN.search(output.decode(errors="replace")):
        ready, _, _ = select.select([stream], [], [], wait_s)
        piece = os.read(stream.fileno(), _READ_BYTES) if ready else b""
        if not piece:
            break
        output += piece
    return output.decode(errors="replace")
