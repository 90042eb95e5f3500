"""Exchanges that answer with what they were sent, on a pretended connection."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

from gateway.admission.body_memory import BodyMemory
from gateway.api.body_reader import BodyLimits
from gateway.api.dialects.base import ClientApi
from gateway.api.exchange import ClientExchange, Connection
from gateway.api.request_head import RequestHead
from gateway.api.response import respond
from gateway.api.turns import Turns
from gateway.errors import BadRequest, BodyTooLarge, GatewayError
from gateway.events import Event
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from pretended_client import PretendedClient, connected_to, request
from running import run_virtual

STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
ANSWER_S = 5.0


class Echo(ClientExchange):
    """Answers with the body of the request, some time after it has come."""

    def __init__(self, connection: Connection, head: RequestHead, site: "Site") -> None:
        super().__init__(connection, head, site.runtime, ClientApi(None), site.bodies, "id")
        self._site = site
        self._timer: asyncio.TimerHandle | None = None

    def _open(self) -> None:
        self._key_name = "a"
        self._site.said.append("open")
        if self.head.path == "/bug":
            raise ZeroDivisionError
        if self.head.path == "/no":
            raise BadRequest("no")
        if self.head.path == "/large":
            raise BodyTooLarge("too large")

    def _answer(self, body: bytes) -> None:
        self._site.said.append("answer")
        if self.head.path == "/late-bug":
            raise ZeroDivisionError
        if self.head.path == "/begun-bug":
            self.start(200, [])
            raise ZeroDivisionError
        self.race = self
        self._timer = asyncio.get_running_loop().call_later(ANSWER_S, respond, self, 200, [], body)

    def give_up(self, _error: GatewayError) -> None:
        raise AssertionError

    def pause(self) -> None:
        self._site.said.append("pause")

    def resume(self) -> None:
        self._site.said.append("resume")

    def usage(self) -> None:
        """Return no usage."""

    def _rejected(self, error: GatewayError) -> None:
        self._site.said.append(f"rejected {error.status}")

    def _abandon(self) -> None:
        self._site.said.append("gone")
        if self._timer is not None:
            self._timer.cancel()

    def _release(self) -> None:
        self._site.said.append("over")


class Site:
    """A server with `Echo` for every path.

    Attributes:
        said: calls of the exchanges.
        events: events of the runtime.
        memory: of the bodies.
        closed: the gateway has closed the connection.
    """

    closed = False

    def __init__(self) -> None:
        self.said: list[str] = []
        self.events: list[Event] = []
        loop = asyncio.get_running_loop()
        self.runtime = Runtime(loop, self.events.append, lambda: 0.0, TimerQueue(loop))
        self.memory = BodyMemory(10_000)
        self.bodies = BodyLimits(1_000, 3.0, self.memory, self.runtime, Turns(self.runtime.loop))
        self.client: PretendedClient = connected_to(self._open)

    @property
    def statuses(self) -> list[int]:
        """Statuses of everything that was sent."""
        return [int(status) for status in STATUS.findall(b"".join(self.client.transport.written))]

    @property
    def written(self) -> bytes:
        """All that was sent."""
        return b"".join(self.client.transport.written)

    def _open(self, connection: Connection, head: RequestHead) -> ClientExchange:
        assert head.path
        return Echo(connection, head, self)


def played(play: Callable[[Site], Any]) -> Site:
    """Play a scenario to its end; nothing may be held after it."""

    async def run() -> Site:
        site = Site()
        await play(site)
        await asyncio.sleep(1_000)
        site.closed = site.client.transport.closed
        site.client.leave()
        await asyncio.sleep(1)
        assert site.said.count("open") <= site.said.count("over") + site.said.count("gone")
        assert (site.memory.held, site.memory.arriving) == (0, 0)
        return site

    return run_virtual(run())


WHOLE = request(b"hello", "/a")
