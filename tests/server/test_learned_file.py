"""The file of learned state: written whole, read once, and never the reason for a failed request."""

import asyncio
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import gateway.server.learned_file
import gateway.server.learned_state
from defaults import default_timeouts
from gateway.events import Event
from gateway.process_events import LearnedFileFailed, LearnedRestored
from gateway.race.context import Model
from gateway.server.learned_file import LearnedFile
from gateway.server.learned_state import OwnState
from gateway.server.topology import InForce
from gateway_fixture import until
from pooled import pool, send
from running import run_real
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.pool.pool import Pool


class Process:
    """One run of a gateway, as far as it concerns the file."""

    def __init__(self, file: Path | None, contents: int = 0, models: str = "m") -> None:
        self.events: list[Event] = []
        self.pools: dict[str, Pool] = {name: pool(None, None) for name in models}
        for each in self.pools.values():
            self._use(each, contents)
        built = {name: Model(name, [each], default_timeouts()) for name, each in self.pools.items()}
        topology: Any = SimpleNamespace(models=built)
        self.dropped: list[tuple[str, str]] = []

        def drop(name: str, reason: str) -> None:
            self.dropped.append((name, reason))

        state = OwnState(InForce(topology), drop)
        self.learned = LearnedFile(None if file is None else str(file), state, self.events.append, drop)

    @staticmethod
    def _use(used: Pool, contents: int) -> None:
        loop = asyncio.get_running_loop()
        for number in range(contents):
            now_s = loop.time() - 1.0
            attempt = send(used, number % 2, now_s)
            attempt.content_s = now_s + 0.2
            used.on_content(attempt, attempt.content_s)
            used.on_end(attempt, Outcome.FINISHED, attempt.content_s, None)

    @property
    def is_warm(self) -> bool:
        """True if the first request is hedged by learned values."""
        return self.pools["m"].learning.plan("a", asyncio.get_running_loop().time()) is not None


def written(file: Path) -> None:
    """A run that ends after 40 requests."""

    async def main() -> None:
        await Process(file, contents=40).learned.save()

    run_real(main())


def read(file: Path | None) -> tuple[bool, list[Event]]:
    """A later run: True if it was warm, and its events until it has saved."""

    async def main() -> tuple[bool, list[Event]]:
        process = Process(file)
        await process.learned.restore()
        await process.learned.save()
        return process.is_warm, process.events

    return run_real(main())


