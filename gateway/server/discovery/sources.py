"""Asks a source for its replicas: a name in DNS, a Service in Kubernetes, or a file. Units: seconds.

A name is looked up by the event loop, on threads of its own, with bounds. A file is read on a daemon
thread: a hanging disk delays neither the loop nor the end of the process, and while it hangs the source fails.
A Service is watched: its source has each change without being asked again and again.
"""

import asyncio
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeVar, runtime_checkable

from gateway.config.discovered import ROWS_MAX, PoolPlace, address_rows, name_of, sources, with_rows
from gateway.config.errors import ConfigError
from gateway.config.replica_list import read_replicas
from gateway.config.settings import DiscoverSettings, Replicas, Settings
from gateway.server.daemon_thread import Hanging, SlowCalls
from gateway.server.discovery.failure import SourceFailed

_ANSWER_S_MAX: Final = 10.0
_SETTLED_S: Final = 0.1  # a file that is being written changes again within this time
_ERROR_CHARS_MAX: Final = 500

_T = TypeVar("_T")
_FileState = tuple[int, ...]


class Source(Protocol):
    """A source of replicas."""

    async def ask(self) -> Replicas:
        """Return the replicas now; those that have not changed are the same objects as in the last answer.

        Raises:
            SourceFailed: there is no usable answer.
        """


@runtime_checkable
class WatchedSource(Source, Protocol):
    """A source that has each change without being asked again and again."""

    async def follow(self, use: Callable[[], Awaitable[bool]], rand: Callable[[], float]) -> None:
        """Follow the changes, without an end.

        Args:
            use: called after changes; returns False if it must be called again.
            rand: returns random numbers from 0 to 1.
        """


def source_of(discover: DiscoverSettings, settings: Settings, place: PoolPlace, env: Mapping[str, str]) -> Source:
    """Return the source of a pool.

    Args:
        discover: settings of the source.
        settings: settings without replicas found at run time.
        place: pool that has the source.
        env: environment variables for `${NAME}` in a file.
    """
    if discover.endpointslices is not None:
        from gateway.server.discovery.kubernetes import cluster_api
        from gateway.server.discovery.slice_source import SliceSource

        return SliceSource(discover, cluster_api(settings.kubernetes, env))
    if discover.file is None:
        return DnsSource(discover)
    file = Path(discover.file)
    return FileSource(file, lambda: read_replicas(file, env, settings, place))


async def look_up(settings: Settings, env: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Ask every source once; return settings with the replicas found, and the faults of sources without an answer."""
    found: dict[PoolPlace, Replicas] = {}
    faults: list[str] = []
    for place, discover in sources(settings).items():
        try:
            found[place] = await source_of(discover, settings, place, env).ask()
        except SourceFailed as error:
            faults.append(f"{name_of(discover)} of {place.model}: {error}")
    return with_rows(settings, found), faults


class DnsSource:
    """The addresses of a name."""

    def __init__(self, discover: DiscoverSettings) -> None:
        self._discover = discover
        self._addresses: set[str] = set()
        self._answer: Replicas = ()

    async def ask(self) -> Replicas:
        loop, discover = asyncio.get_running_loop(), self._discover
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                infos = await loop.getaddrinfo(discover.dns, discover.port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise SourceFailed(f"no answer within {_ANSWER_S_MAX:g} s") from None
        except OSError as error:
            raise SourceFailed(error.strerror or str(error)) from None
        addresses = {str(info[4][0]) for info in infos}
        if len(addresses) > ROWS_MAX:
            raise SourceFailed(f"the answer has {len(addresses)} addresses; at most {ROWS_MAX} are supported")
        if not addresses:
            return ()
        if addresses != self._addresses:
            self._addresses, self._answer = addresses, address_rows(discover, addresses, self._answer)
        return self._answer


class FileSource:
    """The rows of a file, read again when it has changed.

    Args:
        read: returns the rows; raises `ConfigError`.
    """

    def __init__(self, file: Path, read: Callable[[], Replicas]) -> None:
        self._file = file
        self._read = read
        self._state: _FileState = ()  # of the file when it was read
        self._answer: Replicas | ConfigError = ()
        self._calls = SlowCalls("read replicas", _ANSWER_S_MAX)

    async def ask(self) -> Replicas:
        state = await self._off_loop(self._look)
        while state != self._state:
            answer = await self._off_loop(self._rows)
            await asyncio.sleep(_SETTLED_S)
            seen, state = state, await self._off_loop(self._look)
            if seen == state:
                self._state, self._answer = state, answer
        if isinstance(self._answer, ConfigError):
            raise SourceFailed(str(self._answer)[:_ERROR_CHARS_MAX])
        return self._answer

    def _look(self) -> _FileState:
        """Return what changes with the content of the file; runs on a thread."""
        found = self._file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise SourceFailed("the path is not a regular file")
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev

    def _rows(self) -> Replicas | ConfigError:
        """Read the file; runs on a thread."""
        known = {} if isinstance(self._answer, ConfigError) else {row.name: row for row in self._answer}
        try:
            return tuple(known[row.name] if known.get(row.name) == row else row for row in self._read())
        except ConfigError as error:
            return error

    async def _off_loop(self, call: Callable[[], _T]) -> _T:
        """Run a call on a thread, unless the last one has not returned.

        Raises:
            SourceFailed: it raised an `OSError`, or does not return.
        """
        try:
            return await self._calls.run(call)
        except Hanging as error:
            raise SourceFailed(str(error)) from None
        except FileNotFoundError:
            raise SourceFailed("the file does not exist") from None
        except OSError as error:
            raise SourceFailed(f"the file cannot be read: {error.strerror or error}") from None
