"""A raced RPC returns each message when the plain channel would: none waits for a later one."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import pytest

pytest.importorskip("grpc")

import grpc
import grpc.aio

from ttft_gateway import HedgeConfig, async_hedging_interceptors, hedging_channel

_CONFIGS: Final[dict[str, HedgeConfig | None]] = {
    "plain": None,
    "alone": HedgeConfig(warmup_delay=3600.0),
    "raced": HedgeConfig(warmup_delay=0.0, min_delay=0.0, budget_percent=100.0),
}
_WAIT_S_MAX: Final = 20.0  # for a reader
_STREAM: Final = "/test.Turns/Stream"
_MESSAGES: Final = (b"one", b"two", b"three")


class _Service(grpc.GenericRpcHandler):
    """Sends each message after the reader has got the one before; attempts answer when all have arrived."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arrived = self._got = 0
        self._attempts = 1

    def begin(self, attempts: int) -> None:
        """Expect a number of attempts."""
        self._arrived, self._got, self._attempts = 0, 0, attempts

    def on_message(self) -> None:
        """Count what the reader has got."""
        with self._changed:
            self._got += 1
            self._changed.notify_all()

    def service(self, _details: object) -> Any:
        return grpc.unary_stream_rpc_method_handler(self._answer)

    def _answer(self, _request: bytes, _context: object) -> Iterator[bytes]:
        with self._changed:
            self._arrived += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._arrived >= self._attempts, _WAIT_S_MAX)
        for number, message in enumerate(_MESSAGES, 1):
            yield message
            with self._changed:
                if not self._changed.wait_for(partial(self._has, number), _WAIT_S_MAX):
                    return

    def _has(self, count: int) -> bool:
        return self._got >= count


@pytest.fixture(scope="module")
def rpc() -> Iterator[tuple[str, _Service]]:
    """The address of a server, and its service."""
    service = _Service()
    server = grpc.server(ThreadPoolExecutor(8), handlers=[service])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", service
    server.stop(None).wait()


def _by_sync(address: str, config: HedgeConfig | None, on_message: Callable[[], None]) -> list[bytes]:
    plain = grpc.insecure_channel(address)
    with plain if config is None else hedging_channel(plain, "a", {_STREAM}, config) as channel:
        found = []
        stream: Any = channel.unary_stream(_STREAM)
        for message in stream(b"", timeout=60.0):
            found.append(message)
            on_message()
        return found


def _by_async(address: str, config: HedgeConfig | None, on_message: Callable[[], None]) -> list[bytes]:
    async def main() -> list[bytes]:
        hedging = [] if config is None else async_hedging_interceptors("a", {_STREAM}, config)
        async with grpc.aio.insecure_channel(address, interceptors=hedging) as channel:
            found: list[bytes] = []
            stream: Any = channel.unary_stream(_STREAM)
            messages: AsyncIterator[bytes] = stream(b"", timeout=60.0)
            async for message in messages:
                found.append(message)
                on_message()
            return found

    return asyncio.run(main())


@pytest.mark.parametrize("how", _CONFIGS)
@pytest.mark.parametrize("send", [_by_sync, _by_async])
def test_no_message_of_an_rpc_waits_for_a_later_one(
    rpc: tuple[str, _Service], send: Callable[..., list[bytes]], how: str
) -> None:
    """Each message is returned before the server sends the next one."""
    address, service = rpc
    service.begin(2 if how == "raced" else 1)
    assert send(address, _CONFIGS[how], service.on_message) == list(_MESSAGES)
