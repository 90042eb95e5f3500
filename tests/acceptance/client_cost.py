"""CPU time of a request that is not hedged: the client library, and hedge-python, compared with bare httpx and aiohttp.

    PYTHONPATH=.:tests/support python tests/acceptance/client_cost.py --python port/bin/python

Each round sends the same requests through the bare client and the hedging one, in turn: streams of a replica in another
process, and GETs. The cost is the median of the rounds' differences, printed with their quartiles. No request is late.
`--python` is an interpreter with hedge-python, httpx and aiohttp, which is measured in turn with this one; it hedges no
POST, and has nothing for `httpx.Client`. Two minutes with the defaults. Units: microseconds of CPU time of the client's
process. tests/client/test_cost.py holds the number of calls, `client_instructions.py` counts instructions.
"""

import argparse
import asyncio
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import httpx

ROOT: Final = Path(__file__).resolve().parents[2]  # this file also runs in an environment without this project
CLIENTS: Final = ("httpx async", "httpx", "aiohttp")
_MESSAGE: Final = "Write two sentences about the tail of a latency distribution."
_FIELDS: Final = {"model": "m", "messages": [{"role": "user", "content": _MESSAGE}], "stream": True}
_BODY: Final = json.dumps(_FIELDS, separators=(",", ":")).encode()  # as SDKs send it
_HEADERS: Final = {"authorization": "Bearer k", "content-type": "application/json", "x-stainless-retry-count": "0"}
_NEVER_S: Final = 3600.0  # delay of a backup
_TIMEOUT_S: Final = 7200.0  # before a shorter one there is no time for a backup, so no timer
_NO_TIMEOUT: Final = aiohttp.ClientTimeout()
_REQUESTS: Final = {"POST": ("/v1/chat/completions", _BODY), "GET": ("/v1/models", None)}
Block = Callable[[int, str], float]
"""Sends a number of requests with a method; returns the CPU time of one."""


def _own(client: str) -> Any:
    library = importlib.import_module("ttft_gateway")
    config = library.HedgeConfig(min_delay=_NEVER_S)
    if client == "aiohttp":
        return library.HedgingSession(config, timeout=_NO_TIMEOUT)
    return (library.HedgingTransport if client == "httpx" else library.AsyncHedgingTransport)(config)


def _port(client: str) -> Any:
    library = importlib.import_module("hedge.transport")
    config = importlib.import_module("hedge").HedgeConfig(min_delay=_NEVER_S, warmup_delay=_NEVER_S)
    if client == "aiohttp":
        return library.HedgedAiohttpSession(config, timeout=_NO_TIMEOUT)
    return library.HedgedHttpxTransport(config=config)


def _sync(url: str, transport: Any) -> Block:
    client = httpx.Client(transport=transport or httpx.HTTPTransport(), timeout=_TIMEOUT_S)

    def run(requests: int, method: str) -> float:
        path, body = _REQUESTS[method]
        start_s = time.process_time()
        for _ in range(requests):
            client.request(method, url + path, headers=_HEADERS, content=body)
        return (time.process_time() - start_s) / requests * 1e6

    return run


def _async(url: str, transport: Any, runner: asyncio.Runner) -> Block:
    client = httpx.AsyncClient(transport=transport or httpx.AsyncHTTPTransport(), timeout=_TIMEOUT_S)

    async def work(requests: int, method: str) -> float:
        path, body = _REQUESTS[method]
        start_s = time.process_time()
        for _ in range(requests):
            await client.request(method, url + path, headers=_HEADERS, content=body)
        return (time.process_time() - start_s) / requests * 1e6

    return lambda requests, method: runner.run(work(requests, method))


def _session(url: str, session: Any, runner: asyncio.Runner) -> Block:
    async def work(requests: int, method: str) -> float:
        path, body = _REQUESTS[method]
        send = session.post if method == "POST" else session.get
        start_s = time.process_time()
        for _ in range(requests):
            response = await send(url + path, headers=_HEADERS, data=body)
            await response.read()
        return (time.process_time() - start_s) / requests * 1e6

    return lambda requests, method: runner.run(work(requests, method))


