"""A hot restart that cannot begin; tests/wire has whole ones."""

import asyncio
import logging

import pytest

from gateway.server.hot_restart import HotRestart
from running import run_virtual


@pytest.mark.parametrize("fault", [OSError(11, "no more processes"), RuntimeError("can't start new thread")])
def test_a_restart_that_cannot_begin_ends_nothing(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process goes on, logs the reason, and takes the next signal."""

    async def fail(*_: object) -> None:
        raise fault

    async def prepare() -> None:
        """Do nothing."""

    async def main() -> None:
        monkeypatch.setattr(asyncio, "to_thread", fail)
        async with asyncio.TaskGroup() as tasks:
            restart = HotRestart(tasks, [], prepare, replaced.append)
            for _ in range(2):
                restart._on_signal()
                await asyncio.sleep(1)

    replaced: list[object] = []
    with caplog.at_level(logging.WARNING):
        run_virtual(main())
    assert (len(caplog.messages), replaced) == (2, [])
    assert all(str(fault) in message for message in caplog.messages)
