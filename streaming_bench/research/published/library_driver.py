"""Runs one hedging library over simulated answers, in an environment of the library.

The benchmark of the Python port by its own file: 500 requests one at a time, lognormal(5, 2) ms, 5 % stragglers ten
times as slow, 20 warm-up requests with a delay of 10 ms, a budget of 10 %. All random numbers are drawn beforehand, one
for each request and attempt, so that every library gets the same ones.

With `--real-time` a client library sends to a server on this machine in the same process, as in the port's benchmark.
Without it, time is virtual, and httpx sends through a transport that answers after the drawn time and a fixed overhead,
so that the machine has no influence. Prints one JSON object. Started by python_port.py as a script; without
`ttft_gateway` it loads one file of this project, which needs no package. Units: seconds inside, milliseconds in the
result.
"""

import argparse
import asyncio
import importlib
import json
import math
import random
import runpy
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

_VIRTUAL_LOOP: Final = Path(__file__).parents[2] / "simulation" / "virtual_loop.py"
_PORT, _OWN = "hedge-python", "ttft_gateway"

MEAN_S, SD_S = 0.005, 0.002
STRAGGLERS, FACTOR = 0.05, 10
OVERHEAD_S = 0.0011  # of httpx and the event loop: the published p50 of 5.8 ms minus the distribution's, 4.64 ms
STATIC_S = 0.010
_UNARY, _STREAM = "/bench.Echo/Unary", "/bench.Echo/Stream"
_ATTEMPTS_MAX = 4
_HEAD_MAX = 65_536

Send = Callable[[int], Awaitable[None]]


class Replies:
    """The time of each attempt.

    Attributes:
        calls: attempts received.
    """

    def __init__(self, seed: int, requests: int, overhead_s: float) -> None:
        variance = math.log(1 + (SD_S / MEAN_S) ** 2)
        mu, sigma = math.log(MEAN_S) - variance / 2, math.sqrt(variance)

        def draw_s(rng: random.Random) -> float:
            usual_s = rng.lognormvariate(mu, sigma)
            return overhead_s + usual_s * (FACTOR if rng.random() < STRAGGLERS else 1)

        rngs = [random.Random(f"{seed}/attempt {number}") for number in range(_ATTEMPTS_MAX)]
        self._times_s = [[draw_s(rng) for _ in range(requests)] for rng in rngs]
        self._seen: Counter[int] = Counter()
        self.calls = 0

    async def wait(self, request: int) -> None:
        """Wait for the time of the request's next attempt."""
        self.calls += 1
        attempt = self._seen[request]
        self._seen[request] += 1
        await asyncio.sleep(self._times_s[min(attempt, _ATTEMPTS_MAX - 1)][request])


@asynccontextmanager
async def http_server(replies: Replies) -> AsyncIterator[str]:
    """Serve HTTP/1.1 on this machine; the target of a request ends with its number."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await replies.wait(int(head.split(b" ", 2)[1].rpartition(b"=")[2]))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                await writer.drain()
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed the connection, or the loop ends
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_HEAD_MAX)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/api?n="
    finally:
        server.close()


@asynccontextmanager
async def grpc_server(replies: Replies) -> AsyncIterator[str]:
    """Serve both RPCs on this machine; a message is the number of its request."""
    grpc = importlib.import_module("grpc")

    async def unary(request: bytes, _context: object) -> bytes:
        await replies.wait(int(request))
        return request

    async def stream(request: bytes, _context: object) -> AsyncIterator[bytes]:
        await replies.wait(int(request))
        for _ in range(3):
            yield request

    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
    }
    server = importlib.import_module("grpc.aio").server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def settings(args: argparse.Namespace) -> object:
    """Return the settings of the library: as in the port's benchmark, or a fixed delay without a budget."""
    made = importlib.import_module("hedge" if args.library == _PORT else _OWN).HedgeConfig
    if args.policy == "static":
        return made(warmup_requests=args.requests, warmup_delay=STATIC_S, budget_percent=100)
    return made(warmup_requests=20, warmup_delay=0.010, budget_percent=args.budget_percent)


async def answer(httpx: ModuleType, replies: Replies, request: SimpleNamespace) -> object:
    """Return a response of httpx after the time of the attempt."""
    await replies.wait(int(request.url.params["n"]))
    return httpx.Response(200, stream=httpx.ByteStream(b"ok"))


