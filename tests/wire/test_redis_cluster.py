"""A Redis Cluster: the connection is to the node that has the fleet, wherever its slot moves."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import redis as client
import trustme
from redis.crc import key_slot

from gateway.share.address import read_address
from gateway.share.messages import BucketAnswer, BucketAsk, Reply
from gateway.share.redis import Login, RedisEngine
from redis_server import RedisServer, redis_server
from running import run_real
from tls_files import tls_options, trusting
from unused_ports import unused_port

FLEET, OTHER = "prod", "test"  # of which the cluster has the slots at different nodes in the end


def _node(stack: contextlib.ExitStack, folder: Path, *others: str) -> tuple[RedisServer, int]:
    """Return a node without slots, and the port for other nodes."""
    port = unused_port()
    options = ("--cluster-enabled", "yes", "--cluster-port", str(port), "--cluster-require-full-coverage", "no")
    return stack.enter_context(redis_server(folder, *options, *others)), port


async def _agreed(*admins: client.Redis) -> None:
    """Wait until the nodes know each other, and all slots."""
    async with asyncio.timeout(30):
        for admin in admins:
            while True:
                info = admin.execute_command("CLUSTER INFO")
                if (info["cluster_state"], info["cluster_known_nodes"]) == ("ok", str(len(admins))):
                    break
                await asyncio.sleep(0.02)


def _reshard(slot: int, source: client.Redis, target: client.Redis, port: int) -> None:
    """Move a slot with its keys, as `redis-cli --cluster reshard` does."""
    sender, receiver = source.execute_command("CLUSTER MYID"), target.execute_command("CLUSTER MYID")
    target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", sender)
    source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", receiver)
    keys = source.execute_command("CLUSTER GETKEYSINSLOT", slot, 1_000)
    assert keys
    source.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5_000, "KEYS", *keys)
    for each in (target, source):
        each.execute_command("CLUSTER", "SETSLOT", slot, "NODE", receiver)


@contextlib.asynccontextmanager
async def _engine(
    place: str, fleet: str, tls: Callable[[], ssl.SSLContext] = ssl.create_default_context
) -> AsyncIterator[RedisEngine]:
    engine = RedisEngine(read_address(place), Login(), fleet, "process", lambda: 0.0, tls)
    async with asyncio.TaskGroup() as group:
        group.create_task(engine.run())
        try:
            yield engine
        finally:
            engine.close()


async def _asked(engine: RedisEngine, amount: float) -> float | None:
    """Lease an amount of 100, and return what is left; None if the ask is lost."""
    replied: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
    engine.ask([BucketAsk("k", 100, 1e6, want=amount)], replied.set_result)
    reply = await replied
    if reply is None:
        return None
    [answer] = reply.answers
    assert isinstance(answer, BucketAnswer)
    return answer.left


async def _left(engine: RedisEngine, amount: float = 0.0) -> float:
    async with asyncio.timeout(30):
        while (left := await _asked(engine, amount)) is None:
            await asyncio.sleep(0.01)
    return round(left)


def _with_tls(admin: client.Redis, port: int) -> int:
    """Return the number of connections to a port of a node."""
    return sum(each["laddr"] == f"127.0.0.1:{port}" for each in admin.client_list())


def test_a_fleet_is_found_at_the_node_that_has_its_slot(tmp_path: Path) -> None:
    """What is spent is still spent after the slot has moved; a killed node is an outage of its fleets only."""

    async def main(first: RedisServer, second: RedisServer, ports: tuple[int, int]) -> None:
        with client.Redis(port=first.port) as one, client.Redis(port=second.port) as two:
            one.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
            one.execute_command("CLUSTER", "MEET", "127.0.0.1", second.port, ports[1])
            await _agreed(one, two)
            place = f"redis://127.0.0.1:{unused_port()},127.0.0.1:{second.port}"  # none answers, and no slot
            async with _engine(place, FLEET) as engine, _engine(place, OTHER) as other:
                assert [await _left(engine, 40), await _left(other, 10)] == [60, 90]
                _reshard(key_slot(FLEET.encode()), one, two, second.port)
                assert await _left(engine) == 60
                assert await _left(other) == 90
                second.kill()
                assert await _asked(engine, 0.0) is None
                assert engine.fault
                assert await _asked(other, 0.0) is not None

    with contextlib.ExitStack() as stack:
        (first, one), (second, two) = _node(stack, tmp_path / "one"), _node(stack, tmp_path / "two")
        run_real(main(first, second, (one, two)))


def test_with_tls_the_other_node_is_reached_with_tls(tmp_path: Path) -> None:
    """The node that does not have the slot names the port with TLS of the other one."""
    authority = trustme.CA()
    ports = [unused_port(), unused_port()]

    async def main(first: RedisServer, second: RedisServer, bus: int) -> None:
        with client.Redis(port=first.port) as one, client.Redis(port=second.port) as two:
            one.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
            one.execute_command("CLUSTER", "MEET", "127.0.0.1", ports[1], bus)
            await _agreed(one, two)
            async with _engine(f"rediss://127.0.0.1:{ports[1]}", FLEET, trusting(authority)) as engine:
                assert await _left(engine, 40) == 60
                assert _with_tls(one, ports[0]) == 1
            async with asyncio.timeout(30):
                while any(_with_tls(each, port) for each, port in zip((one, two), ports, strict=True)):
                    await asyncio.sleep(0.01)

    with contextlib.ExitStack() as stack:
        options = ("--tls-cluster", "yes", *tls_options(tmp_path, authority))
        nodes = [_node(stack, tmp_path / str(port), "--tls-port", str(port), *options) for port in ports]
        (first, _), (second, bus) = nodes
        run_real(main(first, second, bus))
