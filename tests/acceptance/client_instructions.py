"""Instructions of a request that is not hedged: the client library compared with bare httpx and bare aiohttp.

    PYTHONPATH=.:tests:tests/support python tests/acceptance/client_instructions.py

A count repeats within 2 per cent on a busy machine, where CPU time does not (`client_cost.py`). httpx gets its answers
from sockets without a network (`pretended_server.py`), aiohttp from a simulated replica in another process. The policy
learns and plans as usual, on a clock that moves with each look at it. Needs callgrind. Units: thousands of instructions
of a request outside the kernel.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import httpx

import pretended_server
from checkout import ROOT
from streaming_bench.research.overhead.counters import callgrind_command, callgrind_counter
from ttft_gateway import AsyncHedgingTransport, HedgeConfig, HedgingSession, HedgingTransport

CLIENTS: Final = ("httpx", "httpx async", "aiohttp")
_PROFILE: Final = '[{"ttft": "0ms", "gap": "0ms", "tokens": "4"}]'
_NEVER_LATE: Final = HedgeConfig(min_delay=3600.0)
_NO_TIMEOUT: Final = aiohttp.ClientTimeout()  # before a shorter one there is no time for a backup, so no timer
_WARM: Final = 320  # while a new budget lends, a request costs more
_AGAIN: Final = 5  # translated code is counted differently at first
_COUNT: Final = 60
Send = Callable[[int], object]


@contextlib.contextmanager
def _httpx(_url: str, *, raced: bool) -> Iterator[Send]:
    inner: Any = httpx.HTTPTransport(verify=False, uds="pretended")
    inner._pool._network_backend = pretended_server._Backend()
    made: Any = pretended_server._prepared(HedgingTransport(_NEVER_LATE, transport=inner)) if raced else inner
    with httpx.Client(transport=made, timeout=7200.0) as client:
        yield lambda count: [_post(client) for _ in range(count)]


@contextlib.contextmanager
def _httpx_async(_url: str, *, raced: bool) -> Iterator[Send]:
    inner: Any = httpx.AsyncHTTPTransport(verify=False)
    inner._pool._network_backend = pretended_server._AsyncBackend()
    made: Any = pretended_server._prepared(AsyncHedgingTransport(_NEVER_LATE, transport=inner)) if raced else inner
    client = httpx.AsyncClient(transport=made, timeout=7200.0)

    async def send(count: int) -> None:
        for _ in range(count):
            await _post(client)

    with asyncio.Runner() as runner:
        yield lambda count: runner.run(send(count))
        runner.run(client.aclose())


@contextlib.contextmanager
def _aiohttp(url: str, *, raced: bool) -> Iterator[Send]:
    async def session() -> Any:
        return (
            pretended_server._prepared(HedgingSession(_NEVER_LATE, timeout=_NO_TIMEOUT))
            if raced
            else aiohttp.ClientSession(timeout=_NO_TIMEOUT)
        )

    async def send(client: Any, count: int) -> None:
        for _ in range(count):
            async with client.post(url, data=pretended_server._CALL, headers=pretended_server._HEADERS) as response:
                await response.read()

    with asyncio.Runner() as runner:
        client = runner.run(session())
        yield lambda count: runner.run(send(client, count))
        runner.run(client.close())


def _post(client: Any) -> Any:
    return client.post(pretended_server._URL, content=pretended_server._CALL, headers=pretended_server._HEADERS)


_KINDS: Final = dict(zip(CLIENTS, (_httpx, _httpx_async, _aiohttp), strict=True))


def _count(client: str, url: str, folder: Path) -> tuple[float, float]:
    """Count in this process, which runs under callgrind: bare, and what the library adds."""
    gc.disable()
    found = []
    for raced in (False, True):
        with _KINDS[client](url, raced=raced) as send:
            send(_WARM)
            with callgrind_counter(os.getpid(), folder) as read:
                send(_AGAIN)
                before = read()
                own = read() - before  # of the reading itself
                before += own
                send(_COUNT)
                found.append((read() - before - own) / _COUNT / 1000)
    return found[0], found[1] - found[0]


def _measure(client: str, url: str) -> None:
    """Start a process under callgrind that counts."""
    with tempfile.TemporaryDirectory(prefix="ttft-count-") as folder:
        command = [*callgrind_command(Path(folder)), sys.executable, __file__, client, "--url", url, "--folder", folder]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    bare, added = json.loads(done.stdout)
    sys.stdout.write(f"{client}: bare {bare:.0f}, hedging +{added:.0f} thousand instructions a request\n")


def main() -> None:
    """Count for each client library and print the difference."""
    parser = argparse.ArgumentParser(description="Instructions of a request that is not hedged.")
    parser.add_argument("client", nargs="?", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client is not None:
        sys.stdout.write(json.dumps(_count(args.client, args.url, args.folder)))
        return
    command = [sys.executable, "-m", "gateway.simulated.fleet", _PROFILE]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as replica:
        assert replica.stdout is not None
        [[port, _]] = json.loads(replica.stdout.readline())
        for client in CLIENTS:
            _measure(client, f"http://127.0.0.1:{port}/v1/chat/completions")
        assert replica.stdin is not None
        replica.stdin.close()


if __name__ == "__main__":
    main()