def test_a_later_run_is_warm(tmp_path: Path) -> None:
    """State goes from run to run through one file that only its owner can read; no other file is left."""
    file = tmp_path / "learned.json"
    written(file)
    is_warm, events = read(file)
    assert is_warm
    [event] = events
    assert isinstance(event, LearnedRestored)
    assert (event.pools, event.cold, event.file) == (1, 0, str(file))
    assert 0 <= event.age_s < 60
    assert [path.name for path in tmp_path.iterdir()] == ["learned.json"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_no_file_and_no_setting_are_a_cold_start_without_a_word(tmp_path: Path) -> None:
    """The first start finds no file, and writes none before there is something to keep."""
    assert read(tmp_path / "learned.json") == (False, [])
    assert read(None) == (False, [])
    assert not list(tmp_path.iterdir())


def changed(**changes: Any) -> Callable[[bytes], bytes]:
    """Changes top-level fields."""
    return lambda content: msgspec.json.encode({**msgspec.json.decode(content), **changes})


@pytest.mark.parametrize(
    ("change", "why", "is_replaced"),
    [
        (lambda content: content[: len(content) // 2], "the file is damaged", True),
        (changed(saved_s=1e10), "the time in the file is in the future", True),
        (lambda content: content[:40] + b"[" * 100_000, "the file is damaged", True),
        (changed(version=0), "the file has version 0 instead of 1", True),
        (changed(version=2, models=[]), "the file has version 2 instead of 1", True),
        (lambda _: b"models: []\n", "the file has other content and is not overwritten", False),
        (changed(format="another"), "the file has other content and is not overwritten", False),
    ],
    ids=["cut", "future", "deep", "older", "newer", "yaml", "json"],
)
def test_a_file_that_cannot_be_used(
    tmp_path: Path, change: Callable[[bytes], bytes], why: str, *, is_replaced: bool
) -> None:
    """It costs one line and a cold start; it is replaced, unless the gateway did not write it."""
    file = tmp_path / "learned.json"
    written(file)
    broken = change(file.read_bytes())
    file.write_bytes(broken)

    async def main() -> None:
        process = Process(file)
        await process.learned.restore()
        assert not process.is_warm
        assert why in str([event.error for event in process.events if isinstance(event, LearnedFileFailed)])
        later = Process(file, contents=40)
        later.learned._is_closed = process.learned._is_closed
        await later.learned.save()

    run_real(main())
    assert (file.read_bytes() != broken) is is_replaced


@pytest.mark.parametrize(
    ("old", "new", "warm", "named"),
    [
        (b'"contents":40', b'"contents":-1', "n", ["pool"]),
        (b'"contents":40', b'"contents":1' + b"0" * 30, "n", ["pool"]),
        (b'"samples":[0-9]+', b'"samples":7', "n", ["pool"]),
        (b'"levels":{[^}]*', b'"levels":{"a":21.0', "n", ["pool"]),
        (b'"age_s":[^,]+', b'"age_s":null', "n", ["pool"]),
        (b'"reports":0', b'"reports":-1', "mn", ["the tokens of m"]),
        (b'{"tokens":', b'{"coins":', "n", ["the model m"]),
    ],
)
def test_a_damaged_part_costs_itself(tmp_path: Path, old: bytes, new: bytes, warm: str, named: list[str]) -> None:
    """It is named, and the state of another model is used; the next file has no damage."""
    file = tmp_path / "learned.json"
    written(file)
    content = msgspec.json.decode(file.read_bytes())
    model = file.read_bytes().partition(b'"models":{"m":')[2].removesuffix(b"}}")
    content["models"] = {
        "m": msgspec.Raw(re.sub(old, new, model, count=1)),
        "n": msgspec.Raw(model),
    }
    file.write_bytes(msgspec.json.encode(content))

    async def main() -> None:
        process = Process(file, models="mn")
        await process.learned.restore()
        now_s = asyncio.get_running_loop().time()
        assert [name for name in "mn" if process.pools[name].learning.plan("a", now_s) is not None] == list(warm)
        assert [name for name, _ in process.dropped] == named
        [event] = process.events
        assert isinstance(event, LearnedRestored)
        assert (event.pools, event.cold) == (len(warm), 2 - len(warm))
        await process.learned.save()

    run_real(main())
    assert read(file)[0] is ("m" in warm)


def test_state_out_of_range_is_not_written(tmp_path: Path) -> None:
    """The pool that has it is left out, and named; levels are written as the nearest ones in range."""
    file = tmp_path / "learned.json"

    async def main() -> None:
        process = Process(file, contents=40, models="mn")
        process.pools["m"].learning.predictor._levels["a"] = 50.0
        await process.learned.save()
        assert not process.dropped
        process.pools["n"].learning._contents = -1
        process.pools["n"].learning.predictor._levels["a"] = math.nan
        await process.learned.save()
        assert [name for name, _ in process.dropped] == ["pool"]

    run_real(main())
    saved = msgspec.json.decode(file.read_bytes())["models"]
    assert saved["m"]["pools"]["pool"]["learning"]["predictor"]["levels"]["a"] == 20.0
    assert saved["n"]["pools"] == {}


def test_an_empty_file_is_no_file(tmp_path: Path) -> None:
    """A file made by hand, or emptied by a crash, is used."""
    file = tmp_path / "learned.json"
    file.touch()
    assert read(file) == (False, [])
    written(file)
    assert read(file)[0]


def test_a_file_over_the_bound_is_neither_read_nor_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is bounded in both directions."""
    file = tmp_path / "learned.json"
    written(file)
    monkeypatch.setattr(gateway.server.learned_file, "_FILE_BYTES_MAX", 500)
    is_warm, events = read(file)
    assert not is_warm
    assert "the file is larger than 500 bytes" in str(events)
    before = file.read_bytes()
    written(file)
    assert file.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("kind", ["folder", "fifo", "absent folder"])
def test_a_path_that_is_no_file(tmp_path: Path, kind: str) -> None:
    """A read or a write that is impossible is logged once, however often it is tried, and blocks nothing."""
    file = tmp_path / "absent" / "learned.json" if kind == "absent folder" else tmp_path / "learned.json"
    if kind == "folder":
        file.mkdir()
    elif kind == "fifo":
        os.mkfifo(file)

    async def main() -> None:
        process = Process(file, contents=40)
        await process.learned.restore()
        await process.learned.save()
        await process.learned.save()
        [event] = process.events
        assert isinstance(event, LearnedFileFailed)
        described = process.learned.describe()
        assert described is not None
        assert described["fault"] == event.error

    run_real(main())


def test_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write without an end is given up, starts no second one, and is reported once; a later write reports success."""
    file = tmp_path / "learned.json"

    async def main() -> None:
        loop = asyncio.get_running_loop()
        hanging: list[asyncio.Future[None]] = []

        def on_thread(_call: object, _name: str) -> asyncio.Future[None]:
            hanging.append(loop.create_future())
            return hanging[-1]

        with monkeypatch.context() as patch:
            patch.setattr(gateway.server.learned_file, "on_thread", on_thread)
            process = Process(file, contents=40)
            await process.learned.save(0.01)
            await process.learned.save(0.01)
            assert len(hanging) == len(process.events) == 1
            assert "the disk does not answer in time" in str(process.events)
            assert [value.value for value in process.learned.values()] == [0.0]
            hanging[0].set_exception(OSError("late"))
        await process.learned.save()
        described = process.learned.describe()
        assert described is not None
        assert described["fault"] is None
        assert [value.value for value in process.learned.values()] == [1.0]
        assert len(process.events) == 1

    run_real(main())
    assert file.exists()


def test_a_bug_in_the_document_costs_the_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the start nor the end of the gateway depends on the document's code; the error is logged once."""
    file = tmp_path / "learned.json"
    written(file)
    monkeypatch.setattr(gateway.server.learned_state, "restore_pool", None)
    monkeypatch.setattr(gateway.server.learned_state, "learned_pool", None)

    async def main() -> None:
        process = Process(file, contents=40)
        await process.learned.restore()
        await process.learned.save()
        await process.learned.save()

    run_real(main())
    assert [record.message for record in caplog.records] == [
        "the learned state could not be restored",
        "the learned state could not be written",
    ]


def test_the_file_is_written_while_the_gateway_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill loses the last half minute at most."""
    monkeypatch.setattr(gateway.server.learned_file, "_SAVE_EVERY_S", 0.001)
    file = tmp_path / "learned.json"

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(Process(file, contents=40).learned.keep())
            await until(file.exists)
            keeping.cancel()

    run_real(main())
    assert read(file)[0]
