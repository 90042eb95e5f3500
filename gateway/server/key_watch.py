"""Watches the keys that `keys_from` names, and puts changes in force.

The files are looked at every second, and read on a daemon thread, so that neither a hanging disk nor a long list delays
the loop. A list that cannot be used changes nothing: the last keys stay in force, and an event, the verdict and a
metric report it. A list that lacks most of the keys is used only if it stays as it is for some seconds: a file that is
written in place is short for a moment.

Units: seconds.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Container, Iterator
from pathlib import Path
from typing import Final, NamedTuple, cast

from gateway.config.errors import ConfigError
from gateway.config.key_list import key_files, read_keys
from gateway.config.settings import Settings
from gateway.errors import ReloadFailed
from gateway.listed_keys import KeyChange, ListedKey, Parted, difference
from gateway.observe.process import ProcessValue
from gateway.process_events import KeysChanged
from gateway.race.context import Runtime
from gateway.server.daemon_thread import Hanging, SlowCalls

_LOOK_S: Final = 1.0
_SETTLED_S: Final = 0.1  # a file that is being written changes again within this time
_DOUBT_S: Final = 5.0  # for a list without most of the keys
_READ_S_MAX: Final = 60.0  # a hundred thousand keys take a second
_ERROR_CHARS_MAX: Final = 500
_SLICE: Final = 2_000  # keys that change between two turns of the event loop, less than 1 ms

_State = tuple[tuple[str, int, int, int], ...]


class _Read(NamedTuple):
    """A list that was read.

    Attributes:
        change: change from the keys in force.
        is_short: True if it lacks most of these.
    """

    change: KeyChange
    is_short: bool


class FirstKeys(NamedTuple):
    """The list at the start, and the state of its files."""

    state: _State
    keys: Parted[str, ListedKey]


def first_keys(settings: Settings) -> FirstKeys:
    """Read the list that settings name, before the first request; runs on a thread.

    Raises:
        ConfigError: it cannot be used.
    """
    assert settings.keys_from is not None
    path, state = Path(settings.keys_from), cast("_State", ())
    with contextlib.suppress(OSError):  # reading has the reason
        state = _look(path)
    return FirstKeys(state, read_keys(path, settings))


def check_names(settings: Settings, keys: Container[str]) -> None:
    """Check that no key of the settings has the name of a listed one.

    Raises:
        ReloadFailed: one has.
    """
    for key in settings.keys:
        if key.name in keys:
            raise ReloadFailed(f"key {key.name} is also in the list of `keys_from`; give it another name")


class KeyWatch:
    """The list of keys of one gateway.

    Args:
        path: file or directory.
        settings: returns the settings in force, with which the list must agree.
        runtime: clock and receiver of events.
        use: puts a change in force.

    Attributes:
        keys: the keys in force; they change in place.
        fault: why the list as it is now is not in force; None if it is.
    """

    def __init__(
        self,
        path: Path,
        settings: Callable[[], Settings],
        runtime: Runtime,
        use: Callable[[KeyChange], Awaitable[object]],
    ) -> None:
        self._path = path
        self._settings = settings
        self._runtime = runtime
        self._use = use
        self._calls = SlowCalls("read keys", _READ_S_MAX)
        self._state: _State = ()  # of the files when they were read
        self.keys = Parted[str, ListedKey]()
        self.fault: str | None = None

    async def begin(self, first: FirstKeys) -> None:
        """Put the first keys in force."""
        self._state, self.keys = first.state, first.keys
        await self._use(difference(Parted(), first.keys))

    async def run(self) -> None:
        """Follow the files until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            fault: str | None
            try:
                fault = await self._follow()
            except ConfigError as error:
                fault = str(error)[:_ERROR_CHARS_MAX]
            except FileNotFoundError:
                fault, self._state = f"{self._path} does not exist", ()
            except (OSError, Hanging) as error:
                fault, self._state = f"{self._path} cannot be read: {error}", ()
            except Exception as error:  # noqa: BLE001 # a bug must not stop the watch
                self._runtime.report("keys", error)
                fault, self._state = "the keys could not be read because of an internal error", ()
            if fault != self.fault:
                self.fault = fault
                self._emit(KeyChange(), fault)

    def values(self) -> Iterator[ProcessValue]:
        """Yield the metrics."""
        return key_values(up=self.fault is None, count=len(self.keys))

    async def _follow(self) -> str | None:
        """Use the list if it has changed; return why it is not in force, None if it is.

        Raises:
            ConfigError: it cannot be used.
        """
        state = await self._calls.run(lambda: _look(self._path))
        if state == self._state:
            return self.fault
        try:
            read = await self._calls.run(self._read)
        except ConfigError:
            if await self._is_changing(state, _SETTLED_S):
                return self.fault
            self._state = state
            raise
        if read.is_short and await self._is_changing(state, _DOUBT_S):
            return self.fault
        self._state = state
        await self._put(read)
        return None

    async def _is_changing(self, state: _State, for_s: float) -> bool:
        """Return True if the files change again within a time: they are being written."""
        await asyncio.sleep(for_s)
        return await self._calls.run(lambda: _look(self._path)) != state

    def _read(self) -> _Read:
        """Read the list; runs on a thread."""
        found = read_keys(self._path, self._settings())
        change = difference(self.keys, found)
        found.clear()  # freed at once, it would hold the interpreter's lock for long
        return _Read(change, is_short=2 * len(change.removed) > len(self.keys))

    async def _put(self, read: _Read) -> None:
        for number, name in enumerate(read.change.removed, 1):
            self.keys.pop(name)
            await _turn(number)
        for number, key in enumerate(read.change.changed, 1):
            self.keys[key.name] = key
            await _turn(number)
        await self._use(read.change)
        self.fault = None
        self._emit(read.change, None)

    def _emit(self, change: KeyChange, fault: str | None) -> None:
        now_s, changed, removed = self._runtime.loop.time(), len(change.changed), len(change.removed)
        self._runtime.emit(KeysChanged(now_s, str(self._path), len(self.keys), changed, removed, fault))


async def _turn(number: int) -> None:
    """Return to the event loop after each slice of keys."""
    if number % _SLICE == 0:
        await asyncio.sleep(0)


def key_values(*, up: bool, count: int) -> Iterator[ProcessValue]:
    """Yield the metrics of a list."""
    yield ProcessValue("ttft_gateway_keys_up", "1 if the list of keys is in force", "gauge", float(up))
    yield ProcessValue("ttft_gateway_keys", "Keys of the list in force", "gauge", float(count))


def _look(path: Path) -> _State:
    """Return what changes with the content of the files; runs on a thread."""
    stats = ((each.name, each.stat()) for each in key_files(path))
    return tuple((name, found.st_mtime_ns, found.st_size, found.st_ino) for name, found in stats)
