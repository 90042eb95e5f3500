"""The engine of many hosts: a function library, ttft3.lua, in a Redis or Valkey server of version 7 or later.

One connection and one task, which connects again and again: the server may be away at any time, also at the start.
Batches that come while others are under way are sent together. A server without the library gets it at the connect, so
that a server without data works immediately. The address is looked up at every connect, of Sentinels too. A fleet is in
one slot of a Redis Cluster: the connection is to the node that has the slot.

Imported only if a server is configured; redis-py is an extra.
"""

import asyncio
import contextlib
import hashlib
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.resources import files
from itertools import chain
from typing import Any, Final, NamedTuple

from msgspec.structs import replace
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import AuthenticationError, MovedError, NoPermissionError, RedisError, ResponseError

from gateway.share.address import EngineAddress
from gateway.share.fleet import WaitAllowance
from gateway.share.messages import ASK_LIFE_S, Answered, Ask, keep_silent
from gateway.share.server_rows import ServerRows
from gateway.share.wire import pack, unpack
from ttft_gateway.pool.learned import Drop

CONNECT_S: Final = 1.0  # time limit of a connect with all that belongs to it, and of one Sentinel
SILENCE_S: Final = 1.0  # time limit of the reply to a batch, after which the connection is closed
QUEUE_MAX: Final = 256  # batches without a reply
_LOOK_S: Final = 0.02  # between looks at a wait for the server
_COUNTED_S_MAX: Final = (
    1.2 * _LOOK_S
)  # between two looks; more is a pause of this process, during which it reads nothing
_PAUSES_S: Final = (0.05, 0.5)  # first and longest time between attempts to connect; doubled after each
_REASON_MAX: Final = 200  # characters
_TEXT: Final = files("gateway.share").joinpath("ttft3.lua").read_text("utf-8")
REVISION: Final = hashlib.sha256(_TEXT.encode()).hexdigest()[:16]
LIBRARY: Final = _TEXT.replace("local REVISION = ''", f"local REVISION = '{REVISION}'")


class Login(NamedTuple):
    """User and password.

    Attributes:
        user: name of the user; None for the default one.
        password: its password; None for no login.
    """

    user: str | None = None
    password: str | None = None


class _Batch(NamedTuple):
    asks: Sequence[Ask]
    answered: Answered


