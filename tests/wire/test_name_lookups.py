"""Name lookups that hang cost their own replica its connect timeout, and nothing else; on the gateway's event loop."""

import asyncio
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gateway.api.plain_routes import contract
from gateway.cli import name_lookups
from gateway.cli.event_loop import new_loop
from gateway.cli.serve import _warn_of_unreachable
from gateway.config.loader import load
from gateway.config.settings import Settings
from gateway.server.app import Gateway
from http_clients import CLIENTS
from providers.transport.origin import Origin
from running import run_real
from scripted_http import ASK, OK, Recorder, answering, exchange, serving, until
from ttft_gateway.apis.errors import ConnectError, OutOfResources

contract()  # read the file while no loop is running

REQUESTS = 40  # more than the threads of asyncio's default executor, at most 32


class Names:
    """A fake `socket.getaddrinfo`: `live` names are addresses of this machine, other names hang until `release`.

    Attributes:
        threads: by name, the lookups that have begun.
    """

    def __init__(self) -> None:
        self.threads: Counter[str] = Counter()
        self._released = threading.Event()
        self._real = socket.getaddrinfo

    def getaddrinfo(self, host: str | bytes, port: Any, *args: Any, **named: Any) -> Any:
        """Look up a name."""
        name = host.decode() if isinstance(host, bytes) else host
        if name.startswith("127."):
            return self._real(host, port, *args, **named)
        self.threads[name] += 1
        if not name.startswith("live"):
            self._released.wait()
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._real("127.0.0.1", port, *args, **named)

    def release(self) -> None:
        """Let every lookup that hangs fail."""
        self._released.set()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    """The fake in place of `socket.getaddrinfo`; nothing hangs after the test."""
    fake = Names()
    monkeypatch.setattr(socket, "getaddrinfo", fake.getaddrinfo)
    yield fake
    fake.release()


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_name_that_hangs_does_not_delay_another(names: Names, kind: str) -> None:
    """Many requests wait for one name with at most two threads, and a request to another name is answered."""

    async def main() -> None:
        async with serving(answering(OK)) as server, asyncio.TaskGroup() as tasks, asyncio.timeout(20):
            dead = CLIENTS[kind](Origin("dead.example", 80), tasks)
            live = CLIENTS[kind](Origin("live.example", server.port), tasks)
            sinks = [Recorder() for _ in range(REQUESTS)]
            streams = [dead.send(ASK, sink) for sink in sinks]
            await until(lambda: names.threads["dead.example"] > 0)
            assert (await exchange(live)).body == b"hi"
            assert names.threads["dead.example"] <= 2
            assert [sink.closes for sink in sinks] == [0] * REQUESTS
            for stream in streams:
                stream.abort()
            names.release()
            live.close()
            dead.close()

    run_real(main())


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_name_that_hangs_is_a_connect_timeout(names: Names, kind: str) -> None:
    """Requests to the name fail after the connect timeout, while its lookup goes on hanging."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(20):
            client = CLIENTS[kind](Origin("dead.example", 80, connect_s=0.05), tasks)
            sinks = await asyncio.gather(*(exchange(client) for _ in range(REQUESTS)))
            assert {str(sink.error) for sink in sinks} == {"connecting to the upstream timed out after 0.05 s"}
            assert names.threads["dead.example"] == 1
            client.close()

    run_real(main())


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_name_that_does_not_exist_is_a_connect_error(names: Names, kind: str) -> None:
    """Every request that waits for one lookup gets its error, and the next request looks the name up again."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(20):
            client = CLIENTS[kind](Origin("dead.example", 80), tasks)
            waiting = [tasks.create_task(exchange(client)) for _ in range(3)]
            await until(lambda: names.threads["dead.example"] > 0)
            names.release()
            for sink in await asyncio.gather(*waiting):
                assert isinstance(sink.error, ConnectError)
                assert str(sink.error) == "cannot connect to the upstream: Name or service not known"
            asked = names.threads["dead.example"]
            await exchange(client)
            assert names.threads["dead.example"] == asked + 1
            client.close()

    run_real(main())


def test_a_reload_does_not_wait_for_name_lookups(names: Names, tmp_path: Path) -> None:
    """A reload, and requests to another replica, are done while many requests wait for one name."""

    async def main() -> None:
        async with serving(answering(OK)) as server, asyncio.timeout(20):
            file = tmp_path / "gateway.yaml"
            urls = [f"http://live.example:{server.port}/v1", "http://dead.example/v1"]
            rows = [{"name": str(number), "kind": "vllm", "base_url": url} for number, url in enumerate(urls)]
            models = [{"name": "m", "replicas": rows}]
            file.write_text(json.dumps({"listen": "127.0.0.1:0", "admin_listen": "off", "models": models}), "utf-8")
            settings = await asyncio.to_thread(load, file, {})
            async with asyncio.TaskGroup() as tasks:
                gateway = Gateway(settings, tasks, lambda: load(file, {}))
                live, dead = gateway.in_force.topology.clients.values()
                waiting = [dead.send(ASK, Recorder()) for _ in range(REQUESTS)]
                checking = tasks.create_task(_warn_of_unreachable(settings))
                await until(lambda: names.threads["dead.example"] > 0)
                assert (await gateway.reloads.reload()).kept == 2
                assert (await exchange(live)).body == b"hi"
                for stream in waiting:
                    stream.abort()
                checking.cancel()
                names.release()  # a spare connection waits for it
                gateway.close()

    run_real(main())


