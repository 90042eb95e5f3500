"""The list of keys of all workers: the supervisor watches the files, and workers fetch what has changed.

A worker asks for the changes since its own state, or for the whole list if it has none, part by part, so that no part
holds a loop for long. It does not serve before it has the list; after that it keeps its keys while the supervisor is
away. Units: seconds.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gateway.config.settings import Settings
from gateway.listed_keys import PARTS, KeyChange, ListedKey, ListedKeys, Parted
from gateway.race.context import Runtime
from gateway.server.key_watch import KeyWatch
from gateway.workers.channel import Channel
from gateway.workers.group import WorkerGroup

METHOD: Final = "keys"
_ROWS_MAX: Final = 2_000  # in a part of a change, about 0.2 MB; a part of the whole list is one of the supervisor's
_CHANGES_MAX: Final = 16  # that are kept; a worker that is further behind fetches the whole list
_AGAIN_S: Final = 1.0
_EPOCHS: Final = 2**53


class KeysAsked(msgspec.Struct):
    """Question for keys.

    Attributes:
        epoch, revision: state of the asking worker; 0 for none.
        part: number of the part of the answer, from 0 on.
    """

    epoch: int = 0
    revision: int = 0
    part: int = 0


class KeysPart(msgspec.Struct):
    """A part of a change.

    Attributes:
        epoch: number of the supervisor that has counted the revisions.
        revision: state after the change.
        newest: newest state.
        is_whole: True if the change contains all keys, so that all others are removed.
        is_last: True for the last part.
        change: rows of the part.
    """

    epoch: int
    revision: int
    newest: int
    is_whole: bool
    is_last: bool
    change: KeyChange


class GroupKeys:
    """The list at the supervisor.

    Args:
        path: file or directory.
        settings: returns the settings in force.
        group: the workers.

    Attributes:
        watch: follows the files.
    """

    def __init__(self, path: Path, settings: Callable[[], Settings], runtime: Runtime, group: WorkerGroup) -> None:
        self.watch = KeyWatch(path, settings, runtime, self._use)
        self._group = group
        group.handlers[METHOD] = self.answer
        self._epoch = 1 + random.Random().randrange(_EPOCHS)
        self._revision = 0
        self._changes: deque[tuple[int, KeyChange]] = deque(maxlen=_CHANGES_MAX)

    async def _use(self, change: KeyChange) -> None:
        self._revision += 1
        self._changes.append((self._revision, change))
        self._group.notify_all(METHOD)

    def answer(self, payload: bytes) -> KeysPart | None:
        """Answer a worker; None while there are no keys."""
        if not self._revision:
            return None
        asked = msgspec.msgpack.decode(payload, type=KeysAsked)
        known = asked.revision if asked.epoch == self._epoch else 0
        wanted = known + 1 if known < self._revision else known
        change = next((each for revision, each in self._changes if revision == wanted and known), None)
        if known == self._revision:
            change = KeyChange()
        if change is None:  # one that is being made is partly in it, and follows as a whole
            rows = list(self.watch.keys.parts[asked.part].values())
            last = asked.part + 1 == PARTS
            return KeysPart(self._epoch, self._revision, self._revision, True, last, KeyChange(rows))
        begin, end = asked.part * _ROWS_MAX, (asked.part + 1) * _ROWS_MAX
        part = KeyChange(change.changed[begin:end], change.removed[begin:end])
        last = end >= max(len(change.changed), len(change.removed))
        return KeysPart(self._epoch, wanted, self._revision, False, last, part)


class WorkerKeys:
    """The list at a worker.

    Args:
        channel: channel to the supervisor.
        table: the keys in use.
    """

    def __init__(self, channel: Channel, table: ListedKeys) -> None:
        self._channel = channel
        self._table = table
        self._epoch = self._revision = 0
        self._changed = asyncio.Event()

    def on_change(self) -> None:
        """Fetch what has changed soon; must also be called when another supervisor is connected."""
        self._changed.set()

    async def begin(self, given_up: asyncio.Event) -> None:
        """Fetch the list before the first request, until it is here or an event is set."""
        while not given_up.is_set() and not await self._fetch():  # noqa: ASYNC110 # it must ask
            await asyncio.sleep(_AGAIN_S)

    async def run(self) -> None:
        """Follow the changes until it is cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self._fetch():
                await asyncio.sleep(_AGAIN_S)
                self._changed.set()

    async def _fetch(self) -> bool:
        """Fetch all changes; return False if the supervisor has not answered."""
        while True:
            part = await self._ask(0)
            if part is None:
                return False
            changed, removed = part.change.changed, part.change.removed
            last, number = part, 0
            while not last.is_last:
                number += 1
                found = await self._ask(number)
                if found is None or (found.epoch, found.revision) != (part.epoch, part.revision):
                    return False  # changed meanwhile: again from the beginning
                changed += found.change.changed
                removed += found.change.removed
                last = found
            if part.is_whole:
                removed = await self._others(changed)
            for _ in self._table.apply(KeyChange(changed, removed)):
                await asyncio.sleep(0)
            self._epoch, self._revision = part.epoch, part.revision
            if part.revision == part.newest:
                return True

    async def _others(self, keys: list[ListedKey]) -> list[str]:
        """Return the names of the keys in use that are not among these."""
        names = Parted[str, None]()
        for number, key in enumerate(keys):
            names[key.name] = None
            if number % _ROWS_MAX == 0:
                await asyncio.sleep(0)
        others = []
        for part in self._table.by_name.parts:
            others += [name for name in part if name not in names]
            await asyncio.sleep(0)
        return others

    async def _ask(self, part: int) -> KeysPart | None:
        answer = await self._channel.ask(METHOD, KeysAsked(self._epoch, self._revision, part))
        return None if answer is None else msgspec.msgpack.decode(answer, type=KeysPart | None)
