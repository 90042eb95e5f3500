"""The framework of the admin routes is loaded when it is needed, and no request notices."""

import asyncio
import math
import socket

import pytest

from gateway.api.asgi import Application, Message
from gateway.api.connections import WaitingConnections
from gateway.api.web_pages import HostCheck
from gateway.config.settings import Settings
from gateway.events import Event
from gateway.observe.hub import Hub
from gateway.server.applications import AdminApplication, DeferredAdmin
from gateway.server.http_server import accept_from
from running import run_real


class Built:
    """Builds an application that counts its requests; the first builds fail. It is the application, too."""

    key: str | None = None
    hosts = HostCheck()

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.built, self.requests = failures, 0, 0

    def build(self) -> AdminApplication:
        self.built += 1
        if self.built <= self.failures:
            raise OSError("too many open files")
        return self

    @property
    def app(self) -> Application:
        async def application(*_: object) -> None:
            self.requests += 1

        return application

    def on_event(self, event: Event) -> None:
        raise AssertionError(event)

    def close(self) -> None:
        raise AssertionError


def deferred(built: Built, tasks: asyncio.TaskGroup) -> DeferredAdmin:
    """Return the application over what is built."""
    replica = {"name": "a", "kind": "vllm", "base_url": "http://127.0.0.1:1/v1"}
    settings = Settings.model_validate(
        {"models": [{"name": "m", "replicas": [replica]}], "admin_key": "sk-admin-0123456789"}
    )
    return DeferredAdmin(settings, tasks, Hub(asyncio.get_running_loop()), built.build)


async def _receive() -> Message:
    return {"type": "http.request"}


async def _send(message: Message) -> None:
    raise AssertionError(message)


def test_it_is_built_once_for_requests_that_come_together() -> None:
    """Requests that arrive while the application is built wait for it, and it is built once, with its key."""
    built = Built()

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            application = deferred(built, tasks)
            for _ in range(3):
                tasks.create_task(application({}, _receive, _send))
        await application({}, _receive, _send)

    asyncio.run(main())
    assert (built.built, built.requests, built.key) == (1, 4, "sk-admin-0123456789")


def test_the_next_request_builds_it_again_after_a_failure() -> None:
    """A failure is an error of the request that saw it."""
    built = Built(failures=1)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            application = deferred(built, tasks)
            with pytest.raises(OSError, match="open files"):
                await application({}, _receive, _send)
            await application({}, _receive, _send)

    asyncio.run(main())
    assert (built.built, built.requests) == (2, 1)


@pytest.mark.parametrize(("files_max", "calls"), [(8.0, 1), (math.inf, 0)])
def test_connections_report_many_open_files(files_max: float, calls: int) -> None:
    """The framework is loaded while files are left: at the first connection with an eighth of the files open."""

    async def main() -> None:
        reports: list[None] = []
        taken: asyncio.Queue[socket.socket] = asyncio.Queue()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            waiting = WaitingConnections(files_max)
            accept = accept_from(listening, waiting, lambda *_: None, lambda: reports.append(None))
            acceptor = accept(taken.put_nowait)
            acceptor.start()
            with socket.create_connection(listening.getsockname()):
                (await taken.get()).close()
            acceptor.close()
        assert len(reports) == calls

    run_real(main())
