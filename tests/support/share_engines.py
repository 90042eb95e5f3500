"""The engines that add up the asks of processes: the hub of a host, and the functions in a real server.

Both have the test's clock: in the text of the functions, the server's TIME becomes a look at two keys.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

import redis

from gateway.share.messages import Ask, Reply
from gateway.share.redis import LIBRARY
from gateway.share.server_rows import ServerRows
from gateway.share.wire import pack, unpack

_CLOCK = "call('TIME')"


class SharedEngine(Protocol):
    """An engine of several processes at a time of the test's."""

    def answer(self, now_s: float, process: str, asks: Sequence[Ask], until_s: float = math.inf) -> Reply:
        """Execute a batch of a process."""


def with_clock(library: str) -> str:
    """Return a library that reads the time from the keys `clock:s` and `clock:us`."""
    assert _CLOCK in library
    return library.replace(_CLOCK, "call('MGET', 'clock:s', 'clock:us')")


class ServerEngine:
    """The functions in a server.

    Args:
        path: unix socket of the server.
        version: wire version; another one than 3 is the same library under other names.

    Attributes:
        client: a client of the server.
    """

    def __init__(self, path: Path, version: int = 3) -> None:
        self.client = redis.Redis(unix_socket_path=str(path), protocol=2)
        self._version = f"ttft{version}"
        library = LIBRARY.replace("VERSION = 3", f"VERSION = {version}").replace("ttft3", self._version)
        self._library = with_clock(library)
        self._rows: defaultdict[str, ServerRows] = defaultdict(ServerRows)
        self.lose()

    def answer(self, now_s: float, process: str, asks: Sequence[Ask], until_s: float = math.inf) -> Reply:
        """Execute a batch of a process."""
        micros, rows = round(now_s * 1e6), self._rows[process]
        pipe = self.client.pipeline(transaction=False)
        pipe.mset({"clock:s": micros // 1_000_000, "clock:us": micros % 1_000_000})
        for arguments in pack(asks, rows, now_s, until_s):
            pipe.fcall(f"{self._version}_ask", 1, f"{self._version}:{{test}}:processes", process, *arguments)
        return unpack(asks, cast("list[list[bytes]]", pipe.execute())[1:], rows)

    def lose(self) -> None:
        """Lose all data; each process connects again."""
        self.client.flushall()
        self.lose_rows()
        self._rows.clear()

    def lose_rows(self) -> None:
        """Load the functions again, which lose the rows."""
        self.client.function_load(self._library, replace=True)

    def keys(self) -> dict[str, int]:
        """Return the TTL in seconds of every key; -1 for none."""
        return {str(key): self.client.ttl(key) for key in self.client.keys("ttft*")}

    def close(self) -> None:
        """Close the connection."""
        self.client.close()