@contextmanager
def _blocks(client: str, url: str, make: Callable[[str], Any]) -> Iterator[tuple[Block, Block]]:
    """Yield the bare client and the hedging one."""

    async def sessions() -> tuple[Any, Any]:
        return aiohttp.ClientSession(timeout=_NO_TIMEOUT), make(client)

    with asyncio.Runner() as runner:
        if client == "httpx":
            yield _sync(url, None), _sync(url, make(client))
        elif client == "httpx async":
            yield _async(url, None, runner), _async(url, make(client), runner)
        else:
            bare, hedging = runner.run(sessions())
            yield _session(url, bare, runner), _session(url, hedging, runner)
            runner.run(bare.close())
            runner.run(hedging.close())


def _serve(library: str, client: str, url: str) -> None:
    """Measure a round for each line on the standard input: number of requests and method."""
    with _blocks(client, url, _own if library == "own" else _port) as (bare, hedging):
        for number, line in enumerate(sys.stdin):
            requests, method = line.split()
            first, second = (bare, hedging) if number % 2 else (hedging, bare)
            times = first(int(requests), method), second(int(requests), method)
            sys.stdout.write(json.dumps(times if first is bare else times[::-1]) + "\n")
            sys.stdout.flush()


def _rounds(commands: list[list[str]], requests: int, rounds: int) -> Iterator[tuple[str, list[list[list[float]]]]]:
    """Yield for each method the times of each command's rounds: bare, and hedging."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for command in commands
        ]
        for method in _REQUESTS:
            found: list[list[list[float]]] = [[] for _ in processes]
            for _ in range(rounds + 1):
                for process, times in zip(processes, found, strict=True):
                    assert process.stdin is not None
                    assert process.stdout is not None
                    process.stdin.write(f"{requests} {method}\n")
                    process.stdin.flush()
                    times.append(json.loads(process.stdout.readline()))
            yield method, [times[1:] for times in found]  # the first one warms up
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()


def _shown(times: list[list[float]]) -> str:
    low, cost, high = statistics.quantiles((hedging - bare for bare, hedging in times), n=4)
    bare = statistics.median(bare for bare, _ in times)
    return f"{cost:+.0f} us a request (quartiles {low:+.0f} and {high:+.0f}), bare {bare:.0f}"


def main() -> None:
    """Measure each client library and print the differences."""
    parser = argparse.ArgumentParser(description="CPU time of a request that is not hedged.")
    parser.add_argument("--requests", type=int, default=300, help="requests of a round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=4, help="pieces of a stream")
    parser.add_argument("--gap-ms", type=int, default=0, help="time between them, after which each arrives alone")
    parser.add_argument("--python", help="interpreter with hedge-python")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        _serve(*args.serve)
        return
    profile = [{"ttft": "0ms", "gap": f"{args.gap_ms}ms", "tokens": str(args.tokens)}]
    command = [sys.executable, "-m", "gateway.simulated.fleet", json.dumps(profile)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as replica:
        assert replica.stdout is not None
        [[port, _]] = json.loads(replica.stdout.readline())
        for client in CLIENTS:
            end = ["--serve", "own", client, f"http://127.0.0.1:{port}"]
            measured = {"ttft-gateway": [sys.executable, __file__, *end]}
            if args.python and client != "httpx":
                measured["hedge-python"] = [args.python, __file__, "--serve", "port", *end[2:]]
            for method, found in _rounds([*measured.values()], args.requests, args.rounds):
                for name, times in zip(measured, found, strict=True):
                    sys.stdout.write(f"{client} {method}, {name}: {_shown(times)}\n")
                    sys.stdout.flush()
        assert replica.stdin is not None
        replica.stdin.close()


if __name__ == "__main__":
    main()
