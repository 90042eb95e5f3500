"""The HTTP client against scripted servers on real sockets: framing, reuse, cuts, cancelling and bounds."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from providers.transport.http1 import Exchange, WireClient
from providers.transport.origin import Origin
from running import run_real
from scripted_http import ASK, CHUNKED, OK, Recorder, Server, answering, exchange, read_request, serving, until
from ttft_gateway.apis.base import HttpStream
from ttft_gateway.apis.errors import ConnectionCut


@contextlib.asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[WireClient]:
    """A client of that server, closed at the end."""
    async with asyncio.TaskGroup() as tasks:
        client = WireClient(Origin("127.0.0.1", server.port), tasks)
        yield client
        client.close()


def test_a_kept_connection_that_died_is_replaced_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request on a kept-alive connection closed without a byte of answer is sent once more, on a new one."""
    monkeypatch.setattr("providers.transport.http1.STALE_S", 60.0)

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)

    async def main() -> None:
        async with serving(dies, answering(CHUNKED)) as server, client_of(server) as client:
            await exchange(client)
            sink = await exchange(client)
            assert (sink.body, sink.error, server.accepted) == (b"abcde", None, 2)

    run_real(main())


def test_a_kept_connection_that_dies_later_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that had the time to work on a request is not sent it again unseen: that might be paid for twice."""

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)

    async def main() -> None:
        async with serving(dies, answering(CHUNKED)) as server, client_of(server) as client:
            await exchange(client)
            monkeypatch.setattr("providers.transport.http1.STALE_S", 0.0)
            assert isinstance((await exchange(client)).error, ConnectionCut)
            assert server.accepted == 1

    run_real(main())


def test_a_connection_is_read_again_if_its_answer_ended_while_paused() -> None:
    """Whoever pauses in the last piece of an answer never resumes; the next request on the connection does not hang."""

    class Pausing(Recorder):
        stream: HttpStream

        def on_body(self, data: bytes) -> None:
            super().on_body(data)
            self.stream.pause()

    async def main() -> None:
        async with serving(answering(OK, OK)) as server, client_of(server) as client:
            sink = Pausing()
            sink.stream = client.send(ASK, sink)
            await sink.over.wait()
            assert (await exchange(client)).body == b"hi"
            assert server.accepted == 1

    run_real(main())


def test_idle_connections_are_bounded() -> None:
    """At most as many connections stay open as the bound allows."""

    async def main() -> None:
        async with serving(answering(OK)) as server, asyncio.TaskGroup() as tasks:
            client = WireClient(Origin("127.0.0.1", server.port, idle_max=2), tasks)
            sinks = [Recorder() for _ in range(5)]
            for sink in sinks:
                client.send(ASK, sink)
            for sink in sinks:
                await sink.over.wait()
            await until(lambda: client.connections <= 2)
            client.close()

    run_real(main())


def test_a_spare_connection_is_ready_for_the_next_request() -> None:
    """With one request under way a second connection stands ready, and the next request connects to nothing."""

    async def main() -> None:
        async with serving(answering(b""), answering(OK, OK)) as server, asyncio.TaskGroup() as tasks:
            client = WireClient(Origin("127.0.0.1", server.port, spare=True), tasks)
            loser = client.send(ASK, Recorder())
            await until(lambda: server.accepted == 2 and client.connections == 2 and not client._sparing)
            sink = Recorder()
            winner = client.send(ASK, sink)
            assert isinstance(winner, Exchange)
            assert winner.connecting is None
            loser.abort()
            await sink.over.wait()
            assert sink.status == 200
            client.close()

    run_real(main())


def test_a_spare_that_died_is_replaced_unseen() -> None:
    """A server may close a spare at any time; the request that takes it goes to a new connection."""

    async def main() -> None:
        async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.transport.abort()

        async with serving(closing, answering(OK)) as server, asyncio.TaskGroup() as tasks:
            client = WireClient(Origin("127.0.0.1", server.port, spare=True), tasks)
            client.warm()
            await until(lambda: client.connections == 1 and not client._sparing)
            assert (await exchange(client)).status == 200
            client.close()

    run_real(main())


def test_a_spare_that_cannot_be_had_is_nobodys_error() -> None:
    """Keeping connections ready for a server that is down disturbs nothing."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            client = WireClient(Origin("127.0.0.1", 1, spare=True), tasks)
            client.warm()
            client.warm()
            await until(lambda: not client._sparing)
            client.close()

    run_real(main())


def test_whoever_waits_for_a_connection_takes_the_first_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits for its connection takes one that another request gives back; its own becomes a spare."""

    async def main() -> None:
        answered, hurry = asyncio.Event(), asyncio.Event()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(2):
                await read_request(reader)
                await answered.wait()
                writer.write(OK)
            await reader.read()

        async with serving(script) as server, asyncio.TaskGroup() as tasks:
            client = WireClient(Origin("127.0.0.1", server.port), tasks)
            connect = client._loop.create_connection

            async def slowly(*args: Any, **named: Any) -> Any:
                await hurry.wait()
                return await connect(*args, **named)

            first, second = Recorder(), Recorder()
            client.send(ASK, first)
            await until(lambda: client.connections == 1)
            monkeypatch.setattr(client._loop, "create_connection", slowly)
            client.send(ASK, Recorder()).abort()
            client.send(ASK, second)
            answered.set()
            await second.over.wait()
            assert (first.status, second.status, server.accepted) == (200, 200, 1)
            hurry.set()
            await until(lambda: client.connections == 2)
            client.close()

    run_real(main())


def test_a_connection_is_not_used_for_ever() -> None:
    """Behind its age a connection is closed after its answer, so that new ones see what DNS says now."""

    async def main() -> None:
        async with serving(answering(OK)) as server, asyncio.TaskGroup() as tasks:
            client = WireClient(Origin("127.0.0.1", server.port, age_s=0.0), tasks)
            for _ in range(2):
                assert (await exchange(client)).status == 200
            assert server.accepted == 2
            client.close()

    run_real(main())
