"""The list of keys at workers: the same as at the supervisor after every change, and without a supervisor."""

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.loader import from_replicas
from gateway.listed_keys import PARTS, KeyChange, ListedKey, ListedKeys, Parted, difference
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from gateway.server.key_watch import FirstKeys
from gateway.workers import keys as worker_keys
from gateway.workers.keys import GroupKeys, KeysPart, WorkerKeys
from running import run_virtual


class _Group:
    """A group that counts its notices."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}
        self.notices = 0

    def notify_all(self, _method: str) -> None:
        self.notices += 1


class _Channel:
    """A channel to a supervisor, which may be away.

    Attributes:
        supervisor: answers calls; None while it is away.
        parts: answers, the newest last.
    """

    def __init__(self) -> None:
        self.supervisor: GroupKeys | None = None
        self.parts: deque[KeysPart | None] = deque(maxlen=100)

    async def ask(self, _method: str, payload: object) -> bytes | None:
        await asyncio.sleep(0.01)
        if self.supervisor is None:
            return None
        self.parts.append(self.supervisor.answer(msgspec.msgpack.encode(payload)))
        return msgspec.msgpack.encode(self.parts[-1])


def _keys(*numbers: int) -> Parted[str, ListedKey]:
    return Parted((f"k{number}", ListedKey(f"k{number}", b"%032d" % number)) for number in numbers)


def _has(table: ListedKeys, keys: Parted[str, ListedKey]) -> bool:
    return dict(table.by_name.items()) == dict(keys.items())


def _supervisor(group: _Group) -> GroupKeys:
    loop = asyncio.get_running_loop()
    settings = from_replicas("llama", ["http://127.0.0.1:9"])
    runtime = Runtime(loop, lambda _: None, lambda: 0.5, TimerQueue(loop))
    return GroupKeys(Path("keys"), lambda: settings, runtime, group)  # type: ignore[arg-type]


async def _change(group_keys: GroupKeys, after: Parted[str, ListedKey]) -> None:
    change = difference(group_keys.watch.keys, after)
    group_keys.watch.keys = after
    await group_keys._use(change)


def test_a_worker_follows(monkeypatch: Any) -> None:
    """It begins with all keys, fetches only changes, and has the same keys after each, also with a new supervisor."""
    monkeypatch.setattr(worker_keys, "_ROWS_MAX", 3)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            group, channel, table = _Group(), _Channel(), ListedKeys()
            worker = WorkerKeys(channel, table)  # type: ignore[arg-type]
            beginning = tasks.create_task(worker.begin(asyncio.Event()))
            await asyncio.sleep(3)
            assert not beginning.done()
            channel.supervisor = supervisor = _supervisor(group)
            await asyncio.sleep(3)
            assert not beginning.done()  # it has no keys yet
            await supervisor.watch.begin(FirstKeys((), _keys(*range(10))))
            await beginning
            assert _has(table, _keys(*range(10)))
            assert len([part for part in channel.parts if part]) == PARTS
            running = tasks.create_task(worker.run())
            for after in (_keys(*range(1, 11)), _keys(5), _keys(*range(20))):
                channel.parts.clear()
                await _change(supervisor, after)
                worker.on_change()
                await asyncio.sleep(1)
                assert _has(table, after)
                assert not any(part is not None and part.is_whole for part in channel.parts)
            for number in range(40):  # more changes than are kept
                await _change(supervisor, _keys(number))
            worker.on_change()
            await asyncio.sleep(1)
            assert _has(table, _keys(39))
            channel.supervisor = None
            worker.on_change()
            await asyncio.sleep(5)
            assert _has(table, _keys(39))
            channel.supervisor = other = _supervisor(group)
            await asyncio.sleep(5)
            assert _has(table, _keys(39))  # the list cannot be read: the worker keeps its keys
            await other.watch.begin(FirstKeys((), _keys(1, 2)))
            await asyncio.sleep(5)
            assert _has(table, _keys(1, 2))
            assert group.notices > 40
            running.cancel()

    run_virtual(main())


def test_a_change_during_a_fetch(monkeypatch: Any) -> None:
    """A worker that fetches the whole list while it changes has the list after the change."""
    monkeypatch.setattr(worker_keys, "_ROWS_MAX", 2)

    async def main() -> None:
        channel, table = _Channel(), ListedKeys()
        channel.supervisor = supervisor = _supervisor(_Group())
        await supervisor.watch.begin(FirstKeys((), _keys(*range(9))))
        worker = WorkerKeys(channel, table)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.begin(asyncio.Event()))
            await asyncio.sleep(0.025)
            await _change(supervisor, _keys(3, 4, 50))
        assert _has(table, _keys(3, 4, 50))

    run_virtual(main())


def test_a_worker_compares_lists_in_turns() -> None:
    """It serves meanwhile: the names of a whole list are compared part by part."""

    async def main() -> None:
        table, turns = ListedKeys(), 0
        list(table.apply(difference(Parted(), _keys(*range(1, 100)))))
        worker = WorkerKeys(_Channel(), table)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as tasks:
            comparing = tasks.create_task(worker._others([key for _, key in _keys(*range(50, 120)).items()]))
            while not comparing.done():
                turns += 1
                await asyncio.sleep(0)
        assert sorted(comparing.result()) == sorted(_keys(*range(1, 50)))
        assert turns >= PARTS

    run_virtual(main())


def test_a_worker_that_ends_before_it_has_keys() -> None:
    """It gives up."""

    async def main() -> None:
        given_up = asyncio.Event()
        given_up.set()
        await WorkerKeys(_Channel(), ListedKeys()).begin(given_up)  # type: ignore[arg-type]

    run_virtual(main())


def test_changes_are_messages() -> None:
    """A change survives its encoding."""
    change = KeyChange([key for _, key in _keys(1).items()], ["k2"])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(change), type=KeyChange) == change
