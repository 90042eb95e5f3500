"""The state that a supervisor leaves to the next one."""

import asyncio
import os
import sys
from typing import cast

import pytest

from gateway.config.loader import from_replicas
from gateway.workers.channel import Control
from gateway.workers.group_state import StateKeeper, in_memory, read_state
from gateway.workers.messages import GroupState, ToSupervisor, ToTop
from gateway.workers.packing import Packer
from running import run_virtual

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")

SETTINGS = Packer().of(from_replicas("m", ["http://127.0.0.1:9"]))
STATE = GroupState(SETTINGS, {"m": False}, [("m", "a")], [], [b"counts"], 3)


class _Top:
    """A control that does not take the first message."""

    def __init__(self) -> None:
        self.rejects = 1
        self.states: list[int] = []

    def send(self, message: ToTop, descriptors: list[int]) -> bool:
        assert message.is_state
        if self.rejects:
            self.rejects -= 1
            return False
        self.states.append(os.dup(descriptors[0]))
        return True


def test_a_state_is_read_as_it_was_written() -> None:
    """Any process that has the descriptor can read it, from the beginning."""
    descriptor = in_memory(STATE)
    assert read_state(os.dup(descriptor)) == read_state(descriptor) == STATE


def test_a_python_without_files_in_memory_has_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The builds of python-build-standalone, which uv installs, have no `memfd_create`."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    descriptor = in_memory(STATE)
    assert os.fstat(descriptor).st_nlink == 0
    assert read_state(descriptor) == STATE


def test_a_state_is_given_once_for_many_changes_and_again_after_a_failure() -> None:
    """Nothing is given before the start; what was not taken is given again."""
    top = _Top()

    async def main() -> None:
        keeper = StateKeeper(cast("Control[ToSupervisor]", top), lambda: STATE)
        keeper.changed()
        await asyncio.sleep(0)
        assert top.rejects == 1
        keeper.start()
        keeper.changed()
        await asyncio.sleep(0)
        assert top.states == []
        keeper.send()
        keeper.send()

    run_virtual(main())
    assert [read_state(descriptor) for descriptor in top.states] == [STATE]
