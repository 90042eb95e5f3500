"""Each free connection of httpx's pool goes to one request: none finds its connection taken, and limits are kept."""

import asyncio
import math
from contextlib import ExitStack
from typing import Any, Final

import httpcore
import httpcore2
import httpx
import pytest
from httpcore._async.connection_pool import AsyncPoolRequest

from running import run_virtual
from ttft_gateway import AsyncHedgingTransport, HedgingTransport
from ttft_gateway.client.reuse import reuse

_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
_ANSWER_S: Final = 0.005
_AT_A_TIME: Final = 20


class _Stream(httpcore.AsyncNetworkStream):
    """A connection to a server that answers each request after `_ANSWER_S`.

    Attributes:
        is_ended: True if the server has closed it.
        polls: number of looks at it while it was free.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_ended = False
        self.is_closed = False
        self.polls = 0

    async def read(self, *_: Any, **__: Any) -> bytes:
        await asyncio.sleep(_ANSWER_S)
        return _ANSWER

    async def write(self, *_: Any, **__: Any) -> None:
        await asyncio.sleep(0.0)

    async def aclose(self) -> None:
        self.is_closed = True

    def get_extra_info(self, info: str) -> Any:
        if info != "is_readable":
            return None
        self.polls += 1
        return self.is_ended


class _BlockingStream(httpcore.NetworkStream):
    def read(self, *_: Any, **__: Any) -> bytes:
        return _ANSWER

    def write(self, *_: Any, **__: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def get_extra_info(self, _info: str) -> Any:
        return None


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self) -> None:
        self.made: list[_Stream] = []

    async def connect_tcp(self, host: str, *_: Any, **__: Any) -> _Stream:
        await asyncio.sleep(0.0)
        self.made.append(_Stream(host))
        return self.made[-1]


class _BlockingBackend(httpcore.NetworkBackend):
    def __init__(self) -> None:
        self.made: list[_BlockingStream] = []

    def connect_tcp(self, *_: Any, **__: Any) -> _BlockingStream:
        self.made.append(_BlockingStream())
        return self.made[-1]


@pytest.fixture
def retries(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the requests that found their connection taken."""
    found: list[object] = []
    clear = AsyncPoolRequest.clear_connection

    def count(request: AsyncPoolRequest) -> None:
        found.append(request)
        clear(request)

    monkeypatch.setattr(AsyncPoolRequest, "clear_connection", count)
    return found


def _pool(backend: _Backend, **limits: int) -> Any:
    pool = httpcore.AsyncConnectionPool(network_backend=backend, **limits)  # type: ignore[arg-type]
    reuse(pool)
    return pool


async def _many(pool: Any, requests: int, at_a_time: int = _AT_A_TIME) -> list[int]:
    """Send requests, a number of them at a time; return their numbers in the order of their answers."""
    numbers, answered = iter(range(requests)), []

    async def caller() -> None:
        for number in numbers:
            response = await pool.request("GET", "http://service/")
            assert response.content == b"ok"
            answered.append(number)

    await asyncio.gather(*(caller() for _ in range(at_a_time)))
    return answered


def test_no_request_finds_its_connection_taken(retries: list[object]) -> None:
    """Each of 20 at a time is sent on the connection that it is given, and sockets are looked at once a request."""
    backend = _Backend()
    requests = 400

    async def scenario() -> None:
        async with AsyncHedgingTransport() as transport:
            transport._inner._pool._network_backend = backend
            async with httpx.AsyncClient(transport=transport) as client:
                pool = transport._inner._pool
                await _many(pool, requests)
                assert (await client.get("http://service/")).content == b"ok"

    run_virtual(scenario())
    assert not retries
    assert len(backend.made) == _AT_A_TIME
    assert sum(each.polls for each in backend.made) < 2 * requests


def test_connections_are_kept_while_they_are_used() -> None:
    """More connections than may be kept idle are not closed after each response."""
    backend = _Backend()

    async def scenario() -> None:
        async with _pool(backend, max_keepalive_connections=5) as pool:
            await _many(pool, 400)
            assert sum(each.is_idle() for each in pool.connections) == 5 == len(pool.connections)

    run_virtual(scenario())
    assert len(backend.made) < 2 * _AT_A_TIME  # and not one a request


def test_requests_wait_for_few_connections_in_their_order(retries: list[object]) -> None:
    """Requests that wait for one of few connections get them in the order of their arrival."""
    backend = _Backend()

    async def scenario() -> None:
        async with _pool(backend, max_connections=3) as pool:
            assert await _many(pool, 30, at_a_time=10) == list(range(30))

    run_virtual(scenario())
    assert not retries
    assert len(backend.made) == 3


