"""The examples of docs/client.md, run against simulated replicas as programs of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from checkout import ROOT

PROFILES = '[{"ttft": "5ms", "tokens": "8"}, {"ttft": "5ms", "tokens": "8"}]'


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Ports of two simulated replicas in a process that ends with its input."""
    command = [sys.executable, "-m", "gateway.simulated.fleet", PROFILES]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as fleet:
        assert fleet.stdout is not None
        assert fleet.stdin is not None
        yield [port for port, _ in json.loads(fleet.stdout.readline())]
        fleet.stdin.close()


def _run(example: str, **environment: str) -> str:
    """Run an example; return what it prints."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / example],
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_openai(ports: list[int]) -> None:
    """The first ten lines of the guide stream an answer."""
    url = f"http://127.0.0.1:{ports[0]}/v1"
    printed = _run("client_openai.py", OPENAI_BASE_URL=url, OPENAI_API_KEY="k", OPENAI_MODEL="m")
    assert "\n1 requests, " in printed


def test_two_replicas(ports: list[int]) -> None:
    """Requests go to both replicas."""
    first, second = (f"http://127.0.0.1:{port}/v1" for port in ports)
    printed = _run("client_replicas.py", FIRST_URL=first, FIRST_KEY="a", SECOND_URL=second, SECOND_MODEL="m2")
    assert {line.partition(":")[0] for line in printed.splitlines()} == {"first", "second"}


def test_aiohttp(ports: list[int]) -> None:
    """A session streams an answer."""
    pytest.importorskip("aiohttp")
    printed = _run("client_aiohttp.py", OPENAI_BASE_URL=f"http://127.0.0.1:{ports[0]}/v1", OPENAI_API_KEY="k")
    assert "data: [DONE]" in printed
    assert "\n1 requests, " in printed


def test_any_http(ports: list[int]) -> None:
    """GET requests are counted as requests that may be hedged."""
    printed = _run("client_http.py", URL=f"http://127.0.0.1:{ports[0]}/v1/models")
    assert printed.startswith("50 requests, hedge rate ")
