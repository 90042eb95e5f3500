"""An outbox's messages, their times and their order; the test controls the client's speed."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.outbox import BUFFER_BYTES_MAX, Outbox
from gateway.api.response import serve
from gateway.errors import GatewayError
from providers.base import Burst
from running import run_virtual


class Server:
    """ASGI's `send`, which may have to wait for its client.

    Attributes:
        got: messages in order.
        slow: the next messages wait until `go_on`.
        rejects: errors of the next messages, after the waiting.
    """

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.slow = False
        self.rejects: list[Exception] = []
        self._waiting: asyncio.Future[None] | None = None

    async def send(self, message: Any) -> None:
        """Take one message."""
        if self.slow:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if self.rejects:
            raise self.rejects.pop(0)
        self.got.append(message)

    def go_on(self) -> None:
        """The client has taken what there was."""
        self.slow = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    @property
    def body(self) -> bytes:
        """Everything sent of the body."""
        return b"".join(message.get("body", b"") for message in self.got)


class Race:
    """Records the calls of an outbox; `fail` sends an error, as the client of a race does."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.fail: Callable[[], None] | None = None

    def client_gone(self) -> None:
        """The client disconnected."""
        self.said.append("gone")

    def give_up(self, error: GatewayError) -> None:
        """Fail with this error."""
        self.said.append(error.code or "")
        if self.fail is not None:
            self.fail()

    def pause(self) -> None:
        """The client is slow."""
        self.said.append("pause")

    def resume(self) -> None:
        """It has caught up."""
        self.said.append("resume")

    def usage(self) -> None:
        """Return no usage."""


def sent(play: Callable[[Outbox, Server, Burst], Any]) -> tuple[Server, Race]:
    """The messages of this scenario."""
    server, race, burst = Server(), Race(), Burst()

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            outbox = Outbox(server.send, asyncio.get_running_loop(), tasks, burst)
            outbox.race = race
            await play(outbox, server, burst)
            await asyncio.sleep(1)
            server.go_on()

    run_virtual(run())
    return server, race


def test_what_a_read_brings_is_sent_at_its_end() -> None:
    """The head is sent at once, and the body at the end of the read, before the loop does anything else."""

    async def play(outbox: Outbox, server: Server, burst: Burst) -> None:
        burst.is_open = True
        outbox.start(200, [])
        outbox.write(b"a")
        outbox.write(b"b")
        assert [message["type"] for message in server.got] == ["http.response.start"]
        burst.close()
        assert [message.get("body") for message in server.got] == [None, b"ab"]

    server, race = sent(play)
    assert len(server.got) == 2
    assert not race.said


@given(
    steps=st.lists(st.sampled_from(["write", "read", "large", "slow", "on", "turn"]), max_size=30), ended=st.booleans()
)
def test_everything_is_sent_once_and_in_order(steps: list[str], *, ended: bool) -> None:
    """A client that is slow at any time gets all bytes in order, and a paused race is resumed."""
    given_ = bytearray()

    async def play(outbox: Outbox, server: Server, burst: Burst) -> None:
        outbox.start(200, [])
        for number, step in enumerate(steps):
            data = b"<%d>" % number * (BUFFER_BYTES_MAX // 3 if step == "large" else 1)
            if step in ("write", "large"):
                given_.extend(data)
                outbox.write(data)
            elif step == "read":
                burst.is_open = True
                given_.extend(data + data)
                outbox.write(data)
                outbox.write(data)
                burst.close()
            elif step == "slow":
                server.slow = True
            elif step == "on":
                server.go_on()
            else:
                await asyncio.sleep(0)
        if ended:
            outbox.end()

    server, race = sent(play)
    assert server.body == bytes(given_)
    assert [message["type"] for message in server.got[:1]] == ["http.response.start"]
    assert (not server.got[-1].get("more_body", True)) is ended
    assert race.said == ["pause", "resume"] * (len(race.said) // 2)


INVALID = RuntimeError("Invalid HTTP header value.")


def rejected(errors: list[Exception], *, slow: bool = False, at_body: bool = False) -> tuple[Server, Race, Outbox]:
    """Play a response of which the server rejects messages, up to the end of its endpoint."""
    server, race = Server(), Race()

    async def receive() -> dict[str, object]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def run() -> Outbox:
        async with asyncio.TaskGroup() as tasks:
            outbox = Outbox(server.send, asyncio.get_running_loop(), tasks, Burst())

            def fail() -> None:
                if not outbox.started:
                    outbox.start(500, [])
                    outbox.write(b"error")
                    outbox.end()

            def answer() -> None:
                outbox.start(200, [])
                if at_body:
                    server.rejects = list(errors)
                outbox.write(b"answer")
                outbox.end()

            outbox.race, race.fail = race, fail
            server.slow, server.rejects = slow, [] if at_body else list(errors)
            asyncio.get_running_loop().call_later(1, answer)
            asyncio.get_running_loop().call_later(2, server.go_on)
            asyncio.get_running_loop().call_later(3, server.go_on)
            try:
                async with asyncio.timeout(10):
                    await serve(race, outbox, receive)
            except TimeoutError:
                race.said.append("timeout")
            return outbox

    return server, race, run_virtual(run())


def test_a_status_that_is_rejected_becomes_an_error() -> None:
    """A server that rejects a status, and then takes another one, sends an error, whole and alone."""

    async def play(outbox: Outbox, server: Server, _burst: Burst) -> None:
        def fail() -> None:
            outbox.start(500, [])
            outbox.write(b"error")
            outbox.end()

        assert isinstance(outbox.race, Race)
        outbox.race.fail = fail
        outbox.headers = ((b"x-limit", b"1"),)
        server.rejects = [INVALID]
        outbox.start(200, [])
        outbox.write(b"answer")
        outbox.end()

    server, race = sent(play)
    assert [(message.get("status"), message.get("headers")) for message in server.got] == [(500, []), (None, None)]
    assert (server.body, race.said) == (b"error", ["internal_error"])


@pytest.mark.parametrize(
    ("slow", "at_body", "errors", "status"),
    [
        (False, False, [INVALID, INVALID], []),
        (True, False, [INVALID], []),
        (False, True, [INVALID], [200]),
    ],
    ids=["status and error", "status, late", "body"],
)
def test_a_response_that_is_rejected_ends_its_endpoint(
    errors: list[Exception], status: list[int], *, slow: bool, at_body: bool
) -> None:
    """The endpoint returns, so that the server closes the connection; its race ends with an error, and then is left."""
    server, race, outbox = rejected(errors, slow=slow, at_body=at_body)
    assert [message.get("status") for message in server.got] == status
    assert set(race.said) == {"internal_error", "gone"}
    assert race.said[-1] == "gone"
    assert outbox.failed


@pytest.mark.parametrize("at_body", [False, True])
def test_a_client_that_has_disconnected_is_no_failure(*, at_body: bool) -> None:
    """`OSError` is ASGI's word for a client that has gone; `receive` reports it, too."""
    _, race, outbox = rejected([ConnectionResetError()], at_body=at_body)
    assert race.said == ["gone", "gone", "timeout"]
    assert not outbox.failed