def test_a_connection_that_the_server_has_closed_is_not_used() -> None:
    """A request is sent on a new connection, and those that the server has closed are closed here, too."""
    backend = _Backend()

    async def scenario() -> None:
        async with _pool(backend) as pool:
            await _many(pool, 3, at_a_time=3)
            for stream in backend.made:
                stream.is_ended = True
            await _many(pool, 1)
            assert [each.is_closed for each in backend.made] == [True, True, True, False]
            assert len(pool.connections) == 1

    run_virtual(scenario())


def test_free_connections_that_the_server_has_closed_are_closed_with_a_later_request() -> None:
    """Also connections that no request needs are looked at, though not with each request."""
    backend = _Backend()

    async def scenario() -> None:
        async with _pool(backend) as pool:
            await _many(pool, 3, at_a_time=3)
            for stream in backend.made[1:]:
                stream.is_ended = True
            pool._swept_s = -math.inf
            await _many(pool, 1, at_a_time=1)
            assert [each.is_closed for each in backend.made] == [False, True, True]

    run_virtual(scenario())


def test_a_full_pool_closes_a_free_connection_to_another_origin() -> None:
    """A pool without room gives up an idle connection for a new one."""
    backend = _Backend()

    async def scenario() -> None:
        async with _pool(backend, max_connections=1) as pool:
            for host in ("one", "two", "one"):
                response = await pool.request("GET", f"http://{host}/")
                assert response.content == b"ok"
            assert [(each.address, each.is_closed) for each in backend.made] == [
                ("one", True),
                ("two", True),
                ("one", False),
            ]

    run_virtual(scenario())


def test_a_blocking_pool_keeps_as_many_free_connections_as_it_may() -> None:
    """The pools of threads keep `max_keepalive_connections` idle ones."""
    backend = _BlockingBackend()
    pool = httpcore.ConnectionPool(network_backend=backend, max_keepalive_connections=2)
    reuse(pool)
    with pool:
        for _ in range(3):
            with ExitStack() as open_responses:
                for _ in range(4):
                    open_responses.enter_context(pool.stream("GET", "http://service/")).read()
        assert [each.is_idle() for each in pool.connections] == [True, True]
    assert len(backend.made) == 4 + 2 + 2


def test_connections_that_are_not_kept_are_closed_after_their_responses() -> None:
    """With `keepalive_expiry=0` no connection is left open for a request that may never come."""
    backend = _BlockingBackend()
    pool = httpcore.ConnectionPool(network_backend=backend, keepalive_expiry=0)
    reuse(pool)
    with pool:
        for _ in range(2):
            assert pool.request("GET", "http://service/").content == b"ok"
            assert pool.connections == []
    assert len(backend.made) == 2


@pytest.mark.parametrize("steps", range(24))
def test_a_cancelled_request_leaves_its_slot(steps: int) -> None:
    """A request without a race, cancelled at any step, does not take the only connection for ever."""
    backend = _Backend()

    async def scenario() -> None:
        async with _pool(backend, max_connections=1) as pool:
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(pool.request("PUT", "http://service/", content=b"x"))
                for _ in range(steps):
                    await asyncio.sleep(0.0)
                task.cancel()
            response = await pool.request("GET", "http://service/", extensions={"timeout": {"pool": 60.0}})
            assert response.content == b"ok"

    run_virtual(scenario())


def test_other_pools_are_left_alone() -> None:
    """Pools with HTTP/2, of httpcore2, and other objects are not changed."""
    for pool in (httpcore.AsyncConnectionPool(http2=True), httpcore2.AsyncConnectionPool(), object(), None):
        before = type(pool)
        reuse(pool)
        assert type(pool) is before


def test_a_transport_that_is_given_reuses_connections_and_one_that_is_given_twice() -> None:
    """Transports that a program has made are changed as well, and once."""
    inner = httpx.AsyncHTTPTransport()
    pool = inner._pool
    AsyncHedgingTransport(transport=inner)
    reusing = type(pool)
    AsyncHedgingTransport(transport=inner)
    assert type(pool) is reusing
    assert isinstance(pool, httpcore.AsyncConnectionPool)
    assert type(pool).__name__ == "AsyncConnectionPool"
    assert hasattr(HedgingTransport()._inner._pool, "_swept_s")
