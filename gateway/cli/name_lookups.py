"""Name lookups on threads of their own, with bounds; both event loops of the gateway use them.

asyncio looks names up in its default executor, which has 5 to 32 threads and also reads a new configuration; uvloop has
4 threads. A lookup cannot be cancelled, and the system's resolver takes up to half a minute if the servers of a name do
not answer. A few requests to one such name would stop all lookups and reloads, and the process could not end. Here a
lookup has a thread of its own, requests for the same name share its answer, and the loop closes without waiting for it.
Bounds are errors, not queues: a request over them fails over to another replica. The caller bounds its wait.

Answers are not stored: a new connection uses what DNS answers now. Units: seconds.
"""

import asyncio
import contextlib
import math
import socket
import threading
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

_THREADS_MAX: Final = 128  # lookups in progress; a waiting thread takes some 20 kB
_NAME_THREADS_MAX: Final = 2  # for one name
_AGAIN_S: Final = 1.0  # age of a lookup after which a new request starts the second one: its datagram may be lost

Infos: TypeAlias = list[Any]
"""Addresses as `socket.getaddrinfo` returns them; its type differs between versions of the stubs."""
_Key: TypeAlias = tuple[str, tuple[tuple[str, int], ...]]


class _Lookup:
    """The lookups of one name.

    Attributes:
        answer: the next addresses or error, for all requests that wait.
        threads: number of threads that look the name up.
        started_s: loop time at which the newest of them was started; minus infinity after an answer, because the
            threads that remain hang.
    """

    __slots__ = ("answer", "started_s", "threads")

    def __init__(self, answer: "asyncio.Future[Infos | Exception]") -> None:
        self.answer = answer
        self.threads = 0
        self.started_s = -math.inf


class NameLookups:
    """All lookups in progress.

    Args:
        loop: the loop that they belong to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lookups: dict[_Key, _Lookup] = {}
        self._threads = 0

    async def addresses(self, host: bytes | str, port: int, options: Mapping[str, int]) -> Infos:
        """Return the addresses of a host, as `asyncio.loop.getaddrinfo` does.

        Raises:
            OSError: the name has no address, or there are too many lookups in progress.
        """
        name = host.decode("ascii") if isinstance(host, bytes) else host
        found = await self._of_any_port(name, options)
        return [(*info[:4], (info[4][0], port, *info[4][2:])) for info in found]

    async def _of_any_port(self, name: str, options: Mapping[str, int]) -> Infos:
        key = name, tuple(sorted(options.items()))
        lookup = self._lookups.get(key) or _Lookup(self._loop.create_future())
        is_due = lookup.threads < _NAME_THREADS_MAX and self._loop.time() >= lookup.started_s + _AGAIN_S
        if is_due and not self._start(key, lookup) and not lookup.threads:
            # EAI_MEMORY: a shortage of this machine, which is no fault of the replica; EAI_AGAIN would be one.
            text = f"{self._threads} name lookups are in progress, the maximum; check DNS"  # clients report it
            raise socket.gaierror(socket.EAI_MEMORY, text)
        answer = await asyncio.shield(lookup.answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _start(self, key: _Key, lookup: _Lookup) -> bool:
        """Start a thread for a lookup; return False if there is no room, which a second thread has in one half only."""
        if self._threads >= _THREADS_MAX // (lookup.threads + 1):
            return False
        thread = threading.Thread(target=self._look_up, args=(key,), name=f"look up {key[0]}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system allows no more threads
            return False
        self._lookups[key] = lookup
        self._threads += 1
        lookup.threads += 1
        lookup.started_s = self._loop.time()
        return True

    def _look_up(self, key: _Key) -> None:
        """Look up a name; runs on a thread."""
        name, options = key
        answer: Infos | Exception = OSError("the name lookup failed")
        try:
            answer = socket.getaddrinfo(name, None, **dict(options))
        except (OSError, ValueError) as error:  # the name is unknown or invalid
            answer = error
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._answered, key, answer)

    def _answered(self, key: _Key, answer: Infos | Exception) -> None:
        """Give the answer of a thread to all requests that wait for the name."""
        lookup = self._lookups[key]
        self._threads -= 1
        lookup.threads -= 1
        lookup.answer.set_result(answer)
        if lookup.threads:
            lookup.answer = self._loop.create_future()
            lookup.started_s = -math.inf
        else:
            del self._lookups[key]
