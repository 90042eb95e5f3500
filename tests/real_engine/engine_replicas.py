"""Running llama-servers: started, asked about their slots, kept busy. Knows nothing of the gateway. Units: seconds."""

import contextlib
import json
import os
import random
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SLOTS, CONTEXT = 2, 32_768  # the context is shared by the slots
_READY_S_MAX = 120.0
_CALL_S_MAX = 300.0
_WORDS = ("river", "stone", "bridge", "cloud", "letter", "window", "garden", "morning", "engine", "paper", "silver")


def prompt(tokens: int, draw: random.Random) -> str:
    """A text of about so many tokens that no cache has seen: each word is one or two."""
    return " ".join(draw.choice(_WORDS) + str(draw.randrange(10)) for _ in range(max(1, tokens // 3)))


@contextlib.contextmanager
def running(server: Path, model: Path, count: int, log: Path) -> Iterator[list[str]]:
    """So many servers with one thread each while inside; gives their addresses.

    Raises:
        RuntimeError: one did not start.
    """
    with contextlib.ExitStack() as stack:
        addresses = []
        for number in range(count):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            said = stack.enter_context((log / f"replica-{number}.log").open("wb"))
            line = f"--model {model} --host 127.0.0.1 --port {port} --alias random --parallel {SLOTS} --threads 1"
            line += f" --threads-batch 1 --ctx-size {CONTEXT} --cache-ram 0 --metrics --slots --seed {number}"
            process = subprocess.Popen([str(server), *line.split()], stdout=said, stderr=said)
            _pin(process.pid, number)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            addresses.append(f"http://127.0.0.1:{port}")
        for address in addresses:
            _wait_ready(address)
        yield addresses


def get(url: str) -> Any:
    """The JSON at an address."""
    with urllib.request.urlopen(url, timeout=_CALL_S_MAX) as answer:
        return json.load(answer)


def busy_slots(address: str) -> int:
    """How many slots work on something."""
    return sum(bool(slot["is_processing"]) for slot in get(f"{address}/slots"))


def read_long(address: str, tokens: int, seed: int) -> None:
    """Have one slot of a replica read a long prompt that no cache has seen, and wait for its end."""
    body = {"prompt": prompt(tokens, random.Random(seed)), "max_tokens": 1, "model": "random"}
    asked = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=_CALL_S_MAX) as answer:
        answer.read()


def _pin(pid: int, number: int) -> None:
    """Give the first replicas a core of their own, as far as there are some: what one does slows the others less."""
    if hasattr(os, "sched_setaffinity"):  # Linux
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(pid, {cores[min(number, len(cores) - 1)]})


def _wait_ready(address: str) -> None:
    clock = threading.Event()
    for _ in range(int(_READY_S_MAX / 0.2)):
        with contextlib.suppress(OSError):  # refused until it listens, 503 until the model is loaded
            if get(f"{address}/health")["status"] == "ok":
                return
        clock.wait(0.2)
    raise RuntimeError(f"{address} is not ready after {_READY_S_MAX} s; its log is in build/real-engine")
