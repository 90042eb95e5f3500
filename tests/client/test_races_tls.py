"""Races over TLS: records without data for the reader, such as session tickets, and handshakes that never end."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import trustme

from client_kits import SOON
from client_replicas import SILENT, Replicas, replicas
from ttft_gateway import AsyncHedgingTransport, HedgingTransport
from ttft_gateway.client.race import Overtaken
from ttft_gateway.client.sockets import Watch, current, raced

CALL: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}


@pytest.fixture
def site() -> Iterator[tuple[Replicas, ssl.SSLContext]]:
    """Replicas with TLS, and the context of their clients."""
    authority, server = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    with replicas(server) as running:
        yield running, client


@pytest.mark.parametrize("behaviour", SILENT)
def test_a_silent_primary_loses_over_tls(site: tuple[Replicas, ssl.SSLContext], behaviour: str) -> None:
    """The synchronous race also ends while the primary has read tickets only."""
    running, context = site
    replica = running.add(behaviour, "quick")
    transport = HedgingTransport(SOON, transport=httpx.HTTPTransport(verify=context))
    transport.hedger.clock = lambda: 1.0 if replica.seen else 0.0
    with httpx.Client(transport=transport, timeout=60.0) as client:
        assert b"Hel" in client.post(f"{replica.url}/chat/completions", json=CALL).content
        assert replica.seen[0].closed.wait()


def test_an_asynchronous_race_over_tls(site: tuple[Replicas, ssl.SSLContext]) -> None:
    """The asynchronous race ends, too."""
    running, context = site
    replica = running.add("role", "quick")

    async def work() -> bytes:
        transport = AsyncHedgingTransport(SOON, transport=httpx.AsyncHTTPTransport(verify=context))
        transport.hedger.clock = lambda: 1.0 if replica.seen else 0.0
        async with httpx.AsyncClient(transport=transport, timeout=60.0) as client:
            return (await client.post(f"{replica.url}/chat/completions", json=CALL)).content

    assert b"Hel" in asyncio.run(work())
    assert replica.seen[0].closed.wait()


def test_a_large_request_is_sent_over_tls(site: tuple[Replicas, ssl.SSLContext]) -> None:
    """A body that fills the socket's buffer is written in pieces, and arrives whole."""
    running, context = site
    replica = running.add("quick")
    body = {**CALL, "messages": [{"role": "user", "content": "x" * 3_000_000}]}
    with httpx.Client(transport=HedgingTransport(transport=httpx.HTTPTransport(verify=context))) as client:
        assert client.post(f"{replica.url}/chat/completions", json=body, timeout=60.0).status_code == 200
    assert replica.seen[0].body.count(b"x") >= 3_000_000


def test_a_handshake_that_never_ends_can_be_interrupted() -> None:
    """A server that accepts connections and sends nothing does not hold its attempt."""
    inner = httpx.HTTPTransport()
    raced(inner._pool, "httpcore")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"https://127.0.0.1:{server.getsockname()[1]}"

        class Stopping(Watch):
            due_s = 0.0

            def on_due(self) -> None:
                self.stop()

        watch = current.watch = Stopping(lambda: 0.0)
        try:
            with pytest.raises(Overtaken):
                inner.handle_request(httpx.Request("GET", url))
        finally:
            current.watch = None
            watch.close()
        assert inner._pool.connections == []


def test_a_wait_is_interrupted_by_another_thread() -> None:
    """A thread that waits for nothing but the end of its race wakes when another one ends it."""
    watch = Watch(lambda: 0.0)
    watch.listen()
    stopper = threading.Thread(target=watch.stop)
    stopper.start()
    with pytest.raises(Overtaken):
        watch.wait(None, 0, None)
    stopper.join()
    watch.close()
    watch.stop()  # after the end, it has no effect
