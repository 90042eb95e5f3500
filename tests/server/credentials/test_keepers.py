"""Tokens over time: a replica with tokens that end, and sources that are down, slow or bad.

An upstream of the test issues tokens that are valid for some seconds, and rejects requests with any other one.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from gateway.process_events import CredentialChanged
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from gateway.server.credentials.board import TokenBoard, TokenUser
from gateway.server.credentials.keepers import TokenKeepers, TokenState
from openai_calls import STREAMED
from played_http import Client, RecordingSink
from providers.openai.chat import OpenAIChat
from providers.response_stream import Bounds
from providers.upstream import HttpEndpoint
from running import run_virtual
from ttft_gateway.apis.base import Api
from ttft_gateway.apis.catalog import Auth
from ttft_gateway.credentials.sources import Source, SourceFault
from ttft_gateway.credentials.token import Token
from ttft_gateway.routing.replicas import Replica

SOURCE = Source("command", command=("token",))


class Site:
    """A replica with a token, and the upstream that issues the tokens.

    Attributes:
        lifetime_s: lifetime of the tokens.
        delay_s: time that a fetch takes.
        fault: raised by a fetch, None for a token.
        issued: time of the issue of each token, by value.
        revoked: tokens that the upstream rejects before their end.
        fetches: times of the fetches.
        rejected: number of requests that had no valid token.
    """

    def __init__(self, tasks: asyncio.TaskGroup, lifetime_s: float = 2.0) -> None:
        self.loop = asyncio.get_running_loop()
        self.lifetime_s, self.delay_s = lifetime_s, 0.0
        self.fault: Exception | None = None
        self.issued: dict[str, float] = {}
        self.revoked: set[str] = set()
        self.fetches: list[float] = []
        self.rejected = 0
        self.events: list[Any] = []
        self.client = Client()
        endpoint = HttpEndpoint(self.client, {Api.CHAT: OpenAIChat()}, "/v1", [(b"host", b"h")], "m", Bounds())
        self.replica = Replica("a", endpoint)
        self.board = TokenBoard(self.loop.time)
        self.replica.renew = self.board.renewer(SOURCE)
        self.board.users = lambda: [TokenUser(SOURCE, self.replica, endpoint, Auth.BEARER)]
        runtime = Runtime(self.loop, self.events.append, lambda: 0.5, TimerQueue(self.loop))
        self.keepers = TokenKeepers(tasks, runtime, self.board.put, lambda _: self.fetch)
        self.board.reject = self.keepers.on_rejected

    async def fetch(self) -> Token:
        """Issue a token."""
        self.fetches.append(self.loop.time())
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.fault is not None:
            raise self.fault
        value = f"sk-{len(self.issued)}"
        self.issued[value] = self.loop.time()
        return Token(value, self.lifetime_s)

    def ask(self) -> bool:
        """Send a request where the replica is in use; return True if the upstream accepts its token."""
        if self.replica.out:
            return False
        sent_s = self.loop.time()
        self.replica.endpoint.open(STREAMED, RecordingSink())
        head = self.client.requests[-1].head
        _, _, rest = head.partition(b"authorization: Bearer ")
        value = rest.partition(b"\r\n")[0].decode()
        is_valid = sent_s < self.issued.get(value, -math.inf) + self.lifetime_s and value not in self.revoked
        if not is_valid:
            self.rejected += 1
            assert self.replica.renew is not None
            self.replica.renew(sent_s)
        return is_valid

    async def ask_for(self, duration_s: float) -> int:
        """Send 20 requests a second; return the number of accepted ones."""
        accepted = 0
        for _ in range(round(20 * duration_s)):
            accepted += self.ask()
            await asyncio.sleep(0.05)
        return accepted

    @property
    def told(self) -> list[tuple[float, str | None]]:
        """Whole seconds until the end of the token, and the error, of each event."""
        changes = [event for event in self.events if isinstance(event, CredentialChanged)]
        return [(round(event.left_s), event.error) for event in changes]


@asynccontextmanager
async def site(**options: Any) -> Any:
    """Run a site that has its first token."""
    async with asyncio.TaskGroup() as tasks:
        made = Site(tasks, **options)
        try:
            yield made
        finally:
            made.keepers.close()


def _run(scene: Callable[[Site], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with site(**options) as made:
            await scene(made)

    run_virtual(main())


def test_tokens_of_two_seconds_fail_no_request() -> None:
    """At 20 requests a second for a minute, every request has a valid token; each is fetched about halfway."""

    async def scene(made: Site) -> None:
        made.delay_s = 0.2
        await made.keepers.prepare([SOURCE])
        assert await made.ask_for(60.0) == 1200
        assert made.rejected == 0
        assert 40 <= len(made.fetches) <= 80
        assert made.told == []

    _run(scene)


def test_a_source_that_is_down_for_ten_seconds_fails_no_request() -> None:
    """The token is used until the source is back; the failure and its end are events."""

    async def scene(made: Site) -> None:
        await made.keepers.prepare([SOURCE])
        await made.ask_for(10.0)
        made.fault = SourceFault("the program token ended with code 1")
        await made.ask_for(10.0)
        made.fault = None
        await made.ask_for(20.0)
        assert made.rejected == 0
        assert [error for _, error in made.told] == ["the program token ended with code 1", None]
        assert made.told[0][0] >= 10

    _run(scene, lifetime_s=30.0)


def test_a_source_that_is_down_for_ever_takes_the_replica_out() -> None:
    """The replica leaves when its token has ended, not before, with the reason; it comes back with a new token."""

    async def scene(made: Site) -> None:
        await made.keepers.prepare([SOURCE])
        made.fault = SourceFault("the program token ended with code 1")
        assert await made.ask_for(29.9) == 598
        await asyncio.sleep(30.0)
        assert made.rejected == 0
        assert made.replica.out
        assert made.replica.locked == "its token cannot be fetched: the program token ended with code 1"
        first, last = made.told
        assert 12 <= first[0] <= 18
        assert last[0] == 0
        made.fault = None
        await asyncio.sleep(45.0)
        assert made.ask()
        assert [error is None for _, error in made.told] == [False, False, True]

    _run(scene, lifetime_s=30.0)


def test_a_slow_source_fails_no_request() -> None:
    """A fetch of five seconds begins early enough."""

    async def scene(made: Site) -> None:
        made.delay_s = 5.0
        await made.keepers.prepare([SOURCE])
        assert made.loop.time() == 5.0
        assert await made.ask_for(120.0) == 2400
        assert made.told == []

    _run(scene, lifetime_s=30.0)


def test_a_source_that_hangs_is_reported_and_asked_once() -> None:
    """A fetch without an end is reported after ten seconds; no second one begins, and the replica leaves."""

    async def scene(made: Site) -> None:
        await made.keepers.prepare([SOURCE])
        made.delay_s = 1e6
        await made.ask_for(60.0)
        assert len(made.fetches) == 2
        first, last = made.told
        assert first[1] == last[1] == "command token has returned nothing for 10 s"
        assert first[0] > last[0] == 0
        assert made.replica.out
        assert made.rejected == 0

    _run(scene, lifetime_s=30.0)


def test_a_rejected_token_is_renewed_once_at_once() -> None:
    """A revoked token costs the requests until the new one; a source that issues bad tokens is not asked in a loop."""

    async def scene(made: Site) -> None:
        await made.keepers.prepare([SOURCE])
        assert made.ask()
        made.revoked.add("sk-0")
        assert not made.ask()
        await asyncio.sleep(0.01)
        assert made.ask()
        made.revoked |= {f"sk-{number}" for number in range(1, 9)}
        await made.ask_for(30.0)
        assert len(made.fetches) == 2
        await made.ask_for(60.0)
        assert len(made.fetches) == 3

    _run(scene, lifetime_s=3600.0)


def test_the_first_token_is_waited_for() -> None:
    """A replica without a token is out; the start waits ten seconds at most, and what follows does not wait again."""

    async def scene(made: Site) -> None:
        made.delay_s = 12.0
        made.board.use_new()
        await made.keepers.prepare([SOURCE])
        assert made.loop.time() == 10.0
        assert made.replica.locked == "its token has not arrived yet"
        await made.keepers.prepare([SOURCE])  # as at each change of the replicas
        assert made.loop.time() == 10.0
        await asyncio.sleep(2.5)
        assert made.ask()

    _run(scene, lifetime_s=60.0)


def test_a_source_without_a_first_token_is_the_reason() -> None:
    """A source that fails at the start takes the replica out with its fault."""

    async def scene(made: Site) -> None:
        made.fault = SourceFault("the program token does not exist")
        await made.keepers.prepare([SOURCE])
        assert made.loop.time() == 0.0
        assert made.replica.locked == "its token cannot be fetched: the program token does not exist"
        assert made.told == [(0, "the program token does not exist")]

    _run(scene)


def test_a_bug_in_a_source_is_reported() -> None:
    """Any exception of a fetch is a failure without its text."""

    async def scene(made: Site) -> None:
        made.fault = ZeroDivisionError("sk-secret")
        await made.keepers.prepare([SOURCE])
        assert made.told == [(0, "the fetch failed with an internal error")]

    _run(scene)


def test_an_operator_and_a_token_take_out_apart() -> None:
    """A replica that an operator has taken out stays out with a new token, and one without a token after a switch."""
    replica = Replica("a", Replica)  # type: ignore[arg-type]
    replica.take_out(out=True)
    replica.use_token("t", 0.0, is_cure=False)
    states = [(replica.out, replica.taken_out)]
    replica.lock("no token")
    replica.take_out(out=False)
    states.append((replica.out, replica.taken_out))
    assert states == [(True, True), (True, False)]
    replica.use_token("u", 0.0, is_cure=False)
    assert (replica.out, replica.taken_out, replica.secrets) == (False, False, ("u", "t"))


def test_a_token_that_no_replica_sends_is_forgotten() -> None:
    """After a reload, only tokens of its replicas are kept in memory, and no output has one."""

    async def scene(made: Site) -> None:
        await made.keepers.prepare([SOURCE])
        made.board.users = tuple
        made.board.use_new()
        made.keepers.follow([])
        await asyncio.sleep(10)
        assert len(made.fetches) == 1
        assert "sk-" not in repr(vars(made.board))
        assert "sk-" not in repr(TokenState("sk-1"))

    _run(scene)
