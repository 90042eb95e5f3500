"""A real gateway process over simulated replicas, on loopback ports, for tests that speak HTTP to it.

The gateway is a process of its own, started as a person would start it, so that its memory can be told from the test's;
the replicas run on a thread of the test. Knows nothing of what is asked. Units: seconds, bytes.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from checkout import ROOT
from gateway.simulated.profile import parse_profile
from gateway.simulated.server import SimulatedServer

_START_S_MAX = 60.0  # of a loaded machine


@dataclass(slots=True)
class Served:
    """A running gateway.

    Attributes:
        url: of its public address, without a path.
        admin_url: likewise of its admin address.
        pid: of its process.
        stderr: what it has said there, line by line.
        rss_bytes_max: the most memory it ever had, known at its end; 0 where the system does not tell.
    """

    url: str
    admin_url: str
    pid: int
    stderr: list[str]
    rss_bytes_max: int = 0


@contextlib.contextmanager
def replicas(**profiles: Mapping[str, object]) -> Iterator[dict[str, str]]:
    """Simulated replicas while inside; gives the base URL of each by its name.

    Args:
        profiles: their behaviour, as `simulated_profile.KEYS` describes it.
    """
    urls: dict[str, str] = {}
    listening = threading.Event()
    loop = asyncio.new_event_loop()
    enough = asyncio.Event()

    async def serve() -> None:
        servers = {name: SimulatedServer(parse_profile(profile)) for name, profile in profiles.items()}
        for name, server in servers.items():
            await server.start()
            urls[name] = server.url
        listening.set()
        await enough.wait()
        for server in servers.values():
            await server.close()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name="simulated replicas")
    thread.start()
    try:
        if not listening.wait(_START_S_MAX):
            raise TimeoutError("the simulated replicas did not start")
        yield urls
    finally:
        loop.call_soon_threadsafe(enough.set)
        thread.join()


@contextlib.contextmanager
def gateway(config: Mapping[str, object], folder: Path, module: str = "gateway") -> Iterator[Served]:
    """A gateway process while inside.

    Args:
        config: its configuration; the addresses are any free ones.
        folder: for its files.
        module: what is started.
    """
    file = folder / "gateway.yaml"
    file.write_text(json.dumps({"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0", **config}), encoding="utf-8")
    command = [sys.executable, "-m", module, "serve", "--config", str(file)]
    environment = {**os.environ, "NO_COLOR": "1"}
    with (
        (folder / "gateway.log").open("wb") as log,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        said: list[str] = []
        ready = threading.Event()
        reader = threading.Thread(target=_read, args=(process.stderr, said, ready), name="stderr of the gateway")
        reader.start()
        try:
            ready.wait(_START_S_MAX)
            addresses = re.findall(r"http://[\d.:]+", "".join(said))
            if len(addresses) < 2:
                raise RuntimeError("the gateway did not start:\n" + "".join(said))
            served = Served(addresses[0], addresses[1], process.pid, said)
            yield served
            served.rss_bytes_max = _rss_bytes_max(process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
            reader.join()


def _read(stderr: Iterable[str], said: list[str], ready: threading.Event) -> None:
    """Take what it says to its end, so that it never waits for us; it is ready when it has named its addresses."""
    for line in stderr:
        said.append(line)
        if "admin at" in line:
            ready.set()
    ready.set()


def _rss_bytes_max(pid: int) -> int:
    """From /proc: what `wait4` says of a child includes the memory of the process that forked it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:  # not Linux, or it has ended before
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0
