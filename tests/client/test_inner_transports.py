"""Races over transports that send in their own way: fakes of tests, applications in the process, aiohttp."""

import asyncio
import contextvars
import gc
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx
import httpx2
import openai
import pytest

import client_fixtures
from client_kits import PROMPT
from client_replicas import Replicas
from ttft_gateway import (
    AsyncHedgingTransport,
    AsyncHedgingTransport2,
    HedgeConfig,
    HedgingTransport,
    HedgingTransport2,
    Stats,
    hedged,
)
from ttft_gateway.client.sockets import Watch, current

site = client_fixtures.site

AT_ONCE = HedgeConfig(warmup_delay=0.0, min_delay=0.0, budget_percent=100.0)
TIME_LIMIT_S = 60.0
_FACTORIES = {None, getattr(asyncio, "eager_task_factory", None)}  # the latter from Python 3.12 on


class _Late:
    """Answers the second request; the first one waits for it, and then answers as `first` says.

    Attributes:
        answered: set with the second answer.
        done: set when the first request has been answered.
    """

    def __init__(self, library: Any, first: Callable[[], Any]) -> None:
        self._library = library
        self._first = first
        self._requests = 0
        self._lock = threading.Lock()
        self.answered = threading.Event()
        self.done = threading.Event()

    def __call__(self, request: Any) -> Any:
        with self._lock:
            self._requests += 1
            number = self._requests
        if number > 1:
            self.answered.set()
            return self._library.Response(200, content=b"backup")
        self.answered.wait(TIME_LIMIT_S)
        try:
            return self._first()
        finally:
            self.done.set()


def _fail() -> Any:
    raise httpx.ConnectError("refused")