class RedisEngine:
    """The connection of one process to a server.

    Args:
        address: place of the server.
        login: user and password.
        fleet: name that the processes have in common.
        process: name of this process, unique in the fleet.
        rand: returns uniform random numbers in [0, 1).
        tls: returns the TLS context of the next connection; used if the address demands TLS.

    Attributes:
        fault: reason for which there is no connection; "" with a connection. Without secrets.
        is_rejected: True if the server has rejected the last login, or its rights.
        drop: receives what is dropped of replies.
    """

    kind = "redis"
    carries_switches = True
    batch_exchanges = 240  # the server takes a fixed time for each batch

    def __init__(
        self,
        address: EngineAddress,
        login: Login,
        fleet: str,
        process: str,
        rand: Callable[[], float],
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        self.fault = "not connected yet"
        self.is_rejected = False
        self.drop: Drop = keep_silent
        self._address = address
        self._login = login
        self._key = f"ttft3:{{{fleet}}}:processes"
        self._call = ("FCALL", "ttft3_ask", 1, self._key, process)
        self._rand = rand
        self._tls = tls
        self._rows = ServerRows(address.database)
        self._waiting: deque[_Batch] = deque()
        self._sent: deque[_Batch] = deque()
        self._wake = asyncio.Event()
        self._connected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._place = 0  # of the host that is next
        self._node: tuple[str, int] | None = None  # that has the fleet, as another node of a cluster has answered
        self._pause_s = _PAUSES_S[0]
        self._ahead_s = 0.0  # of the server's clock
        self._is_closed = False

    def ask(self, asks: Sequence[Ask], answered: Answered) -> None:
        """See `Engine.ask`."""
        if self.fault or len(self._waiting) >= QUEUE_MAX:
            asyncio.get_running_loop().call_soon(answered, None)
        else:
            self._waiting.append(_Batch(asks, answered))
            self._wake.set()

    def close(self) -> None:
        """See `Engine.close`."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    async def wait_connected(self) -> None:
        """Wait for a connection, at most as long as a connect may take."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                await self._connected.wait()

    async def run(self) -> None:
        """Connect, and send batches, until the engine is closed."""
        self._task = asyncio.current_task()
        connect_s = CONNECT_S * (1 + len(self._address.hosts) * bool(self._address.service))
        try:
            while not self._is_closed:
                connection = None
                try:
                    async with _within(connect_s):
                        connection = await self._connect()
                    self.fault, self.is_rejected = "", False
                    self._connected.set()
                    await self._serve(connection)
                except MovedError as error:
                    self._node = (error.host or self._host[0], error.port)
                    self._lose(f"the node {self._node[0]}:{self._node[1]} has the fleet")
                except (RedisError, OSError, ValueError) as error:
                    self.is_rejected = isinstance(error, (AuthenticationError, NoPermissionError))
                    self._node, self._place = None, self._place + 1
                    self._lose(_reason(error))
                finally:
                    if connection is not None:
                        await connection.disconnect(nowait=True)
                await asyncio.sleep(self._pause_s * (0.5 + self._rand()))
                self._pause_s = min(2 * self._pause_s, _PAUSES_S[1])
        finally:
            self._lose("closed")

    def _lose(self, fault: str) -> None:
        """Answer all batches that have no reply."""
        self.fault = fault
        self._connected.clear()
        for batch in (*self._sent, *self._waiting):
            asyncio.get_running_loop().call_soon(batch.answered, None)
        self._sent.clear()
        self._waiting.clear()
        self._rows.begin()

    @property
    def _host(self) -> tuple[str, int]:
        """Host and port of the next connect."""
        return self._node or self._address.hosts[self._place % len(self._address.hosts)]

    async def _connect(self) -> AbstractConnection:
        address = self._address
        if address.service:
            address = await self._primary()
        elif address.hosts:
            address = address._replace(hosts=(self._host,))
        connection = self._connection(address, self._login, address.database)
        try:
            await connection.connect()
            # Without a login, a server answers no text of more than 16 kB; another node of a cluster names its node.
            await connection.send_command("TTL", self._key)
            await connection.read_response()
            await _load(connection)
            sent_s = asyncio.get_running_loop().time()
            [nothing] = pack((), self._rows, sent_s)
            await connection.send_command(*self._call, *nothing)
            self._ahead_s = unpack((), [await connection.read_response()], self._rows).now_s - sent_s
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    def _connection(self, address: EngineAddress, login: Login, database: int = 0) -> AbstractConnection:
        common: dict[str, Any] = {
            "db": database,
            "username": login.user,
            "password": login.password,
            "socket_timeout": None,  # limits are set here: on Python 3.11, redis-py's limit may lose a cancellation
            "socket_connect_timeout": CONNECT_S,
            "protocol": 2,
            "driver_info": None,
        }
        if address.path:
            return UnixDomainSocketConnection(path=address.path, **common)
        host, port = address.hosts[0]
        if not address.is_tls:
            return Connection(host=host, port=port, **common)
        connection = SSLConnection(host=host, port=port, **common)
        connection.ssl_context.context = self._tls()
        return connection

    async def _primary(self) -> EngineAddress:
        """Return the address of the server that the first Sentinel with an answer names."""
        error: Exception = OSError("the Sentinels do not know the service")
        for place in self._address.hosts:
            sentinel = self._address._replace(hosts=(place,))
            try:
                async with asyncio.timeout(CONNECT_S):
                    found = await self._named(sentinel)
            except (RedisError, OSError) as failed:
                error = failed
                continue
            if found is not None:
                return sentinel._replace(hosts=(found,))
        raise error

    async def _named(self, sentinel: EngineAddress) -> tuple[str, int] | None:
        for login in (Login(), self._login):
            connection = self._connection(sentinel, login)
            try:
                await connection.connect()
                await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinel.service)
                found = await connection.read_response()
            except AuthenticationError:
                if login == self._login:
                    raise
            else:
                return None if found is None else (found[0].decode(), int(found[1]))
            finally:
                await connection.disconnect(nowait=True)
        return None

    async def _serve(self, connection: AbstractConnection) -> None:
        """Send the batches that wait, and read the replies; then send the batches that have come since."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._sent, self._waiting = self._waiting, self._sent
            sent_s = loop.time()
            until_s = sent_s + self._ahead_s + ASK_LIFE_S
            calls = [pack(batch.asks, self._rows, sent_s, until_s) for batch in self._sent]
            commands: list[tuple[str | int | bytes, ...]] = [
                (*self._call, *arguments) for batch in calls for arguments in batch
            ]
            async with _within(SILENCE_S):
                await connection.send_packed_command(connection.pack_commands(commands))
            for batch in calls:
                asks = self._sent[0].asks
                async with _within(SILENCE_S):
                    replied = [await connection.read_response() for _ in batch]
                reply = unpack(asks, replied, self._rows, self.drop)
                reply = replace(reply, size_bytes=reply.size_bytes + sum(map(len, chain(*batch))))
                self._ahead_s = reply.now_s - sent_s
                loop.call_soon(self._sent.popleft().answered, reply)
            self._pause_s = _PAUSES_S[0]


@contextlib.asynccontextmanager
async def _within(limit_s: float) -> AsyncIterator[None]:
    """Raise TimeoutError after this time; pauses of this process do not count."""
    loop, allowance = asyncio.get_running_loop(), WaitAllowance(limit_s, _COUNTED_S_MAX)
    async with asyncio.timeout(None) as timeout:
        timer: asyncio.Handle

        def look() -> None:
            nonlocal timer
            if allowance.lasts(loop.time()):
                timer = loop.call_later(_LOOK_S, look)
            else:
                timeout.reschedule(loop.time())

        timer = loop.call_soon(look)
        try:
            yield
        finally:
            timer.cancel()


async def _load(connection: AbstractConnection) -> None:
    """Load the library, unless the server has it: to load it again loses the rows of all processes."""
    await connection.send_command("FCALL", "ttft3_revision", 0)
    found: object = None
    try:
        found = await connection.read_response()
    except (AuthenticationError, NoPermissionError):
        raise
    except ResponseError:  # there is no such function
        pass
    if found != REVISION.encode():
        await connection.send_command("FUNCTION", "LOAD", "REPLACE", LIBRARY)
        await connection.read_response()


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no reply in time"
    return (str(error) or type(error).__name__)[:_REASON_MAX]
