"""Cancelled requests leave no slot of httpx's connection pool taken, at whatever step a race is cancelled."""

import asyncio
import ssl
from importlib import import_module
from typing import Any, Final

import pytest

from running import run_virtual
from ttft_gateway import AsyncHedgingTransport, AsyncHedgingTransport2, HedgeConfig

_WAITS_S: Final = (0.0, 0.01)  # until the steps begin: with the primary, or with the backup
_STEPS: Final = 24  # of the event loop; each of the two takes fewer
_AGAIN: Final = (None, 1, 2, 3)  # steps until a second cancellation
_TLS: Final = ssl.create_default_context()  # one for all, because it takes longer than a race
_CONFIG: Final = HedgeConfig(warmup_delay=0.01, warmup_requests=100_000, budget_percent=100.0)
_CALL: Final = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
_ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 46\r\n\r\n"
    b'data: {"choices":[{"delta":{"content":"Hi"}}]}'
)


class _Stream:
    """A connection on which each call takes one step; a silent one has no answer."""

    def __init__(self, *, silent: bool, is_closed: bool = False) -> None:
        self._silent = silent
        self.is_closed = is_closed

    async def read(self, *_: Any, **__: Any) -> bytes:
        await asyncio.sleep(3600.0 if self._silent else 0.0)
        return _ANSWER

    async def write(self, *_: Any, **__: Any) -> None:
        await asyncio.sleep(0.0)

    async def aclose(self) -> None:
        self.is_closed = True
        await asyncio.sleep(0.0)

    def get_extra_info(self, _info: str) -> Any:
        return None


class _Backend:
    """Makes connections, every second one silent."""

    def __init__(self) -> None:
        self.made: list[_Stream] = []

    async def connect_tcp(self, *_: Any, **__: Any) -> _Stream:
        await asyncio.sleep(0.0)
        stream = _Stream(silent=len(self.made) % 2 == 0)
        self.made.append(stream)
        return stream


@pytest.mark.parametrize("again", _AGAIN)
@pytest.mark.parametrize("hedge", ["on", "off"])
@pytest.mark.parametrize("made", [AsyncHedgingTransport, AsyncHedgingTransport2])
def test_a_cancelled_request_leaves_no_slot_taken(made: Any, hedge: str, again: int | None) -> None:
    """After a cancellation at any step, and a second one soon after it, each connection is idle or closed."""
    library = import_module("httpx2" if made is AsyncHedgingTransport2 else "httpx")

    async def main() -> None:
        for wait_s, step in ((wait_s, step) for wait_s in _WAITS_S for step in range(_STEPS)):
            inner: Any = library.AsyncHTTPTransport(verify=_TLS)
            pool, backend = inner._pool, _Backend()
            pool._network_backend = backend
            if hedge == "off":  # no backup will answer, so the first connection does
                backend.made.append(_Stream(silent=True, is_closed=True))
            transport = made(_CONFIG, transport=inner)
            transport.hedger.clock = asyncio.get_running_loop().time
            async with library.AsyncClient(transport=transport) as client:
                await _cancelled(client, {"x-ttft-hedge": hedge}, wait_s, step, again)
                taken = [each for each in pool._connections if not each.is_idle()]
                assert (pool._requests, taken) == ([], []), (wait_s, step)
                kept = [each._connection._network_stream for each in pool._connections]
                assert [each for each in backend.made if not each.is_closed and each not in kept] == [], (wait_s, step)

    run_virtual(main())


@pytest.mark.parametrize("made", [AsyncHedgingTransport, AsyncHedgingTransport2])
def test_a_response_may_be_closed_by_two_tasks(made: Any) -> None:
    """Neither fails, whichever is first: an event loop closes the generators that a program has dropped by tasks."""
    library = import_module("httpx2" if made is AsyncHedgingTransport2 else "httpx")

    async def main() -> None:
        for step in range(_STEPS):
            inner: Any = library.AsyncHTTPTransport(verify=_TLS)
            inner._pool._network_backend = backend = _Backend()
            backend.made.append(_Stream(silent=True))  # so that the first connection answers
            async with library.AsyncClient(transport=made(_CONFIG, transport=inner)) as client:
                request = client.build_request("POST", "http://pretended/v1/chat/completions", json=_CALL)
                response = await client.send(request, stream=True)
                stream = response.stream._stream._opened.body._httpcore_stream
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(stream.aclose())
                    for _ in range(step):
                        await asyncio.sleep(0.0)
                    tasks.create_task(response.aclose())
                taken = [each for each in inner._pool._connections if not each.is_idle()]
                assert (inner._pool._requests, taken) == ([], [])

    run_virtual(main())


async def _cancelled(client: Any, headers: dict[str, str], wait_s: float, step: int, again: int | None) -> None:
    """Send a request and cancel it after a time and some steps, and again some steps later."""

    async def send() -> None:
        url = "http://pretended/v1/chat/completions"
        async with client.stream("POST", url, json=_CALL, headers=headers) as response:
            await response.aread()

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(send())
        await asyncio.sleep(wait_s)
        for _ in range(step):
            await asyncio.sleep(0.0)
        task.cancel()
        for _ in range(again or 0):
            await asyncio.sleep(0.0)
        if again is not None:
            task.cancel()
    await asyncio.sleep(1.0)  # backups end
