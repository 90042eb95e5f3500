"""The connection of a process to a real Redis server: login, TLS, and every way in which a server goes away."""

import asyncio
import contextlib
import hashlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import redis as client
import trustme

from gateway.share.address import AddressFault, EngineAddress, read_address
from gateway.share.messages import (
    Ask,
    BucketAnswer,
    BucketAsk,
    GaugeAsk,
    Reply,
    SliceAsk,
    SlotsAsk,
    SwitchesAsk,
    SwitchState,
)
from gateway.share.redis import QUEUE_MAX, Login, RedisEngine
from gateway.share.wire import CALL_MAX
from redis_server import RedisServer, redis_server
from running import run_real
from tls_files import tls_options, trusting
from unused_ports import unused_port

EVERY_KIND: Sequence[Ask] = (
    BucketAsk("k", 60, 60, want=5),
    SlotsAsk("c", 4, 0, 2),
    GaugeAsk("g", {"r1": (1, 2)}),
    SliceAsk("s", {"e1": 1}),
    SwitchesAsk([SwitchState("hedging", "off")]),
)
# The rights that a user needs
RULES = (
    "~ttft*:{prod}:* resetchannels -@all +@hash +@set +@sortedset +@string +del +exists +expire +ttl +time -@dangerous"
)
NOBODY = Login()
FUNCTIONS = "+fcall +function|load"


async def asked(engine: RedisEngine, *asks: Ask) -> Reply | None:
    """Return the reply to a batch, None if it was lost."""
    reply: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
    engine.ask(asks, reply.set_result)
    async with asyncio.timeout(20):
        return await reply