def test_the_loop_ends_while_a_lookup_hangs(names: Names) -> None:
    """Closing the loop, and so the end of the process, does not wait for a lookup; its late answer is dropped."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(asyncio.get_running_loop().getaddrinfo("dead.example", 80))
            await until(lambda: names.threads["dead.example"] > 0)
            looking.cancel()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    [thread] = [thread for thread in threading.enumerate() if thread.name == "look up dead.example"]
    names.release()
    thread.join()


def test_lookups_over_the_bound_are_shortages(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name over the bound fails immediately with its own error, and is looked up again when threads are free."""
    monkeypatch.setattr(name_lookups, "_THREADS_MAX", 3)

    async def main() -> None:
        async with serving(answering(OK)) as server, asyncio.TaskGroup() as tasks, asyncio.timeout(20):
            loop = asyncio.get_running_loop()
            hanging = [tasks.create_task(_failure(loop, f"dead{number}.example")) for number in range(3)]
            await until(lambda: len(names.threads) == 3)
            for make in CLIENTS.values():
                client = make(Origin("live.example", server.port), tasks)
                sink = await exchange(client)
                assert isinstance(sink.error, OutOfResources)
                assert str(sink.error) == (
                    "the gateway cannot look names up: 3 name lookups are in progress, the maximum; check DNS"
                )
                literal = make(Origin("127.0.0.1", server.port), tasks)
                assert (await exchange(literal)).body == b"hi"
                client.close()
                literal.close()
            names.release()
            assert await asyncio.gather(*hanging) == ["Name or service not known"] * 3
            assert len(await loop.getaddrinfo("live.example", 80)) >= 1

    run_real(main())


def test_no_thread_to_be_had_is_a_lookup_error(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that allows no more threads fails the lookup with the same error."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(threading.Thread, "start", start)
        assert await _failure(loop, "live.example") == "0 name lookups are in progress, the maximum; check DNS"
        monkeypatch.undo()

    run_real(main())
    assert not names.threads


def test_a_lookup_that_was_lost_is_made_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later request starts a second lookup, and its answer serves all; while the first one hangs, each asks again."""
    monkeypatch.setattr(name_lookups, "_AGAIN_S", 0.0)
    answers: list[Any] = []
    lost = threading.Event()

    def getaddrinfo(*_args: Any, **_named: Any) -> Any:
        answers.append(None)
        if len(answers) == 1:
            lost.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"10.0.0.{len(answers)}", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(20):
            loop = asyncio.get_running_loop()
            first = tasks.create_task(loop.getaddrinfo("a.example", 80))
            await until(lambda: bool(answers))
            [found] = await loop.getaddrinfo("a.example", 81)
            assert (await first)[0][4] == ("10.0.0.2", 80)
            assert found[4] == ("10.0.0.2", 81)
            assert (await loop.getaddrinfo(b"a.example", 82))[0][4] == ("10.0.0.3", 82)
            lost.set()

    run_real(main())


@pytest.mark.parametrize("port", [80, 0, "http", None])
def test_answers_are_those_of_the_system(port: int | str | None) -> None:
    """Addresses of a name are what `socket.getaddrinfo` returns, in its order, with the port asked for."""
    wanted = socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert await loop.getaddrinfo("localhost", port, type=socket.SOCK_STREAM) == wanted

    run_real(main())


def test_a_second_lookup_takes_no_room_of_other_names(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """With half of the threads in use, later requests for a name wait for the lookup that it has."""
    monkeypatch.setattr(name_lookups, "_AGAIN_S", 0.0)
    monkeypatch.setattr(name_lookups, "_THREADS_MAX", 2)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(20):
            loop = asyncio.get_running_loop()
            waiting = [tasks.create_task(_failure(loop, "dead.example")) for _ in range(5)]
            await until(lambda: names.threads["dead.example"] > 0)
            assert len(await loop.getaddrinfo("live.example", 80)) >= 1
            names.release()
            assert await asyncio.gather(*waiting) == ["Name or service not known"] * 5
            assert names.threads["dead.example"] == 1

    run_real(main())


def test_an_invalid_name_is_a_connect_error() -> None:
    """A name that cannot be encoded fails its request, not the loop."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            client = CLIENTS["wire"](Origin("a" * 64 + ".example", 80), tasks)
            error = str((await exchange(client)).error)
            assert re.fullmatch(r"cannot connect to the upstream: Unicode(Encode)?Error", error)  # of Python 3.14
            client.close()

    run_real(main())


async def _failure(loop: asyncio.AbstractEventLoop, name: str) -> str | None:
    """Look a name up and return the error's text."""
    try:
        await loop.getaddrinfo(name, 80)
    except OSError as error:
        return error.strerror
    return None


def test_a_unix_socket_that_works_is_no_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At start, a replica at a unix socket is connected to, and is named only if that fails."""

    async def main() -> None:
        bases = {name: f"http+unix://{quote(str(tmp_path / name), safe='')}/v1" for name in ("Works.sock", "none.sock")}
        replicas = [{"name": name, "kind": "vllm", "base_url": base} for name, base in bases.items()]
        settings = Settings.model_validate({"models": [{"name": "m", "replicas": replicas}]})
        async with await asyncio.start_unix_server(lambda _, writer: writer.close(), tmp_path / "Works.sock"):
            await _warn_of_unreachable(settings)

    run_real(main())
    (warning,) = capsys.readouterr().err.splitlines()
    assert "replica none.sock of m" in warning
    assert "No such file or directory" in warning
