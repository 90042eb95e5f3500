"""The supervisor: answers on the admin address for all workers, changes their settings, and adds up what they share.

It serves no request itself, and has no pool and no upstream; while it is away, the workers accept and serve. The top
process forks the workers, passes on signals, and replaces a supervisor that ends or hangs: the next one carries on with
the same workers, settings and switches. Units: seconds.
"""

import asyncio
import logging
import math
import random
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gateway.config.errors import ConfigError
from gateway.config.settings import Settings
from gateway.config.values import Address
from gateway.errors import ReloadFailed
from gateway.health.watch import Watch
from gateway.observe.feed import Feed
from gateway.observe.hub import Observers
from gateway.observe.logs import epoch_of
from gateway.observe.process import Member
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from gateway.server.admin import Admin, Controls
from gateway.server.admin_address import AdminAddress
from gateway.server.http_server import freeze_startup_objects, name_of
from gateway.server.key_watch import FirstKeys, first_keys
from gateway.server.learned_file import LearnedFile
from gateway.server.learned_state import Restored
from gateway.server.notify import READY, STOPPING, reloading
from gateway.server.process import DRAIN_ERROR_FLUSH_S, READINESS_LEAD_S, Addresses, ExitReport
from gateway.server.reloads import Reread
from gateway.version import VERSION
from gateway.workers.board import SUPERVISOR, Board
from gateway.workers.channel import Control
from gateway.workers.group import Worker, WorkerGroup
from gateway.workers.group_state import StateKeeper
from gateway.workers.group_view import GroupView
from gateway.workers.keys import GroupKeys
from gateway.workers.merging import merged_learned
from gateway.workers.messages import (
    Begin,
    GroupState,
    Ready,
    SwitchHedging,
    TokenRejected,
    ToSupervisor,
    ToTop,
)
from gateway.workers.settings_in_force import GroupSwitches, SettingsInForce
from gateway.workers.tokens import GroupTokens
from ttft_gateway.pool.learned import LearnedModel

_START_S_MAX: Final = 60.0  # until all workers serve
_LAST_S: Final = 3.0  # for the last messages of the workers
_SWEEP_S: Final = 1.0


class StartFailed(Exception):
    """The gateway cannot start; the message contains the reason."""


class Given(NamedTuple):
    """Sockets, memory and place that the supervisor inherits from the top process.

    Attributes:
        member: place of the supervisor; its number is None.
        public: public address, on which the workers listen.
        admin: listening socket of the admin address; None if it is off.
        control: socket to the top process.
        board: beats and connections of all processes.
        state: state of the supervisor before this one; None for the first one.
        has_next: see `Control`.
    """

    member: Member
    public: Address
    admin: socket.socket | None
    control: socket.socket
    board: Board
    state: GroupState | None
    has_next: Callable[[], bool] | None


async def supervise(
    settings: Settings,
    given: Given,
    on_ready: Callable[[Addresses], None],
    background: Callable[[Addresses], Coroutine[object, object, None]],
    reread: Reread | None,
) -> ExitReport:
    """Run the supervisor until the gateway stops.

    Args:
        on_ready: called once when all workers serve, in the first supervisor.
        background: started after that, and cancelled by the first signal.
        reread: reads the settings again for a reload; None if there is no file.

    Raises:
        StartFailed: a worker does not become ready.
    """
    addresses = Addresses(given.public, None if given.admin is None else name_of(given.admin))
    first: FirstKeys | None = None
    try:
        first = None if settings.keys_from is None else await asyncio.to_thread(first_keys, settings)
    except ConfigError as error:
        if given.state is None:
            raise StartFailed(str(error)) from None
        # workers have their keys; the watch reports the fault
    fault: StartFailed | None = None
    report = ExitReport(0, None)
    async with asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(given.board[SUPERVISOR].keep_beating())
        supervisor = Supervisor(settings, given, tasks, reread)
        try:
            await supervisor.start(first)
            if given.state is None:
                on_ready(addresses)
            report = await supervisor.run(tasks.create_task(background(addresses)))
        except StartFailed as error:
            fault = error
        await supervisor.close()
        beating.cancel()
    if fault is not None:
        raise fault
    return report


