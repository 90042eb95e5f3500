"""The framework of the plain and admin routes is loaded when it is needed, and no request notices."""

import asyncio
import math
import socket

import pytest

from gateway.api.asgi import Application, Message
from gateway.api.connections import WaitingConnections
from gateway.api.deferred import Deferred
from gateway.api.health import answer_health, is_health_check
from gateway.http_server import accept_from
from running import run_real, run_virtual


class Built:
    """Builds an application that counts its requests; the first builds fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.built, self.requests = failures, 0, 0

    def __call__(self) -> Application:
        self.built += 1
        if self.built <= self.failures:
            raise OSError("too many open files")

        async def application(*_: object) -> None:
            self.requests += 1

        return application


async def _receive() -> Message:
    return {"type": "http.request"}


async def _send(message: Message) -> None:
    raise AssertionError(message)


def test_it_is_built_once_for_requests_that_come_together() -> None:
    """Requests that arrive while the application is built wait for it, and it is built once."""
    build = Built()

    async def main() -> None:
        application = Deferred(build)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(application({}, _receive, _send))
        await application({}, _receive, _send)

    asyncio.run(main())
    assert (build.built, build.requests) == (1, 4)


def test_the_next_request_builds_it_again_after_a_failure() -> None:
    """A failure is an error of the request that saw it."""
    build = Built(failures=1)

    async def main() -> None:
        application = Deferred(build)
        with pytest.raises(OSError, match="open files"):
            await application({}, _receive, _send)
        await application({}, _receive, _send)

    asyncio.run(main())
    assert (build.built, build.requests) == (2, 1)


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


@pytest.mark.parametrize(
    ("path", "ready", "status", "body"),
    [
        ("/healthz", True, 200, b'{"status":"ok"}'),
        ("/healthz", False, 200, b'{"status":"ok"}'),
        ("/readyz", True, 200, b'{"status":"ready"}'),
        ("/readyz", False, 503, b'{"status":"draining"}'),
    ],
)
def test_health_checks(path: str, ready: bool, status: int, body: bytes) -> None:
    """A health check has JSON, a length, and the caller's request id."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "method": "GET", "headers": [(b"x-request-id", b"mine")]}
    assert is_health_check(scope)
    run_virtual(answer_health(scope, send, ready=ready))
    start, end = sent
    assert (start["status"], end["body"]) == (status, body)
    assert dict(start["headers"]) == {
        b"content-length": str(len(body)).encode(),
        b"content-type": b"application/json",
        b"x-request-id": b"mine",
    }


def test_other_requests_are_no_health_checks() -> None:
    """Another method or path is for the framework, which has their errors."""
    for path, method in (("/healthz", "POST"), ("/readyz/", "GET"), ("/v1/models", "GET")):
        assert not is_health_check({"type": "http", "path": path, "method": method, "headers": []})
