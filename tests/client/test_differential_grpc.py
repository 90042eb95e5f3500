"""Whatever a server answers, a caller gets through both channels that race exactly what the plain channel returns."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

pytest.importorskip("grpc")

import grpc
import grpc.aio

from ttft_gateway import HedgeConfig, async_hedging_interceptors, hedging_channel

_UNARY, _STREAM = "/test.Endings/Unary", "/test.Endings/Stream"
_ALONE = HedgeConfig(warmup_delay=3600.0)
_RACED = HedgeConfig(warmup_delay=0.0, min_delay=0.0, budget_percent=100.0)
_MARK = "x-mark"

CODES = [code.name for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
ENDINGS = [
    *(f"fail {name}" for name in CODES),
    "one",
    "empty message",
    "large",
    "three",
    "nothing",
    "metadata",
    "one, then fail UNAVAILABLE",
    "metadata, then fail INTERNAL",
]


class _Service(grpc.GenericRpcHandler):
    """Answers as the request names it; a raced one when both attempts have arrived."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arrived: Counter[bytes] = Counter()

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method == _STREAM:
            return grpc.unary_stream_rpc_method_handler(self._answer)
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"".join(self._answer(request, context)))

    def _answer(self, request: bytes, context: Any) -> Iterator[bytes]:
        ending, _, mark = request.partition(b"#")
        if mark:
            with self._changed:
                self._arrived[mark] += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._arrived[mark] > 1, timeout=60.0)
        for part in ending.decode().split(", then "):
            verb, _, name = part.partition(" ")
            if verb == "metadata":
                context.send_initial_metadata(((_MARK, "first"),))
                context.set_trailing_metadata(((_MARK, "last"),))
            elif verb == "fail":
                context.set_trailing_metadata(((_MARK, name),))
                context.abort(grpc.StatusCode[name], f"details of {name}")
            elif verb != "nothing":
                yield {"empty": b"", "large": b"x" * 1_000_000}.get(verb, b"Hello")
                if verb == "three":
                    yield b" there"
                    yield b"!"


class Received(NamedTuple):
    """An RPC as its caller gets it."""

    messages: list[bytes]
    error: str
    code: str
    details: str
    first: list[Any]
    last: list[Any]


def _marks(metadata: Any) -> list[Any]:
    return [value for key, value in metadata or () if key == _MARK]


def _sync(channel: grpc.Channel, request: bytes, read: str) -> Received:
    messages: list[bytes] = []
    unary: Any = channel.unary_unary(_UNARY)
    stream: Any = channel.unary_stream(_STREAM)
    call: Any = None
    error = ""
    try:
        if read == "call":
            messages.append(unary(request, timeout=60.0))
            return Received(messages, "", "OK", "", [], [])
        if read == "with_call":
            message, call = unary.with_call(request, timeout=60.0)
            messages.append(message)
        elif read == "future":
            call = unary.future(request, timeout=60.0)
            messages.append(call.result())
        else:
            call = stream(request, timeout=60.0)
            if read == "next":
                while (message := next(call, None)) is not None:
                    messages.append(message)
            else:
                messages.extend(call)
    except grpc.RpcError as raised:
        call, error = raised, "RpcError"  # grpc's own classes are private
    return Received(
        messages,
        error,
        call.code().name,
        call.details() or "",
        _marks(call.initial_metadata()),
        _marks(call.trailing_metadata()),
    )


async def _async(channel: grpc.aio.Channel, request: bytes, read: str) -> Received:
    messages: list[bytes] = []
    error = ""
    call: Any
    if read in ("await", "code first"):
        unary: Any = channel.unary_unary(_UNARY)
        call = unary(request, timeout=60.0)
    else:
        stream: Any = channel.unary_stream(_STREAM)
        call = stream(request, timeout=60.0)
    try:
        if read == "code first":
            await call.code()
        if read in ("await", "code first"):
            messages.append(await call)
        elif read == "read":
            while (message := await call.read()) is not grpc.aio.EOF:
                messages.append(message)
        else:
            messages += [message async for message in call]
    except grpc.aio.AioRpcError as raised:
        error = type(raised).__name__
    code, details, last = await call.code(), await call.details(), await call.trailing_metadata()
    # grpc.aio itself sometimes loses the initial metadata of a stream that ends at once.
    return Received(messages, error, code.name, details or "", [], _marks(last))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a server."""
    server = grpc.server(ThreadPoolExecutor(8), handlers=[_Service()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def _by_sync(address: str, request: bytes, read: str, config: HedgeConfig | None) -> Received:
    plain = grpc.insecure_channel(address)
    with plain if config is None else hedging_channel(plain, "a", {_UNARY, _STREAM}, config) as channel:
        return _sync(channel, request, read)


def _by_async(address: str, request: bytes, read: str, config: HedgeConfig | None) -> Received:
    async def main() -> Received:
        hedging = [] if config is None else async_hedging_interceptors("a", {_UNARY, _STREAM}, config)
        async with grpc.aio.insecure_channel(address, interceptors=hedging) as channel:
            return await _async(channel, request, read)

    return asyncio.run(main())


KINDS: dict[str, tuple[Callable[..., Received], list[str]]] = {
    "grpc": (_by_sync, ["call", "with_call", "future", "next", "for"]),
    "grpc async": (_by_async, ["await", "code first", "read", "for"]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_caller_gets_what_the_plain_channel_returns(address: str, kind: str, ending: str) -> None:
    """Messages, status, details, metadata and errors are equal, raced or not."""
    send, reads = KINDS[kind]
    found = []
    for read in reads:
        plain = send(address, ending.encode(), read, None)
        alone = send(address, ending.encode(), read, _ALONE)
        raced = send(address, f"{ending}#{kind} {read} {ending}".encode(), read, _RACED)
        found += [(read, how, got, plain) for how, got in (("alone", alone), ("raced", raced)) if got != plain]
    assert found == []
