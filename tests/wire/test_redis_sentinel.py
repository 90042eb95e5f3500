"""A Sentinel names the server; after its death, the replica that took over."""

import asyncio
import contextlib
from pathlib import Path

import redis as client

from gateway.share.address import read_address
from gateway.share.messages import BucketAnswer, BucketAsk, Reply
from gateway.share.redis import Login, RedisEngine
from redis_server import RedisServer, redis_server
from running import run_real
from unused_ports import unused_port

LIMITS = "sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 2000\n"


def test_the_connection_follows_a_failover(tmp_path: Path) -> None:
    """The replica has the functions and the buckets; the first Sentinel of the list is down."""

    async def main(primary: RedisServer, sentinel: int) -> None:
        place = f"redis+sentinel://127.0.0.1:{unused_port()},127.0.0.1:{sentinel}/main"
        engine = RedisEngine(read_address(place), Login(), "prod", "process", lambda: 0.0)

        async def spent(amount: float) -> float:
            """Lease an amount, and return what is left."""
            ask = BucketAsk("k", 60, 3600, want=amount)
            async with asyncio.timeout(60):
                while True:
                    reply: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
                    engine.ask([ask], reply.set_result)
                    if (answered := await reply) is not None:
                        [answer] = answered.answers
                        assert isinstance(answer, BucketAnswer)
                        return answer.left
                    await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as group:
            group.create_task(engine.run())
            try:
                assert await spent(40) < 21
                with client.Redis(port=primary.port) as admin:
                    admin.wait(1, 10_000)
                primary.kill()
                assert await spent(0) < 30
            finally:
                engine.close()

    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(redis_server(tmp_path / "primary", "--repl-diskless-sync-delay", "0"))
        stack.enter_context(redis_server(tmp_path / "replica", "--replicaof", f"127.0.0.1 {primary.port}"))
        file = tmp_path / "sentinel.conf"
        file.write_text(f"sentinel monitor main 127.0.0.1 {primary.port} 1\n{LIMITS}")
        with client.Redis(port=primary.port) as admin:
            admin.set("k", 1)
            assert admin.wait(1, 20_000) == 1
        sentinel = stack.enter_context(redis_server(tmp_path / "sentinel", sentinel=file))
        run_real(main(primary, sentinel.port))
