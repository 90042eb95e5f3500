"""Changes of settings and switches at workers that do not answer."""

import asyncio
import random

import msgspec
import pytest

from gateway.config.loader import from_replicas
from gateway.observe.dropped import DroppedState
from gateway.process_events import ConfigReloaded
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from gateway.workers.board import Board
from gateway.workers.group import Worker, WorkerGroup
from gateway.workers.messages import Committed, Prepared, Ready, SwitchReplicaDone
from gateway.workers.settings_in_force import GroupSwitches, SettingsInForce
from gateway.workers.tokens import GroupTokens
from running import run_virtual

ANSWERS = {
    "prepare": Prepared(),
    "commit": Committed(ConfigReloaded(0.0, 1, 1, 0, ""), []),
    "switch_hedging": None,
    "switch_replica": SwitchReplicaDone(),
}


class _Channel:
    """A channel to a worker that answers all methods but one."""

    is_open = True

    def __init__(self, silent: str) -> None:
        self.silent = silent
        self.asked: list[str] = []

    async def ask(self, method: str, _payload: object, _deadline_s: float) -> bytes | None:
        self.asked.append(method)
        return None if method == self.silent else msgspec.msgpack.encode(ANSWERS[method])

    def send(self, method: str, _payload: object = None) -> None:
        self.asked.append(method)


@pytest.mark.parametrize("method", ["commit", "switch_hedging", "switch_replica"])
def test_a_worker_without_an_answer_to_a_change_is_renewed(method: str) -> None:
    """It is asked nothing else until it has the settings and switches in force; all others serve on."""

    async def main() -> None:
        loop, again = asyncio.get_running_loop(), list[tuple[Worker, Ready]]()
        runtime = Runtime(loop, lambda _: None, random.Random(1).random, TimerQueue(loop))
        settings = from_replicas("m", ["http://127.0.0.1:9"])
        async with asyncio.TaskGroup() as tasks:
            group = WorkerGroup(
                tasks,
                bool,
                lambda worker, ready: again.append((worker, ready)),
                bool,
                bool,
                bool,
                bool,
                DroppedState(bool, loop.time),
            )
            board, channels = Board(2), [_Channel(method), _Channel("")]
            for number, channel in enumerate(channels):
                worker = Worker(number + 1, 100 + number, board[number])
                worker.channel, worker.revision = channel, 0  # type: ignore[assignment]
                group.workers.append(worker)
                group.serve(worker)
            switches = GroupSwitches(group, lambda: ["m"], bool, bool)
            tokens = GroupTokens(group, tasks, runtime, bool)
            in_force = SettingsInForce(settings, None, group, switches, tokens, runtime, tasks, bool)
            if method == "commit":
                await in_force._use_model(settings, "m")
            elif method == "switch_hedging":
                await switches.switch_hedging("m", on=False)
            else:
                await switches.switch_replica("r", "m", out=True)
            silent, fine = group.workers
            assert (group.ready, silent.revision, again) == ([fine], None, [(silent, Ready(None))])
            channels[0].silent = ""
            assert await in_force.renew(silent)
            assert [each.is_ready for each in group.workers] == [True, True]
            assert channels[0].asked.count("prepare") == 1 + (method == "commit")
            in_force.close()

    run_virtual(main())
