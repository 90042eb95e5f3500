"""The number of processes that share limits, known without the server that counts them (`share.gateways`).

While the server is away, each process uses its part of the limits; a process that has started meanwhile has no number
from the server. The number of gateways is in the configuration, or it is the number of addresses of a name that all
gateways have in common, such as a headless Service. Every gateway has as many workers as this one.

Units: seconds.
"""

import asyncio
from collections import defaultdict
from typing import Final

from gateway.share.fleet import Fleet

_EVERY_S: Final = 10.0  # between look-ups of the name
_ANSWER_S_MAX: Final = 5.0


class FleetSize:
    """Keeps `Fleet.expected` right.

    Args:
        gateways: number of gateways, or the name with their addresses; None if neither is known.
        workers: number of processes of a gateway.
        fleet: the fleet as this process sees it.
        tasks: owner of the task that looks the name up.

    Attributes:
        fleet: as above.
    """

    def __init__(self, gateways: int | str | None, workers: int, fleet: Fleet, tasks: asyncio.TaskGroup) -> None:
        self._name = gateways if isinstance(gateways, str) else None
        self._workers = workers
        self.fleet = fleet
        self._tasks = tasks
        self._following: asyncio.Task[None] | None = None
        if isinstance(gateways, int):
            fleet.expected = gateways * workers

    def start(self) -> None:
        """Look the name up, if there is one, now and then until `close`."""
        if self._name is not None:
            self._following = self._tasks.create_task(self._follow(self._name))

    def close(self) -> None:
        """Stop."""
        if self._following is not None:
            self._following.cancel()

    async def _follow(self, name: str) -> None:
        while True:
            if found := await _addresses(name):
                self.fleet.expected = found * self._workers
            await asyncio.sleep(_EVERY_S)


async def _addresses(name: str) -> int:
    """Return the number of addresses of a name, of the family with the most of them; 0 without an answer."""
    by_family = defaultdict[int, set[str]](set)
    try:
        async with asyncio.timeout(_ANSWER_S_MAX):
            for family, *_, address in await asyncio.get_running_loop().getaddrinfo(name, None):
                by_family[family].add(str(address[0]))
    except (OSError, RuntimeError):  # also a timeout, or no thread for the look-up: the last number holds
        return 0
    return max(map(len, by_family.values()), default=0)