async def httpx_client(args: argparse.Namespace, replies: Replies, stack: AsyncExitStack) -> Send:
    """Return the function that sends a request by httpx."""
    httpx = importlib.import_module("httpx")
    url = "http://replica.invalid/?n="
    if args.virtual:
        transport = httpx.MockTransport(partial(answer, httpx, replies))
    else:
        url, transport = await stack.enter_async_context(http_server(replies)), httpx.AsyncHTTPTransport()
    clock = asyncio.get_running_loop().time
    if args.library == _PORT:
        if args.virtual:
            for module in ("hedge.transport._base", "hedge.budget._token_bucket"):
                importlib.import_module(module).__dict__["time"] = SimpleNamespace(monotonic=clock)
        made = importlib.import_module("hedge.transport").HedgedHttpxTransport
        transport = made(inner=transport, config=settings(args))
    elif args.library == _OWN:
        transport = importlib.import_module(_OWN).AsyncHedgingTransport(settings(args), transport=transport)
        if args.virtual:
            transport.hedger.clock, transport.hedger.rand = clock, random.Random(f"{args.seed}/coin").random
    client = await stack.enter_async_context(httpx.AsyncClient(transport=transport))

    async def send(number: int) -> None:
        await client.get(f"{url}{number}")

    return send


async def aiohttp_client(args: argparse.Namespace, replies: Replies, stack: AsyncExitStack) -> Send:
    """Return the function that sends a request by aiohttp."""
    if args.library == _PORT:
        session = importlib.import_module("hedge.transport").HedgedAiohttpSession(config=settings(args))
    elif args.library == _OWN:
        session = importlib.import_module(_OWN).HedgingSession(settings(args))
    else:
        session = importlib.import_module("aiohttp").ClientSession()
    url = await stack.enter_async_context(http_server(replies))
    client = await stack.enter_async_context(session)

    async def send(number: int) -> None:
        response = await client.get(f"{url}{number}")
        await response.read()

    return send


async def grpc_client(args: argparse.Namespace, replies: Replies, stack: AsyncExitStack) -> Send:
    """Return the function that sends an RPC."""
    is_unary = args.client == "grpc-unary"
    interceptors: list[Any] = []
    if args.library == _PORT:
        port = importlib.import_module("hedge.interceptor")
        made = port.HedgedUnaryInterceptor if is_unary else port.HedgedServerStreamInterceptor
        interceptors = [made(config=settings(args))]
    elif args.library == _OWN:
        own = importlib.import_module(_OWN)
        interceptors = own.async_hedging_interceptors("bench", {_UNARY, _STREAM}, settings(args))
    address = await stack.enter_async_context(grpc_server(replies))
    aio = importlib.import_module("grpc.aio")
    channel = await stack.enter_async_context(aio.insecure_channel(address, interceptors=interceptors))
    unary, stream = channel.unary_unary(_UNARY), channel.unary_stream(_STREAM)

    async def send(number: int) -> None:
        if is_unary:
            await unary(b"%d" % number)
        else:
            async for _ in stream(b"%d" % number):
                pass

    return send


CLIENTS: Final = {
    "httpx": httpx_client,
    "aiohttp": aiohttp_client,
    "grpc-unary": grpc_client,
    "grpc-stream": grpc_client,
}


async def run(args: argparse.Namespace) -> dict[str, object]:
    """Send all requests; return their times in ascending order, and the attempts beyond one per request."""
    loop = asyncio.get_running_loop()
    replies = Replies(args.seed, args.requests, OVERHEAD_S if args.virtual else 0.0)
    times_ms: list[float] = []
    numbers = iter(range(args.requests))
    async with AsyncExitStack() as stack:
        send = await CLIENTS[args.client](args, replies, stack)

        async def work() -> None:
            for number in numbers:
                began_s = loop.time()
                await send(number)
                times_ms.append(1000 * (loop.time() - began_s))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(args.at_a_time):
                tasks.create_task(work())
    return {"times_ms": sorted(times_ms), "extra": replies.calls / args.requests - 1}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=("none", _OWN, _PORT), default="none")
    parser.add_argument("--client", choices=list(CLIENTS), default="httpx")
    parser.add_argument("--policy", choices=("adaptive", "static"), default="adaptive")
    parser.add_argument("--budget-percent", type=float, default=10.0)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-a-time", type=int, default=1)
    parser.add_argument("--real-time", dest="virtual", action="store_false")
    given = parser.parse_args()
    factory = runpy.run_path(str(_VIRTUAL_LOOP))["VirtualLoop"] if given.virtual else None
    with asyncio.Runner(loop_factory=factory) as runner:
        json.dump(runner.run(run(given)), sys.stdout)
