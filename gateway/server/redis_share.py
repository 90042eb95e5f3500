"""Opens the engine of gateway/share/redis.py, a server for several hosts; part of the composition root.

Units: seconds.
"""

import asyncio
import logging
import random
import secrets
import ssl
from typing import TYPE_CHECKING, Final

from gateway.config.settings import ShareSettings
from gateway.config.tls import TlsFault, TlsFiles, tls_context
from gateway.share.address import read_address

if TYPE_CHECKING:
    from gateway.share.redis import RedisEngine

_PAUSE_S: Final = 1.0  # after a bug, before the next connect


def open_redis(share: ShareSettings, tasks: asyncio.TaskGroup) -> "RedisEngine":
    """Return an engine that connects from now on; needs redis-py."""
    from gateway.share.redis import Login, RedisEngine

    def tls() -> ssl.SSLContext:
        try:
            return tls_context(TlsFiles(share.ca_file))
        except TlsFault as fault:  # the file has changed since the start
            raise OSError(f"`ca_file`: {fault.text}") from None

    login = Login(share.user, None if share.password is None else share.password.get_secret_value())
    process = secrets.token_hex(8)
    engine = RedisEngine(read_address(share.url), login, share.fleet, process, random.Random().random, tls)
    tasks.create_task(_keep_connected(engine))
    return engine


async def wait_for_redis(engine: "RedisEngine", worker: int | None = None) -> None:
    """Wait for the first connection, for the time limit of a connect; if it fails, the first worker logs the reason."""
    await engine.wait_connected()
    if engine.fault and worker in (None, 1):
        logging.getLogger(__name__).warning(
            "the server of `share` is not connected (%s); the gateway works alone until it is", engine.fault
        )


async def _keep_connected(engine: "RedisEngine") -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            await engine.run()
        except Exception as error:  # a bug must not end the gateway
            loop.call_exception_handler({"message": "the connection of `share` failed", "exception": error})
            await asyncio.sleep(_PAUSE_S)
        else:
            return
