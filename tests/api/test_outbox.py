"""An outbox's messages, their times and their order; the test controls the client's speed."""

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.outbox import BUFFER_BYTES_MAX, Outbox
from providers.base import Burst
from running import run_virtual


class Server:
    """ASGI's `send`, which may have to wait for its client.

    Attributes:
        got: messages in order.
        slow: the next messages wait until `go_on`.
    """

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.slow = False
        self._waiting: asyncio.Future[None] | None = None

    async def send(self, message: Any) -> None:
        """Take one message."""
        if self.slow:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
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
    """Records the calls of an outbox."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def client_gone(self) -> None:
        """The client disconnected."""
        self.said.append("gone")

    def give_up(self, _error: Exception) -> None:
        """Fail with this error."""

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
    """Head and body are sent at the end of the read, before the loop does anything else."""

    async def play(outbox: Outbox, server: Server, burst: Burst) -> None:
        burst.is_open = True
        outbox.start(200, [])
        outbox.write(b"a")
        outbox.write(b"b")
        assert not server.got
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
