"""A worker: a process that accepts connections, and serves them.

Its settings, its learned state and all commands come through a channel from the supervisor; signals belong to the top
process. A worker serves on when the supervisor disappears, and gets a channel to the next one from the top process.
When the top process disappears, the worker drains and ends; if a service manager holds the listening socket, too, the
worker accepts before until the next gateway is ready. Units: seconds.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from gateway import errors
from gateway.api.plain_routes import load_documents
from gateway.config.settings import ModelSettings
from gateway.events import Event
from gateway.health.facts import ProcessFacts
from gateway.observe.feed import encoded_event
from gateway.observe.process import Member
from gateway.server.app import Gateway
from gateway.server.http_server import (
    HttpServer,
    accept_from,
    freeze_startup_objects,
    give_memory_back,
    waiting_connections,
)
from gateway.server.learned_state import Restored
from gateway.server.model_parts import Tune
from gateway.server.process import READINESS_LEAD_S, ExitReport, end, finish, sweep
from gateway.server.redis_share import open_redis, wait_for_redis
from gateway.server.reloads import reload_fault
from gateway.server.topology import Topology
from gateway.share.hub import HubEngine
from gateway.share.messages import NamedEngine
from gateway.share.sync import Reach
from gateway.workers.board import Board, ConnectionTurns, Slot
from gateway.workers.channel import Channel, Control, Handler, connect
from gateway.workers.keys import METHOD, WorkerKeys
from gateway.workers.messages import (
    Begin,
    Committed,
    Counts,
    Describe,
    Prepared,
    Ready,
    SwitchHedging,
    SwitchReplica,
    SwitchReplicaDone,
    TokenChange,
    TokenRejected,
    ToWorker,
    WorkerEnded,
    WorkerScrape,
    share_of,
)
from gateway.workers.packing import Prepare, changed_by, unpacked
from gateway.workers.parts import fact_parts
from ttft_gateway.credentials.sources import Source

_BEGIN_S_MAX: Final = 60.0
_CLOSE_S_MAX: Final = 1.0  # for the last message


class Forked(NamedTuple):
    """Place, sockets and memory that a worker inherits from the top process.

    Attributes:
        member: number of the worker, and of all workers.
        listen: listening socket of the public address.
        control: socket to the top process.
        board: beats and connections of all processes.
        has_next: see `Control`.
    """

    member: Member
    listen: socket.socket
    control: socket.socket
    board: Board
    has_next: Callable[[], bool] | None


async def work(forked: Forked, tune: Tune | None = None) -> ExitReport:
    """Serve until the supervisor ends the worker, or the top process has ended.

    Args:
        tune: see `gateway.server.topology.Tune`.
    """
    give_memory_back()
    async with asyncio.TaskGroup() as tasks:
        commands = _Commands()
        link = _Link(tasks, forked, commands)
        begin = await link.begin()
        report = ExitReport(0, signal.SIGTERM)
        if begin is not None:
            worker = _Worker(forked, link.channel, tasks, begin, tune)
            beating = tasks.create_task(worker.beat(forked.board[forked.member.number or 0]))
            link.handlers |= worker.handlers()
            link.on_again = worker.on_again
            report = await worker.serve(commands)
            await link.close()
            beating.cancel()
        else:
            await link.close()
    return report


class _Commands:
    """The commands that end the worker.

    Attributes:
        accepting: set when connections are to be accepted.
        draining: set by the first command.
        is_replaced: True if a new gateway has the addresses.
        finishing: set when no further connection comes.
        ending: set when everything is to end immediately.
    """

    def __init__(self) -> None:
        self.accepting = asyncio.Event()
        self.draining = asyncio.Event()
        self.is_replaced = False
        self.finishing = asyncio.Event()
        self.ending = asyncio.Event()

    def drain_alone(self) -> None:
        """Drain without the other processes."""
        self.draining.set()
        self.finishing.set()

    def on_top_end(self, replaced: signal.Signals | None) -> None:
        """Drain without the top process; if a new gateway has the addresses, as in a hot restart."""
        if replaced is None:
            self.drain_alone()
            return
        self._replaced()
        asyncio.get_running_loop().call_later(READINESS_LEAD_S, self.finishing.set)

    def handlers(self) -> dict[str, Handler]:
        """Return the methods for the supervisor."""
        return {
            "accept": lambda _: self.accepting.set(),
            "drain": lambda _: self.draining.set(),
            "replaced": lambda _: self._replaced(),
            "finish": lambda _: self.finishing.set(),
            "end": lambda _: self._end(),
        }

    def _replaced(self) -> None:
        self.is_replaced = True
        self.draining.set()

    def _end(self) -> None:
        self.ending.set()
        self.draining.set()  # also of a worker that begins


class _Link:
    """The channel to the supervisor, connected again to each new one.

    Attributes:
        channel: the channel.
        handlers: methods for the supervisor.
        on_again: called when another supervisor is connected.
    """

    def __init__(self, tasks: asyncio.TaskGroup, forked: Forked, commands: _Commands) -> None:
        self.handlers: dict[str, Handler] = commands.handlers()
        self.channel = Channel(tasks, self.handlers, self._on_end)
        self.on_again: Callable[[], object] = bool
        self._tasks = tasks
        self._commands = commands
        self._connected = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()
        self._connecting = asyncio.Lock()
        self._control = Control(forked.control, ToWorker, self._on_message, commands.on_top_end, forked.has_next)
        self._control.start()

    async def begin(self) -> Begin | None:
        """Return the state to begin with; None if the worker is to end before."""
        draining = self._tasks.create_task(self._commands.draining.wait())
        try:
            while not draining.done():
                asking = self._tasks.create_task(self._ask())
                await asyncio.wait([asking, draining], return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    asking.cancel()
                elif (answer := asking.result()) is not None:
                    return msgspec.msgpack.decode(answer, type=Begin)
                elif self._connected.is_set():  # the supervisor has failed to answer
                    return None
        finally:
            draining.cancel()
        return None

    async def _ask(self) -> bytes | None:
        await self._connected.wait()
        return await self.channel.ask("begin", None, _BEGIN_S_MAX)

    async def close(self) -> None:
        """End the channel after the last message."""
        self._control.close()
        self.channel.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S_MAX):
                await self._ended.wait()

    def _on_message(self, message: ToWorker, descriptors: list[int]) -> None:
        if message.is_stopping:
            self._commands.drain_alone()
        for descriptor in descriptors:
            self._tasks.create_task(self._connect(socket.socket(fileno=descriptor)))

    async def _connect(self, sock: socket.socket) -> None:
        async with self._connecting:
            self.channel.abort()  # to a supervisor that hangs
            await self._ended.wait()
            self._ended.clear()
            await connect(self.channel, sock)
            self._connected.set()
            self.on_again()

    def _on_end(self) -> None:
        self._connected.clear()
        self._ended.set()


class _Worker:
    def __init__(
        self,
        forked: Forked,
        channel: Channel,
        tasks: asyncio.TaskGroup,
        begin: Begin,
        tune: Tune | None,
    ) -> None:
        member = forked.member
        self._listen = forked.listen
        self._turns = ConnectionTurns(forked.board, member.number or 0)
        self._ready = asyncio.Event()
        self._workers = member.workers
        self._number = member.number
        self._channel = channel
        self._tasks = tasks
        settings = begin.settings.unpacked()[-1]
        self._drain_timeout_s = settings.drain_timeout_s
        self._redis = None if settings.share is None else open_redis(settings.share, tasks)
        engine: NamedEngine = self._redis or HubEngine(channel, asyncio.get_running_loop().time)
        self._gateway = Gateway(share_of(settings, member.workers), tasks, None, tune, member, engine)
        self._gateway.switches.on_switch = lambda event: channel.send("switched", SwitchHedging(event.model, event.on))
        asyncio.get_running_loop().set_exception_handler(self._gateway.on_loop_error)
        self._gateway.tokens.reject = self._on_rejected_token
        for change in begin.tokens:
            self._gateway.tokens.put(change.source, change.state)
        self._prepared: Topology | None = None
        self._preparing = asyncio.Lock()  # a call that came too late for its answer may still be under way
        self._feeds = False
        self._gateway.hub.listeners.append(self._on_event)
        self._beginning = begin
        listed = self._gateway.listed
        self._keys = None if listed is None else WorkerKeys(channel, listed.keys)

    def _begin(self, begin: Begin) -> Restored | None:
        gateway = self._gateway
        self._feeds = begin.feed
        for model in begin.off:
            gateway.switches.set_hedging(model, on=False)
        for model, replica in begin.out:
            try:
                gateway.switches.set_replica(replica, model, out=True)
            except (errors.UnknownReplica, errors.LastReplica):  # a reload has removed it, or others
                continue
        return gateway.learned_state.restore(begin.learned, begin.learned_age_s) if begin.learned else None

    async def serve(self, commands: _Commands) -> ExitReport:
        """Serve until a command ends the worker."""
        gateway, tasks, waiting = self._gateway, self._tasks, waiting_connections(self._workers)
        server = HttpServer(
            waiting,
            gateway.client_idle_s,
            gateway.public.open,
            accept_from(self._listen, waiting, gateway.on_accepting, turns=self._turns),
            self._listen,
            on_closed=self._turns.closed,
        )
        restored = self._begin(self._beginning)
        await asyncio.to_thread(load_documents)  # the first thread opens files, too
        freeze_startup_objects()
        sweeping = tasks.create_task(sweep(server, gateway))
        if self._redis is not None:
            await wait_for_redis(self._redis, self._number)
        await gateway.start_sharing()
        if self._keys is not None:
            await self._keys.begin(commands.draining)
        following = [] if self._keys is None else [tasks.create_task(self._keys.run())]
        self._ready.set()
        self.report(restored)
        accepting = tasks.create_task(self._accept(commands, server))
        cut = await self._run(commands, server)
        for task in (accepting, sweeping, *following):
            task.cancel()
        if commands.ending.is_set():
            cut = gateway.public.active
        await end(gateway, server)
        encode = msgspec.msgpack.encode
        counts, learned = [encode(part) async for part in self._count_parts()], await gateway.learned_state.collect()
        self._channel.send("ended", WorkerEnded(cut, counts, encode(learned)))
        return ExitReport(0, signal.SIGTERM if commands.ending.is_set() else None)

    async def beat(self, slot: Slot) -> None:
        """Beat from now on if this worker can serve; thousands of models may be built for longer than a hang lasts."""
        await self._ready.wait()
        await slot.keep_beating()

    def on_again(self) -> None:
        """Go on with a new supervisor."""
        self.report()
        if self._keys is not None:
            self._keys.on_change()

    def report(self, restored: Restored | None = None) -> None:
        """Report to the supervisor that this worker can serve."""
        if self._ready.is_set():
            self._channel.send("ready", Ready(restored))

    async def _accept(self, commands: _Commands, server: HttpServer) -> None:
        await commands.accepting.wait()
        if not (commands.finishing.is_set() or commands.is_replaced):
            self._turns.start()
            server.acceptor.start()

    async def _run(self, commands: _Commands, server: HttpServer) -> int:
        """Serve until the end; return the number of requests that were ended with an error."""
        ending = self._tasks.create_task(commands.ending.wait())
        draining = self._tasks.create_task(self._drain(commands, server))
        await asyncio.wait([ending, draining], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        draining.cancel()
        return draining.result() if draining.done() and not draining.cancelled() else 0

    async def _drain(self, commands: _Commands, server: HttpServer) -> int:
        await commands.draining.wait()
        if commands.is_replaced:
            self._turns.stop()
            server.stop_listening()
        else:
            self._gateway.public.draining = True
        server.drain()
        await commands.finishing.wait()
        self._turns.stop()
        return await finish(self._gateway, server, self._drain_timeout_s)

    def handlers(self) -> dict[str, Handler]:
        """Return the methods for the supervisor."""
        view = self._gateway.view
        return {
            "counts": lambda _: self._count_parts(),
            "scrape": lambda _: self._scrape(),
            "facts": self._facts,
            "pools": lambda _: view.pool_parts(),
            "admission": lambda _: view.admission(),
            "share": lambda _: view.share(),
            "proof": self._proof,
            "blocks": self._blocks,
            "describe": self._describe,
            "learned": lambda _: self._gateway.learned_state.parts(),
            "feed": self._feed,
            "switch_hedging": self._switch_hedging,
            "switch_replica": self._switch_replica,
            "token": self._use_token,
            METHOD: lambda _: None if self._keys is None else self._keys.on_change(),
            "prepare": self._prepare,
            "commit": self._commit,
            "abandon": lambda _: self._abandon(),
        }

    async def _count_parts(self) -> AsyncIterator[Counts]:
        for part in self._gateway.view.counts():
            yield Counts(*part)

    async def _scrape(self) -> AsyncIterator[WorkerScrape]:
        view = self._gateway.view
        async for pools in view.pool_parts():
            yield WorkerScrape(pools=pools)
        scrape = view.metrics.scrape_with(())
        process = [value._replace(labels=dict(value.labels)) for value in scrape.process]
        yield WorkerScrape(admission=scrape.admission, process=process)

    async def _facts(self, payload: bytes) -> AsyncIterator[ProcessFacts]:
        view = self._gateway.view
        async for pools in view.pool_parts():
            yield ProcessFacts(pools=pools)
        for part in fact_parts(await view.facts(msgspec.msgpack.decode(payload, type=int))):
            yield part

    async def _proof(self, payload: bytes) -> object:
        return await self._gateway.view.proof(msgspec.msgpack.decode(payload, type=int | None))

    async def _blocks(self, payload: bytes) -> object:
        return await self._gateway.view.blocks(msgspec.msgpack.decode(payload, type=str))

    async def _describe(self, payload: bytes) -> list[Mapping[str, object]]:
        """Return the description of a model; none if a reload has removed it."""
        asked = msgspec.msgpack.decode(payload, type=Describe)
        described = await self._gateway.view.describe(asked.model, asked.quantiles)
        return [] if described is None else [described]

    def _feed(self, payload: bytes) -> None:
        self._feeds = msgspec.msgpack.decode(payload, type=bool)

    def _on_event(self, event: Event) -> None:
        if self._feeds:
            self._channel.send("event", encoded_event(event, self._number))

    async def _switch_hedging(self, payload: bytes) -> Reach | None:
        """Switch hedging; return the processes of all hosts that have the switch if this worker has passed it on."""
        switch = msgspec.msgpack.decode(payload, type=SwitchHedging)
        switches = self._gateway.switches
        switches.set_hedging(switch.model, on=switch.on)
        if switch.publisher != self._number or switches.publish is None:
            return None
        return await switches.publish(switch.model, on=switch.on)

    def _use_token(self, payload: bytes) -> None:
        change = msgspec.msgpack.decode(payload, type=TokenChange)
        self._gateway.tokens.put(change.source, change.state)

    def _on_rejected_token(self, source: Source, sent_s: float) -> None:
        self._channel.send("token_rejected", TokenRejected(source, asyncio.get_running_loop().time() - sent_s))

    def _switch_replica(self, payload: bytes) -> SwitchReplicaDone:
        switch = msgspec.msgpack.decode(payload, type=SwitchReplica)
        try:
            return SwitchReplicaDone(self._gateway.switches.set_replica(switch.replica, switch.model, out=switch.out))
        except (errors.UnknownReplica, errors.LastReplica) as error:
            return SwitchReplicaDone(error=type(error).__name__, message=error.message)

    async def _prepare(self, payload: bytes) -> Prepared:
        async with self._preparing:
            return await self._prepare_now(payload)

    async def _prepare_now(self, payload: bytes) -> Prepared:
        self._abandon()
        try:
            prepare = msgspec.msgpack.decode(payload, type=Prepare)
            if prepare.settings is not None:
                old = {model.name: model for model in self._gateway.in_force.topology.settings.models}
                settings = share_of(await changed_by(prepare, old), self._workers)
                self._prepared = await self._gateway.reloads.prepare_in_steps(settings)
            elif prepare.model is not None:
                model, settings = unpacked(prepare.model, ModelSettings), self._gateway.in_force.topology.settings
                models = tuple(model if each.name == model.name else each for each in settings.models)
                settings = settings.model_copy(update={"models": models})
                self._prepared = self._gateway.reloads.prepare(settings, rows_only=True)
        except Exception as error:
            return Prepared(reload_fault(error))
        return Prepared()

    def _commit(self, _payload: bytes) -> Committed:
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            raise RuntimeError("no configuration was prepared")
        self._drain_timeout_s = prepared.settings.drain_timeout_s
        return Committed(*self._gateway.reloads.commit(prepared))

    def _abandon(self) -> None:
        if self._prepared is not None:
            self._gateway.reloads.abandon(self._prepared)
            self._prepared = None