async def until(done: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(20):
        while True:
            found = done()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def connecting(
    place: str, login: Login = NOBODY, tls: Callable[[], ssl.SSLContext] = ssl.create_default_context
) -> AsyncIterator[RedisEngine]:
    """Run an engine, which may not be connected yet."""
    engine = RedisEngine(read_address(place), login, "prod", "process", lambda: 0.5, tls)
    async with asyncio.TaskGroup() as group:
        group.create_task(engine.run())
        yield engine
        engine.close()


@contextlib.asynccontextmanager
async def connected(
    place: str, login: Login = NOBODY, tls: Callable[[], ssl.SSLContext] = ssl.create_default_context
) -> AsyncIterator[RedisEngine]:
    """Run an engine with a connection."""
    async with connecting(place, login, tls) as engine:
        await until(lambda: not engine.fault)
        yield engine


def test_batches_of_every_kind_and_size_are_answered_in_order(tmp_path: Path) -> None:
    """Also over a unix socket, in another database, before the server listens, and more asks than fit into a call."""

    async def main(server: RedisServer) -> None:
        async with connecting(f"unix://{server.socket}") as engine:
            assert await asked(engine) is None
            server.start()
            await until(lambda: not engine.fault)
            many = [BucketAsk(f"k{number}", 1, 1, want=1) for number in range(2 * CALL_MAX + 1)]
            replies = await asyncio.gather(asked(engine, *many), asked(engine), asked(engine, *EVERY_KIND))
            assert [len(reply.answers) for reply in replies if reply] == [len(many), 0, len(EVERY_KIND)]
        async with connected(f"redis://127.0.0.1:{server.port}/7") as engine:
            reply = await asked(engine, *EVERY_KIND)
            assert reply is not None
            assert isinstance(reply.answers[0], BucketAnswer)
            assert reply.answers[0].left == 55

    with redis_server(tmp_path) as server:
        server.kill()
        run_real(main(server))


def test_a_server_may_go_away_in_every_way(tmp_path: Path) -> None:
    """Batches under way are lost immediately or after 1 s, new ones immediately; the connection is opened again."""

    async def main(server: RedisServer) -> None:
        admin = client.Redis(unix_socket_path=str(server.socket))
        async with connected(f"redis://127.0.0.1:{server.port}") as engine:
            server.kill()
            assert await asked(engine, *EVERY_KIND) is None
            assert await asked(engine) is None
            assert engine.fault
            assert not engine.is_rejected
            server.start()
            await until(lambda: not engine.fault)
            assert await asked(engine, *EVERY_KIND) is not None

            server.hang()
            replies = await asyncio.gather(*(asked(engine, *EVERY_KIND) for _ in range(3)))
            assert replies == [None] * 3
            server.go_on()
            await until(lambda: not engine.fault)
            assert await asked(engine, *EVERY_KIND) is not None

            admin.function_flush("SYNC")
            assert await asked(engine, *EVERY_KIND) is None
            assert "ttft3_ask" in engine.fault or "Function" in engine.fault
            await until(lambda: not engine.fault)

            admin.replicaof("127.0.0.1", "1")
            assert await asked(engine, *EVERY_KIND) is None
            assert "read only" in engine.fault
            admin.replicaof("NO", "ONE")
            await until(lambda: not engine.fault)
        admin.close()

    with redis_server(tmp_path) as server:
        run_real(main(server))


def test_batches_without_a_reply_are_bounded_and_lost_when_the_engine_closes(tmp_path: Path) -> None:
    """Each callback is called once."""

    async def main(server: RedisServer) -> None:
        replies: list[Reply | None] = []
        async with connected(f"unix://{server.socket}") as engine:
            server.hang()
            for _ in range(QUEUE_MAX + 7):
                engine.ask((), replies.append)
            await until(lambda: len(replies) == 7)
        await asyncio.sleep(0)
        server.go_on()
        assert replies == [None] * (QUEUE_MAX + 7)

    with redis_server(tmp_path) as server:
        run_real(main(server))


def test_a_reply_that_came_during_a_pause_of_the_process_is_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that gives the process no time for longer than the limit does not cost the connection."""
    monkeypatch.setattr("gateway.share.redis.SILENCE_S", 0.1)

    async def main(server: RedisServer) -> None:
        async with connected(f"redis://127.0.0.1:{server.port}") as engine:
            replies: list[Reply | None] = []
            server.hang()
            engine.ask(EVERY_KIND, replies.append)
            await asyncio.sleep(0.02)
            server.go_on()
            time.sleep(0.3)  # noqa: ASYNC251, TID251 # the pause
            await until(lambda: bool(replies))
            assert replies != [None]
            assert not engine.fault

    with redis_server(tmp_path) as server:
        run_real(main(server))


def test_a_user_needs_few_rights(tmp_path: Path) -> None:
    """The rules of the documentation suffice for every ask, and keep the user away from other keys.

    Who watches the server sees no password.
    """

    async def main(server: RedisServer) -> None:
        place = f"redis://127.0.0.1:{server.port}"
        reader, writer = await asyncio.open_unix_connection(str(server.socket))
        writer.write(b"AUTH watcher w\r\nMONITOR\r\n")
        async with connected(place, Login("gw", "p w")) as engine:
            assert await asked(engine, *EVERY_KIND) is not None
            assert await asked(engine, *EVERY_KIND) is not None
        seen = await reader.read(1_000_000)
        writer.close()
        assert seen.count(b'"FCALL"') >= 2
        assert b"p w" not in seen
        with client.Redis(port=server.port, username="gw", password="p w") as other:
            for command in (
                ["GET", "mine"],
                ["KEYS", "*"],
                ["FLUSHALL"],
                ["CONFIG", "GET", "*"],
                ["FUNCTION", "FLUSH"],
            ):
                with pytest.raises(client.exceptions.NoPermissionError):
                    other.execute_command(*command)
        async with connecting(place, Login("gw", "wrong-p-w")) as engine:
            await until(lambda: "invalid username-password pair" in engine.fault)
            assert "wrong" not in engine.fault
            assert engine.is_rejected
        async with connecting(place) as engine:
            await until(lambda: "Authentication required" in engine.fault)

    users = tmp_path / "users.acl"
    password = hashlib.sha256(b"p w").hexdigest()
    users.write_text(f"user default off\nuser gw on #{password} {RULES} {FUNCTIONS}\nuser watcher on >w +monitor\n")
    with redis_server(tmp_path, "--aclfile", str(users)) as server:
        run_real(main(server))


def test_tls_needs_the_right_authority(tmp_path: Path) -> None:
    """A server with a certificate of an own authority is trusted by those that name it only."""
    authority, other = trustme.CA(), trustme.CA()

    async def main(port: int) -> None:
        async with connected(f"rediss://127.0.0.1:{port}", tls=trusting(authority)) as engine:
            assert await asked(engine, *EVERY_KIND) is not None
        async with connecting(f"rediss://127.0.0.1:{port}", tls=trusting(other)) as engine:
            await until(lambda: "CERTIFICATE_VERIFY_FAILED" in engine.fault)
        async with connecting(f"rediss://localhost:{port}", tls=trusting(authority)) as engine:
            await until(lambda: "CERTIFICATE_VERIFY_FAILED" in engine.fault)

    port = unused_port()
    with redis_server(tmp_path, "--tls-port", str(port), *tls_options(tmp_path, authority)):
        run_real(main(port))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://valkey", EngineAddress((("valkey", 6379),))),
        ("redis://[::1]:7000/3", EngineAddress((("::1", 7000),), database=3)),
        ("rediss://valkey.ns.svc:6380/", EngineAddress((("valkey.ns.svc", 6380),), is_tls=True)),
        ("redis://a,b:7000", EngineAddress((("a", 6379), ("b", 7000)))),
        ("unix:///run/valkey.sock", EngineAddress((), "/run/valkey.sock")),
        ("redis+sentinel://a:1,b/main/2", EngineAddress((("a", 1), ("b", 26379)), database=2, service="main")),
        ("rediss+sentinel://a/main", EngineAddress((("a", 26379),), service="main", is_tls=True)),
    ],
)
def test_urls(url: str, expected: EngineAddress) -> None:
    """Every form of a URL."""
    assert read_address(url) == expected


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "not the URL of a Redis"),
        ("http://valkey:6379", "not the URL of a Redis"),
        ("redis://gw:secret@valkey", "write them in `user` and `password`"),
        ("redis://valkey?db=1", "parameters"),
        ("redis://valkey/main", "not a number"),
        ("redis://valkey:99999", "port is invalid"),
        ("redis://", "host or port"),
        ("redis://a,b/1", "has database 0 only"),
        ("unix://run/s", "absolute"),
        ("redis+sentinel://a", "name of the service"),
    ],
)
def test_unusable_urls(url: str, reason: str) -> None:
    """The reason tells what to write, and never quotes the URL."""
    with pytest.raises(AddressFault, match=reason) as fault:
        read_address(url)
    assert "secret" not in str(fault.value)