class Supervisor:
    """The running supervisor.

    Args:
        tasks: owner of every long-lived task.
    """

    def __init__(self, settings: Settings, given: Given, tasks: asyncio.TaskGroup, reread: Reread | None) -> None:
        self._given = given
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._observers = Observers(self._loop, VERSION, given.member)
        emit = self._observers.hub.emit_now
        metrics = self._observers.metrics()
        self._signals: asyncio.Queue[signal.Signals | None] = asyncio.Queue(4)  # None: the top process has ended
        self._changed = asyncio.Event()
        self._feed = Feed(self._on_feed)
        self._group = WorkerGroup(
            tasks,
            emit,
            self._on_worker,
            self._on_change,
            self._feed.put,
            self._on_switch,
            self._on_rejected_token,
            self._observers.dropped,
        )
        runtime = Runtime(self._loop, emit, random.Random().random, TimerQueue(self._loop))
        self._control = Control(given.control, ToSupervisor, self._on_message, self._put_signal, given.has_next)
        self._state = StateKeeper(self._control, self._read_state)
        self._switches = GroupSwitches(self._group, self._model_names, emit, self._state.changed)
        self._tokens = GroupTokens(self._group, tasks, runtime, self._state.changed)
        self._in_force = SettingsInForce(
            settings, reread, self._group, self._switches, self._tokens, runtime, tasks, self._state.changed
        )
        self._keys: GroupKeys | None = None
        if settings.keys_from is not None:
            self._keys = GroupKeys(Path(settings.keys_from), self._settings, runtime, self._group)
            self._observers.values.append(self._keys.watch.values)
            self._in_force.keys = self._keys.watch
        self._begun: dict[str, LearnedModel] = {}  # the state of the file, until all have begun
        self._begun_age_s = 0.0
        self._start_fault: str | None = None
        self._started = asyncio.Event()
        self._reported = False
        self._learned = LearnedFile(
            settings.learned_file, self, self._observers.hub.emit, self._observers.dropped.of("learned_file")
        )
        self._observers.values += [self._learned.values, self._tokens.keepers.values]
        view = GroupView(
            self._group,
            metrics,
            self._observers.process_values,
            self._model_names,
            self._learned.describe,
            self._in_force.discovered,
            lambda collect: Watch(collect, emit, self._loop.time, epoch_of(self._loop.time)),
            given.member.workers,
        )
        self._watch = view.watch
        self._observers.hub.collectors.append(view.watch.on_events)
        self._observers.values.append(view.watch.values)
        controls = Controls(
            self._switches.switch_hedging, self._switches.switch_replica, self._in_force.reload, self._describe_workers
        )
        self._admin: AdminAddress | None = None
        if given.admin is not None:
            self._admin = AdminAddress(
                given.admin,
                lambda: Admin(view, controls, self._settings, self._feed),
                tasks,
                runtime,
                self._observers.hub,
            )
        self._background: list[asyncio.Task[None]] = []

    async def start(self, first: FirstKeys | None) -> None:
        """Wait until all workers serve, and serve the admin address.

        Args:
            first: keys of the list; None without a list, or if it cannot be used.

        Raises:
            StartFailed: a worker does not become ready.
        """
        if self._keys is not None and first is not None:
            await self._keys.watch.begin(first)
        if self._given.state is None:
            await self._in_force.discover()
            await self._learned.restore()
            self._control.start()
            await self._all_ready()
            self._begun = {}
        else:
            self._carry_on(self._given.state)
            self._control.start()
        self._started.set()
        freeze_startup_objects()
        for running in (self._sweep(), self._group.keep_counts(), self._learned.keep(), self._watch.run()):
            self._background.append(self._tasks.create_task(running))
        if self._keys is not None:
            self._background.append(self._tasks.create_task(self._keys.watch.run()))
        self._in_force.follow()
        self._group.open()
        if self._admin is not None:
            self._admin.start()
        self._state.start()
        self._control.send(ToTop(notify=READY))

    async def _all_ready(self) -> None:
        """Wait until all workers can serve.

        Raises:
            StartFailed: a worker does not become ready.
        """
        workers = self._given.member.workers
        try:
            async with asyncio.timeout(_START_S_MAX):
                while len(self._group.ready) < workers and self._start_fault is None and self._signals.empty():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            ready = {worker.number for worker in self._group.ready}
            late = min(set(range(1, workers + 1)) - ready)
            self._start_fault = f"worker {late} is not ready after {_START_S_MAX:g} s"
        if self._start_fault is not None:
            raise StartFailed(self._start_fault)

    def _carry_on(self, state: GroupState) -> None:
        """Begin where the supervisor before this one has ended; workers report themselves."""
        self._switches.restore(state.hedging, state.out)
        self._tokens.restore(state.tokens)
        self._group.carry_on(state.dead, state.restarts)
        self._watch.note_end("the supervisor", "standard error has the reason")
        self._in_force.carry_on(*state.settings.unpacked())
        self._background.append(self._tasks.create_task(self._in_force.fetch_tokens()))

    def _read_state(self) -> GroupState:
        """Return what the next supervisor would need."""
        return GroupState(
            self._in_force.packed,
            self._switches.hedging,
            self._switches.out,
            self._tokens.changes,
            self._group.counts_of_dead,
            self._group.restarts,
        )

    async def run(self, background: asyncio.Task[None]) -> ExitReport:
        """Serve until a signal stops the gateway, or the top process has ended."""
        first = await self._signals.get()
        background.cancel()
        drain_s = self._settings().drain_timeout_s + DRAIN_ERROR_FLUSH_S + READINESS_LEAD_S + _LAST_S
        is_replaced = first is signal.SIGUSR2
        self._control.send(ToTop(notify="" if is_replaced else STOPPING, stopping_s=drain_s))
        self._group.is_stopping = True
        draining = self._tasks.create_task(self._drain(first))
        second = self._tasks.create_task(self._next_signal())
        await asyncio.wait([draining, second], return_when=asyncio.FIRST_COMPLETED)
        stopped: signal.Signals | None = None
        if not draining.done():
            draining.cancel()
            stopped = second.result()
            self._group.notify_all("end")
            await self._all_ended(_LAST_S)
        second.cancel()
        await self._learned.save()
        return ExitReport(self._group.cut, stopped)

    async def close(self) -> None:
        """End everything that is left; the top process ends workers that are."""
        for task in self._background:
            task.cancel()
        self._in_force.close()
        self._tokens.keepers.close()
        self._control.close()
        for worker in tuple(self._group.workers):
            worker.channel.close()
        if self._admin is not None:
            await self._admin.close()
        self._observers.close()

    # learned state, as the file needs it

    async def collect(self) -> dict[str, LearnedModel]:
        """Return the state of all workers, and of workers that have ended while the gateway stops."""
        answers = await self._group.read_parts("learned", dict[str, LearnedModel])
        states = [{name: model for part in parts for name, model in part.items()} for _, parts in answers]
        return merged_learned([*states, *self._group.learned])

    def restore(self, models: Mapping[str, LearnedModel], elapsed_s: float) -> Restored | None:
        """Store a state for the workers; the first of them reports what it has restored."""
        self._begun, self._begun_age_s = dict(models), elapsed_s
        return None

    async def _begin(self, worker: Worker) -> Begin:
        """Return what a new worker needs; a replacement begins with what the other ones have learned."""
        learned, age_s = self._begun, self._begun_age_s
        if self._started.is_set():
            learned, age_s = await self.collect(), 0.0
        worker.revision = self._revision
        return Begin(
            self._in_force.packed,
            self._switches.off,
            self._switches.out,
            learned,
            age_s,
            self._feed.is_used,
            self._tokens.changes,
        )

    # the top process and the workers

    def _on_message(self, message: ToSupervisor, descriptors: list[int]) -> None:
        if message.worker:
            [descriptor] = descriptors
            slot = self._given.board[message.worker]
            messages = socket.socket(fileno=descriptor)
            self._tasks.create_task(self._group.add(message.worker, message.process, slot, messages, self._begin))
        elif message.hung:
            self._group.on_hung(message.hung)
        elif message.answers:
            self._group.on_answers(message.answers)
        elif message.ended:
            self._group.on_process_end(message.ended, message.reason)
            if not self._started.is_set():
                self._start_fault = f"a worker has ended before it was ready: {message.reason}; see the messages above"
                self._changed.set()
        elif message.is_replaced:
            self._put_signal(signal.SIGUSR2)
        elif message.signal == signal.SIGUSR2:
            self._tasks.create_task(self._learned.save())
        elif message.signal == signal.SIGHUP:
            self._tasks.create_task(self._reload_by_signal())
        else:
            self._put_signal(signal.Signals(message.signal))

    def _put_signal(self, number: signal.Signals | None) -> None:
        if not self._signals.full():
            self._signals.put_nowait(number)
        self._changed.set()

    async def _next_signal(self) -> signal.Signals:
        """Wait for a signal; the end of the top process is none."""
        number = None
        while number is None:
            number = await self._signals.get()
        return number

    @property
    def _revision(self) -> int:
        """Number of changes; a worker that has begun before a change would miss it."""
        return self._in_force.revision + self._switches.revision

    def _on_worker(self, worker: Worker, ready: Ready) -> None:
        """Use a worker that can serve; end it after a switch or a reload while it began."""
        if worker.revision is None:
            self._tasks.create_task(self._renew(worker))
            return
        if worker.revision != self._revision:
            worker.channel.send("end")
            return
        self._use(worker)
        self._group.serve(worker)
        if ready.restored is not None and not self._reported and not self._started.is_set():
            self._reported = True
            self._learned.report(ready.restored, self._begun_age_s)

    async def _renew(self, worker: Worker) -> None:
        """Use a worker that may have missed changes; end it if it cannot take them."""
        self._use(worker)
        if not await self._in_force.renew(worker):
            worker.channel.send("end")

    def _use(self, worker: Worker) -> None:
        self._control.send(ToTop(ready=worker.process))
        worker.channel.send("feed", self._feed.is_used)
        self._tokens.send(worker)

    def _settings(self) -> Settings:
        return self._in_force.settings

    def _model_names(self) -> list[str]:
        return [model.name for model in self._settings().models]

    def _on_change(self) -> None:
        self._changed.set()
        self._state.changed()

    def _on_switch(self, switch: SwitchHedging) -> None:
        self._switches.on_switch(switch)

    def _on_rejected_token(self, rejected: TokenRejected) -> None:
        self._tokens.on_rejected(rejected)

    def _on_feed(self) -> None:
        self._group.notify("feed", self._feed.is_used)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._state.send()

    async def _reload_by_signal(self) -> None:
        await self._started.wait()
        self._control.send(ToTop(notify=reloading()))
        try:
            await self._in_force.reload()
        except ReloadFailed:  # the log contains the reason
            pass
        finally:
            self._control.send(ToTop(notify=READY))

    # the end

    async def _drain(self, first: signal.Signals | None) -> None:
        """Let every worker finish its requests."""
        if first is signal.SIGUSR2:  # a new gateway has the addresses, and is ready
            self._learned.stop()
            self._group.notify_all("replaced")
        else:
            self._group.notify_all("drain")
        if first in (signal.SIGTERM, signal.SIGUSR2):
            await asyncio.sleep(READINESS_LEAD_S)
        if self._admin is not None:
            self._admin.stop_listening()
        self._group.notify_all("finish")
        self._control.send(ToTop(is_closed=True))
        await self._all_ended(self._settings().drain_timeout_s + DRAIN_ERROR_FLUSH_S + _LAST_S)

    async def _all_ended(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while self._group.workers:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            late = ", ".join(str(worker.number) for worker in self._group.workers)
            logging.getLogger(__name__).warning("workers %s have not ended in time", late)

    def _describe_workers(self) -> dict[str, object]:
        now_s = self._loop.time()
        shown = [
            {
                "worker": worker.number,
                "process": worker.process,
                "ready": worker.is_ready,
                "ready_s": None if worker.ready_s is None else round(now_s - worker.ready_s, 3),
                "connections": 0 if math.isinf(worker.slot.open) else worker.slot.open,
                "connections_total": worker.slot.accepted,
            }
            for worker in sorted(self._group.workers, key=lambda worker: worker.number)
        ]
        return {"workers": shown, "configured": self._given.member.workers, "restarts": self._group.restarts}