class _Refused(httpx.HTTPTransport):
    def handle_request(self, _request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")


class _TimeLimitError(Exception):
    """Raised by the handler of a signal, as the time limits of Celery and of test runners are."""


class _Interrupted(httpx.HTTPTransport):
    """Gets a signal while the primary waits for its response, or for its body, and a backup is under way.

    Attributes:
        ended: set when the caller has got the error; the backup answers after that.
    """

    def __init__(self, *, in_body: bool) -> None:
        super().__init__(verify=False)
        self._in_body = in_body
        self._begun = threading.Event()
        self.ended = threading.Event()

    def handle_request(self, _request: httpx.Request) -> httpx.Response:
        headers = {"content-type": "text/event-stream"}
        watch = current.watch
        assert watch is not None
        if threading.current_thread() is threading.main_thread():
            body = self._waiting(watch)
            return httpx.Response(200, headers=headers, content=body if self._in_body else b"".join(body))
        self._begun.set()
        self.ended.wait(TIME_LIMIT_S)
        return httpx.Response(200, headers=headers, content=b"data: [DONE]")

    def _waiting(self, watch: Watch) -> Iterator[bytes]:
        while not self._begun.is_set():
            watch.wait(None, 0, 0.001)
        signal.raise_signal(signal.SIGALRM)
        yield b""


@pytest.mark.parametrize("in_body", [False, True], ids=["response", "body"])
def test_an_exception_of_a_signal_ends_the_request(*, in_body: bool) -> None:
    """It is no error of the network, from which a backup could save the request: the caller gets it immediately."""

    def interrupt(_number: int, _frame: object) -> None:
        raise _TimeLimitError

    before = signal.signal(signal.SIGALRM, interrupt)
    inner = _Interrupted(in_body=in_body)
    transport = HedgingTransport(AT_ONCE, transport=inner)
    overdue = threading.Timer(TIME_LIMIT_S / 10, inner.ended.set)
    overdue.start()
    try:
        with httpx.Client(transport=transport) as client:
            call = {"model": "m", "messages": PROMPT, "stream": True}
            with pytest.raises(_TimeLimitError):
                client.post("http://any/v1/chat/completions", json=call)
            inner.ended.set()
    finally:
        overdue.cancel()
        signal.signal(signal.SIGALRM, before)
    assert transport.stats.snapshot().targets["any"].errors == 0


@pytest.mark.parametrize("kind", ["sync", "threads", "async"])
def test_an_error_is_in_no_cycle_of_references(kind: str) -> None:
    """An error keeps its race, with the body of the request, no longer than the caller keeps it.

    No client is around the transport: contextlib of Python 3.12 and 3.13 makes a cycle there.
    """
    call = {"model": "m", "messages": PROMPT, "stream": True}
    request = httpx.Request("POST", "http://refused/v1/chat/completions", json=call)
    fake = httpx.MockTransport(lambda _: _fail())
    found: list[weakref.ref[Exception]] = []

    async def send() -> None:
        try:
            await AsyncHedgingTransport(transport=fake).handle_async_request(request)
        except httpx.ConnectError as error:
            found.append(weakref.ref(error))

    gc.disable()
    try:
        if kind == "async":
            asyncio.run(send())
        else:
            with HedgingTransport(transport=_Refused(verify=False) if kind == "sync" else fake) as transport:
                try:
                    transport.handle_request(request)
                except httpx.ConnectError as error:
                    found.append(weakref.ref(error))
            for thread in threading.enumerate():
                if thread.name.startswith("ttft-hedge"):
                    thread.join()
        assert [each() for each in found] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize("factory", _FACTORIES)
def test_a_backup_has_the_context_of_its_own_caller(factory: Any) -> None:
    """Requests at the same time share a timer, but no context variable: one may hold the credentials of a tenant."""
    tenant = contextvars.ContextVar[str]("tenant")
    seen: dict[str, list[str]] = {}

    async def answer(request: httpx.Request) -> httpx.Response:
        found = seen.setdefault(request.url.host, [])
        found.append(tenant.get())
        if len(found) == 1:
            await asyncio.Event().wait()
        return httpx.Response(200)

    async def call(client: httpx.AsyncClient, name: str) -> None:
        tenant.set(name)
        await client.get(f"http://{name}")

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(factory)
        transport = AsyncHedgingTransport(AT_ONCE, transport=httpx.MockTransport(answer))
        async with httpx.AsyncClient(transport=transport) as client, asyncio.TaskGroup() as group:
            for name in ("a", "b", "c"):
                group.create_task(call(client, name))

    asyncio.run(main())
    assert seen == {name: [name, name] for name in ("a", "b", "c")}


@pytest.mark.parametrize("first", [lambda: httpx.Response(503), _fail], ids=["status", "exception"])
def test_a_fake_transport_is_raced(first: Callable[[], Any]) -> None:
    """A backup wins over a `MockTransport`, whatever its late primary does, and no thread is left."""
    late = _Late(httpx, first)
    transport = HedgingTransport(AT_ONCE, transport=httpx.MockTransport(late))
    with httpx.Client(transport=transport) as client:
        assert client.get("http://any").text == "backup"
        assert late.done.wait(TIME_LIMIT_S)
    assert transport.stats.snapshot().hedge_wins == 1
    assert not [each.name for each in threading.enumerate() if each.name.startswith("ttft-hedge")]


@pytest.mark.parametrize("made", [HedgingTransport, HedgingTransport2])
def test_a_fake_transport_answers_without_a_backup(made: Any) -> None:
    """Answers, error statuses and exceptions of a fake that is not late are the caller's."""
    library: Any = httpx if made is HedgingTransport else httpx2
    late = HedgeConfig(warmup_delay=3600.0)

    def answer(request: Any) -> Any:
        if request.url.path == "/fails":
            raise library.ReadTimeout("too late")
        return library.Response(int(request.url.path[1:]), content=b"body")

    with library.Client(transport=made(late, transport=library.MockTransport(answer))) as client:
        assert [client.get(f"http://any/{status}").status_code for status in (200, 404, 503)] == [200, 404, 503]
        with pytest.raises(library.ReadTimeout, match="too late"):
            client.get("http://any/fails")


def test_all_attempts_of_a_fake_may_fail() -> None:
    """If all attempts fail, the caller gets the primary's error."""
    numbers = iter(range(10))
    both = threading.Barrier(2)

    def answer(_request: httpx.Request) -> httpx.Response:
        number = next(numbers)
        both.wait(TIME_LIMIT_S)
        raise httpx.ConnectError(f"attempt {number}")

    with (
        httpx.Client(transport=HedgingTransport(AT_ONCE, transport=httpx.MockTransport(answer))) as client,
        pytest.raises(httpx.ConnectError, match="attempt 0"),
    ):
        client.get("http://any")


def test_an_application_in_the_process_is_raced() -> None:
    """A `WSGITransport` is an inner transport like another."""

    def application(_environ: Any, start: Callable[..., Any]) -> Iterable[bytes]:
        start("200 OK", [("content-type", "text/plain")])
        return [b"hello"]

    transport = HedgingTransport(AT_ONCE, transport=httpx.WSGITransport(application))
    with httpx.Client(transport=transport) as client:
        assert [client.get("http://any").text for _ in range(5)] == ["hello"] * 5


def test_the_aiohttp_client_of_openai_is_hedged(site: Replicas) -> None:
    """`hedged` makes any client of httpx2 hedge, and leaves it its own way to send: here aiohttp."""
    replica, stats = site.add("late_headers", "quick"), Stats()

    async def main() -> str:
        client = hedged(openai.DefaultAioHttpClient(), HedgeConfig(warmup_delay=0.02, budget_percent=100), stats=stats)
        transport: Any = client._transport
        transport.hedger.clock = lambda: 1.0 if replica.seen else 0.0
        async with openai.AsyncOpenAI(base_url=replica.url, api_key="k", http_client=client, max_retries=0) as sdk:
            stream = await sdk.chat.completions.create(model="m", messages=PROMPT, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(main()) == "Hello"
    assert stats.snapshot().hedge_wins == 1


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_client_that_was_used_is_hedged(site: Replicas, library: Any) -> None:
    """Its next request has a new connection, because the wait on the old one could not be interrupted."""
    replica, stats = site.add("empty_head", "late_headers", "quick"), Stats()
    with library.Client(timeout=TIME_LIMIT_S) as client:
        client.get(replica.url)
        hedged(client, HedgeConfig(warmup_delay=0.02, budget_percent=100), stats=stats)
        client._transport.hedger.clock = lambda: 1.0 if len(replica.seen) > 1 else 0.0
        client.get(replica.url)
    assert stats.snapshot().hedge_wins == 1


def test_clients_with_proxies_share_one_budget() -> None:
    """Each transport of a client hedges, on one budget and with one set of counts."""
    client = hedged(httpx.Client(proxy="http://proxy:1"))
    [mount] = [each for each in client._mounts.values() if each is not None]
    main: Any = client._transport
    made: Any = mount
    assert isinstance(made, HedgingTransport)
    assert (main.stats, main.hedger.budget) == (made.stats, made.hedger.budget)


def test_only_clients_can_be_hedged() -> None:
    """Another object, and a client that hedges already, are rejected."""
    wrong: Any = AsyncHedgingTransport2()
    for given in (wrong, httpx.HTTPTransport(), hedged(httpx.Client())):
        with pytest.raises(TypeError, match=r"client is|hedges already"):
            hedged(given)
