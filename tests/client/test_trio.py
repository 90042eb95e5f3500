"""Without an event loop of asyncio, as under trio, an asynchronous transport sends without a race, and closes."""

from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import httpx

from ttft_gateway import AsyncHedgingTransport

_T = TypeVar("_T")


class _Inner(httpx.AsyncBaseTransport):
    """Responds without waiting, so that a coroutine that uses it needs no loop."""

    is_closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(500 if "x-ttft-hedge" in request.headers else 204)

    async def aclose(self) -> None:
        self.is_closed = True


def _result(work: Coroutine[object, object, _T]) -> _T:
    """Run a coroutine that never waits, outside of every loop."""
    try:
        work.send(None)
    except StopIteration as end:
        found: _T = end.value
        return found
    raise AssertionError("the coroutine waits")


def test_a_transport_without_asyncio_sends_and_closes() -> None:
    """A request is sent once, without the switch, and `aclose` closes the inner transport."""
    inner = _Inner()
    transport = AsyncHedgingTransport(transport=inner)

    def use() -> int:
        response = _result(
            transport.handle_async_request(httpx.Request("GET", "http://a", headers={"x-ttft-hedge": "off"}))
        )
        _result(transport.aclose())
        status: int = response.status_code
        return status

    with ThreadPoolExecutor(1) as threads:  # in the main thread, older Pythons make a loop when one is asked for
        assert threads.submit(use).result() == 204
    assert inner.is_closed
