"""The supervisor: accepts connections and passes them to the workers, and answers on the admin address for all of them.

It serves no request itself, and has no pool and no upstream. The top process forks the workers, and passes on signals.
A configuration is read once here, prepared by every worker, and used by all or by none. Units: seconds.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Final, NamedTuple

import msgspec

from gateway import errors
from gateway.admin import Admin, Controls, Reach
from gateway.api.acceptor import Acceptor
from gateway.api.hosts import HostCheck
from gateway.config.settings import Settings
from gateway.errors import ReloadFailed
from gateway.http_server import HttpServer, accept_from, freeze_startup_objects, name_of, waiting_connections
from gateway.learned_file import LearnedFile
from gateway.learned_state import Restored
from gateway.notify import READY, STOPPING, reloading
from gateway.observe.feed import Feed
from gateway.observe.observers import Observers
from gateway.observe.process import Member
from gateway.pool.learned import LearnedModel
from gateway.process_events import AcceptingChanged, ConfigReloaded, HedgingSwitched, ReplicaSwitched
from gateway.reloads import Reread, check_reload, read_again, reload_fault
from gateway.server import DRAIN_ERROR_FLUSH_S, READINESS_LEAD_S, Addresses, ExitReport
from gateway.version import gateway_version
from gateway.workers.control import Control
from gateway.workers.group import CALL_S_MAX, Worker, WorkerGroup
from gateway.workers.group_view import GroupView
from gateway.workers.learned import merged_learned
from gateway.workers.messages import (
    Begin,
    Committed,
    Prepared,
    Ready,
    SwitchHedging,
    SwitchReplica,
    SwitchReplicaDone,
    ToSupervisor,
    ToTop,
    packed,
)

_START_S_MAX: Final = 60.0  # until all workers serve
_PREPARE_S_MAX: Final = 10.0  # for building what the settings describe
_LAST_S: Final = 3.0  # for the last messages of the workers
_SWEEP_S: Final = 1.0
_VERSION: Final = gateway_version()  # reads a file, so not on the loop


class StartFailed(Exception):
    """The gateway cannot start; the message contains the reason."""


class Given(NamedTuple):
    """Sockets and place that the supervisor inherits from the top process.

    Attributes:
        member: place of the supervisor; its number is None.
        listen: listening socket of the public address.
        admin: listening socket of the admin address; None if it is off.
        control: socket to the top process.
    """

    member: Member
    listen: socket.socket
    admin: socket.socket | None
    control: socket.socket


async def supervise(
    settings: Settings,
    given: Given,
    on_ready: Callable[[Addresses], None],
    meanwhile: Callable[[Addresses], Coroutine[object, object, None]],
    reread: Reread | None,
) -> ExitReport:
    """Run the supervisor until the gateway stops.

    Args:
        on_ready: called once when all workers serve.
        meanwhile: started after on_ready, and cancelled by the first signal.
        reread: reads the settings again for a reload; None if there is no file.

    Raises:
        StartFailed: a worker does not become ready.
    """
    addresses = Addresses(name_of(given.listen), None if given.admin is None else name_of(given.admin))
    fault: StartFailed | None = None
    report = ExitReport(0, None)
    async with asyncio.TaskGroup() as tasks:
        supervisor = Supervisor(settings, given, tasks, reread)
        try:
            await supervisor.start()
            on_ready(addresses)
            report = await supervisor.run(tasks.create_task(meanwhile(addresses)))
        except StartFailed as error:
            fault = error
        await supervisor.close()
    if fault is not None:
        raise fault
    return report


class Supervisor:
    """The running supervisor.

    Args:
        tasks: owner of every long-lived task.
    """

    def __init__(self, settings: Settings, given: Given, tasks: asyncio.TaskGroup, reread: Reread | None) -> None:
        self._settings = settings
        self._given = given
        self._tasks = tasks
        self._reread = reread
        self._loop = asyncio.get_running_loop()
        self._observers = Observers(self._loop, _VERSION, given.member)
        self._hub = self._observers.hub
        metrics = self._observers.metrics()
        self._signals: asyncio.Queue[signal.Signals | None] = asyncio.Queue(4)  # None: the top process has ended
        self._changed = asyncio.Event()
        self._feed = Feed(self._on_feed)
        self.group = WorkerGroup(tasks, self._hub.emit_now, self._on_worker, self._on_change, self._feed.put)
        self._hub.listeners.append(self._feed.on_event)
        self._control = Control(given.control, self._on_message, lambda: self._put_signal(None))
        self._hedging: dict[str, bool] = {}  # of models that were switched
        self._out: set[tuple[str, str]] = set()  # models and replicas
        self._reloading = asyncio.Lock()
        self._begun: dict[str, LearnedModel] = {}  # the state of the file, until all have begun
        self._begun_age_s = 0.0
        self._start_fault: str | None = None
        self._started = asyncio.Event()
        self._revision = 0  # of what workers begin with, except the learned state
        self._reported = False
        self._learned = LearnedFile(settings.learned_file, self, self._hub.emit)
        self._view = GroupView(
            self.group, metrics, self._observers.process_values, self._model_names, self._learned.describe
        )
        self._waiting = waiting_connections()
        self._is_accepting = False
        self._is_closed = False
        self._acceptor = Acceptor(
            given.listen,
            self._take,
            self._waiting.accepted_max,
            lambda: None,
            self._on_accepting(name_of(given.listen)),
        )
        self._background: list[asyncio.Task[None]] = []
        self._admin_server: HttpServer | None = None
        self._admin_running: asyncio.Task[None] | None = None
        self._admin: Admin | None = None

    async def start(self) -> None:
        """Wait until all workers and the admin address serve.

        Raises:
            StartFailed: a worker does not become ready.
        """
        await self._learned.restore()
        self._control.start()
        if self._given.admin is not None:
            await self._start_admin(self._given.admin)
        workers = self._given.member.workers
        try:
            async with asyncio.timeout(_START_S_MAX):
                while len(self.group.ready) < workers and self._start_fault is None and self._signals.empty():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            ready = {worker.number for worker in self.group.ready}
            late = min(set(range(1, workers + 1)) - ready)
            self._start_fault = f"worker {late} is not ready after {_START_S_MAX:g} s"
        if self._start_fault is not None:
            raise StartFailed(self._start_fault)
        self._started.set()
        self._begun = {}
        freeze_startup_objects()
        for running in (self._sweep(), self.group.watch(), self._learned.keep()):
            self._background.append(self._tasks.create_task(running))
        self._set_accepting()
        if self._admin_server is not None:
            self._admin_server.acceptor.start()
        self._control.send(ToTop(notify=READY))

    async def run(self, background: asyncio.Task[None]) -> ExitReport:
        """Serve until a signal stops the gateway, or the top process has ended."""
        first = await self._signals.get()
        background.cancel()
        drain_s = self._settings.drain_timeout_s + DRAIN_ERROR_FLUSH_S + READINESS_LEAD_S + _LAST_S
        self._control.send(ToTop(notify=STOPPING, stopping_s=drain_s))
        self.group.is_stopping = True
        draining = self._tasks.create_task(self._drain(patient=first is not signal.SIGINT))
        second = self._tasks.create_task(self._next_signal())
        await asyncio.wait([draining, second], return_when=asyncio.FIRST_COMPLETED)
        stopped: signal.Signals | None = None
        if not draining.done():
            draining.cancel()
            stopped = second.result()
            self.group.notify("end")
            await self._all_ended(_LAST_S)
        second.cancel()
        await self._learned.save()
        return ExitReport(self.group.cut, stopped)

    async def close(self) -> None:
        """End everything that is left; workers then end by themselves."""
        for task in self._background:
            task.cancel()
        self._control.close()
        self._stop_listening()
        self.group.close_held()
        for worker in tuple(self.group.workers):
            worker.channel.close()
        await self._end_admin()
        self._observers.close()

    # learned state, as the file needs it

    async def collect(self) -> dict[str, LearnedModel]:
        """Return the state of all workers, and of those that have ended while the gateway stops."""
        answers = await self.group.ask("learned")
        states = [msgspec.msgpack.decode(answer, type=dict[str, LearnedModel]) for _, answer in answers if answer]
        return merged_learned([*states, *self.group.learned])

    def restore(self, models: Mapping[str, LearnedModel], elapsed_s: float) -> Restored | None:
        """Keep a state for the workers; the first of them reports what it has restored."""
        self._begun, self._begun_age_s = dict(models), elapsed_s
        return None

    async def _begin(self, worker: Worker) -> Begin:
        """Return what a new worker needs; a replacement begins with what the other ones have learned."""
        learned, age_s = self._begun, self._begun_age_s
        if self._started.is_set():
            learned, age_s = await self.collect(), 0.0
        worker.revision = self._revision
        return Begin(
            packed(self._settings),
            [model for model, on in self._hedging.items() if not on],
            sorted(self._out),
            learned,
            age_s,
            self._feed.is_used,
        )

    # the top process and the workers

    def _on_message(self, message: ToSupervisor, sockets: list[socket.socket]) -> None:
        if message.worker:
            messages, connections = sockets
            self._tasks.create_task(self.group.add(message.worker, message.process, messages, connections, self._begin))
        elif message.ended:
            self.group.on_process_end(message.ended, message.reason)
            if not self._started.is_set():
                self._start_fault = f"a worker has ended before it was ready: {message.reason}; see the messages above"
                self._changed.set()
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

    def _on_worker(self, worker: Worker, ready: Ready) -> bool:
        """Report a worker that can serve; return False after a switch or a reload while it began."""
        if worker.revision != self._revision:
            return False
        self._control.send(ToTop(ready=worker.process))
        worker.channel.send("feed", self._feed.is_used)
        if ready.restored is not None and not self._reported and not self._started.is_set():
            self._reported = True
            self._learned.report(ready.restored, self._begun_age_s)
        return True

    def _model_names(self) -> list[str]:
        return [model.name for model in self._settings.models]

    def _on_change(self) -> None:
        self._changed.set()
        self._set_accepting()

    def _on_feed(self) -> None:
        self.group.notify("feed", self._feed.is_used)

    # connections

    def _take(self, connection: socket.socket) -> None:
        self.group.take(connection)
        self._set_accepting()

    def _set_accepting(self) -> None:
        """Accept while a worker can take connections; the system keeps those that wait for that."""
        wanted = self._started.is_set() and not self._is_closed and self.group.has_room
        if wanted is not self._is_accepting:
            self._is_accepting = wanted
            if wanted:
                self._acceptor.start()
            else:
                self._acceptor.close()

    def _stop_listening(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._is_accepting = False
            self._acceptor.close()
            self._given.listen.close()

    def _on_accepting(self, address: object) -> Callable[[OSError | None], None]:
        def changed(error: OSError | None) -> None:
            reason = None if error is None else error.strerror or type(error).__name__
            self._hub.emit_now(AcceptingChanged(self._loop.time(), str(address), error is None, reason))

        return changed

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._acceptor.check()  # it reports changes, also when it is closed
            self._set_accepting()
            if self._admin_server is not None:
                self._admin_server.check()

    # the end

    async def _drain(self, *, patient: bool) -> None:
        """Let every worker finish its requests."""
        for worker in tuple(self.group.workers):
            if not worker.is_ready:
                worker.channel.close()
        self.group.notify("drain")
        if patient:
            await asyncio.sleep(READINESS_LEAD_S)
        self._stop_listening()
        self.group.notify("finish")
        await self._all_ended(self._settings.drain_timeout_s + DRAIN_ERROR_FLUSH_S + _LAST_S)

    async def _all_ended(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while self.group.workers:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            late = ", ".join(str(worker.number) for worker in self.group.workers)
            logging.getLogger(__name__).warning("workers %s have not ended in time", late)

    # the admin address

    async def _start_admin(self, sock: socket.socket) -> None:
        admin = self._admin = Admin(
            self._view,
            Controls(self._switch_hedging, self._switch_replica, self.reload, self._describe_workers),
            self._feed,
        )
        self._set_access()
        self._admin_server = HttpServer(
            admin.app,
            self._waiting,
            lambda: self._settings.timeouts.client_idle_s,
            None,
            accept_from(sock, self._waiting, lambda address, error: self._on_accepting(address)(error)),
        )
        self._admin_running = self._tasks.create_task(self._admin_server.serve([sock]))
        await self._admin_server.prepared.wait()

    def _set_access(self) -> None:
        if self._admin is not None:
            key = self._settings.admin_key
            self._admin.key = None if key is None else key.get_secret_value()
            self._admin.hosts = HostCheck(self._settings.own_hosts)

    async def _end_admin(self) -> None:
        if self._admin_server is None or self._admin is None or self._admin_running is None:
            return
        self._admin.close()
        self._admin_server.should_exit = self._admin_server.force_exit = True
        await asyncio.wait({self._admin_running}, timeout=0.3)
        self._admin_server.abort()
        await asyncio.wait({self._admin_running})

    def _describe_workers(self) -> dict[str, object]:
        now_s = self._loop.time()
        shown = [
            {
                "worker": worker.number,
                "process": worker.process,
                "ready": worker.is_ready,
                "ready_s": None if worker.ready_s is None else round(now_s - worker.ready_s, 3),
                "connections": worker.lane.open,
                "connections_total": worker.lane.passed,
            }
            for worker in sorted(self.group.workers, key=lambda worker: worker.number)
        ]
        return {"workers": shown, "configured": self._given.member.workers, "restarts": self.group.restarts}

    async def _switch_hedging(self, model: str | None, /, *, on: bool) -> Reach:
        self._hedging.update(dict.fromkeys(self._model_names() if model is None else [model], on))
        self._revision += 1
        reach = _reach(await self.group.ask("switch_hedging", SwitchHedging(model, on)))
        self._hub.emit_now(HedgingSwitched(self._loop.time(), model, on))
        return reach

    async def _switch_replica(self, replica: str, model: str | None, /, *, out: bool) -> Reach:
        answers = await self.group.ask("switch_replica", SwitchReplica(replica, model, out))
        done = [msgspec.msgpack.decode(answer, type=SwitchReplicaDone) for _, answer in answers if answer is not None]
        for each in done:
            if each.error == errors.UnknownReplica.__name__:
                raise errors.UnknownReplica(each.message, param="replica")
            if each.error:
                raise errors.LastReplica(each.message, param="replica")
        if done:
            self._on_switched(done[0].switched)
        return _reach(answers)

    def _on_switched(self, switched: list[ReplicaSwitched]) -> None:
        self._revision += bool(switched)
        for each in switched:
            (self._out.add if each.out else self._out.discard)((each.model, each.replica))
            self._hub.emit_now(ReplicaSwitched(self._loop.time(), each.model, each.replica, each.out))

    # reload

    async def _reload_by_signal(self) -> None:
        await self._started.wait()
        self._control.send(ToTop(notify=reloading()))
        try:
            await self.reload()
        except ReloadFailed:  # the log contains the reason
            pass
        finally:
            self._control.send(ToTop(notify=READY))

    async def reload(self) -> ConfigReloaded:
        """Read the settings again, and let every worker use them, or none.

        Raises:
            ReloadFailed: the settings are invalid or need a restart; the old ones remain in force.
        """
        async with self._reloading:
            try:
                settings = await read_again(self._reread)
                check_reload(self._settings, settings)
                event = await self._apply(settings)
            except Exception as error:
                text = reload_fault(error)
                models = self._settings.models
                replicas = sum(
                    len(model.replicas) + sum(len(pool.replicas) for pool in model.fallbacks) for model in models
                )
                self._hub.emit_now(ConfigReloaded(self._loop.time(), len(models), replicas, 0, text))
                raise ReloadFailed(text) from error
            self._hub.emit_now(event)
            return event

    async def _apply(self, settings: Settings) -> ConfigReloaded:
        workers = self.group.ready
        answers = await self.group.ask("prepare", packed(settings), _PREPARE_S_MAX, workers)
        for worker, answer in answers:
            fault = "it did not answer" if answer is None else msgspec.msgpack.decode(answer, type=Prepared).fault
            if fault is not None and worker.channel.is_open:
                self.group.notify("abandon")
                raise ReloadFailed(f"worker {worker.number} cannot use the configuration: {fault}")
        self._revision += 1
        self._settings = settings  # also for workers that begin from now on
        self._set_access()
        committed = [
            msgspec.msgpack.decode(answer, type=Committed)
            for _, answer in await self.group.ask("commit", None, CALL_S_MAX, workers)
            if answer is not None
        ]
        if not committed:
            raise ReloadFailed("no worker serves at the moment; the next one begins with the new configuration")
        self._on_switched(committed[0].switched)
        done = committed[0].reloaded
        return ConfigReloaded(self._loop.time(), done.models, done.kept, done.new)


def _reach(answers: list[tuple[Worker, bytes | None]]) -> Reach:
    return Reach(sum(answer is not None for _, answer in answers), len(answers))
