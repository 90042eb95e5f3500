"""A worker: the process that serves connections which the supervisor passes to it.

Its settings, its learned state and all commands come through the channel; signals belong to the top process. When the
supervisor disappears, the worker drains and ends. Units: seconds.
"""

import asyncio
import signal
import socket
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from gateway import errors
from gateway.api.plain_routes import load_documents
from gateway.config.settings import ModelSettings, Settings
from gateway.events import Event
from gateway.observe.feed import encoded_event
from gateway.observe.process import Member
from gateway.server.app import Gateway
from gateway.server.http_server import (
    Accepting,
    HttpServer,
    Take,
    freeze_startup_objects,
    give_memory_back,
    waiting_connections,
)
from gateway.server.learned_state import Restored
from gateway.server.model_parts import Tune
from gateway.server.process import ExitReport, end, finish, sweep
from gateway.server.redis_share import open_redis, wait_for_redis
from gateway.server.reloads import reload_fault
from gateway.server.topology import Topology
from gateway.share.hub import HubEngine
from gateway.share.messages import NamedEngine
from gateway.share.sync import Reach
from gateway.workers.channel import Channel, Handler, connect
from gateway.workers.messages import (
    Begin,
    Committed,
    Counts,
    Describe,
    Prepare,
    Prepared,
    Ready,
    SwitchHedging,
    SwitchReplica,
    SwitchReplicaDone,
    TokenChange,
    TokenRejected,
    WorkerEnded,
    WorkerScrape,
    share_of,
    unpacked,
)
from gateway.workers.passing import Receiver
from ttft_gateway.credentials.sources import Source

_BEGIN_S_MAX: Final = 60.0
_CLOSE_S_MAX: Final = 1.0  # for the last message


class Sockets(NamedTuple):
    """The sockets between a worker and the supervisor: for messages, and for connections."""

    messages: socket.socket
    connections: socket.socket


async def work(member: Member, sockets: Sockets, tune: Tune | None = None) -> ExitReport:
    """Serve until the supervisor ends the worker, or has ended itself.

    Args:
        member: number of the worker, and of all workers.
        sockets: connected to the supervisor.
        tune: see `gateway.server.topology.Tune`.
    """
    give_memory_back()
    async with asyncio.TaskGroup() as tasks:
        commands = _Commands()
        handlers: dict[str, Handler] = {}
        channel = Channel(tasks, handlers, commands.on_end)
        await connect(channel, sockets.messages)
        begin = await channel.ask("begin", None, _BEGIN_S_MAX)
        if begin is None:
            return ExitReport(0, signal.SIGTERM)
        worker = _Worker(member, channel, sockets, tasks, msgspec.msgpack.decode(begin, type=Begin), tune)
        handlers |= worker.handlers(commands)
        report = await worker.serve(commands)
        channel.close()
        await commands.wait_for_end(_CLOSE_S_MAX)
    return report


class _Commands:
    """The commands of the supervisor that end the worker.

    Attributes:
        draining: set by the first command.
        finishing: set when no further connection comes.
        ending: set when everything is to end immediately.
    """

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.finishing = asyncio.Event()
        self.ending = asyncio.Event()
        self._ended = asyncio.Event()

    def on_end(self) -> None:
        """Drain without the supervisor."""
        self._ended.set()
        self.draining.set()
        self.finishing.set()

    async def wait_for_end(self, timeout_s: float) -> None:
        """Wait until the channel has ended."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            pass


class _Worker:
    def __init__(
        self,
        member: Member,
        channel: Channel,
        sockets: Sockets,
        tasks: asyncio.TaskGroup,
        begin: Begin,
        tune: Tune | None,
    ) -> None:
        self._workers = member.workers
        self._number = member.number
        self._channel = channel
        self._tasks = tasks
        self._receiver = Receiver(sockets.connections)
        settings = unpacked(begin.settings, Settings)
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
        self._feeds = False
        self._gateway.hub.listeners.append(self._on_event)
        self._beginning = begin

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
        gateway, tasks = self._gateway, self._tasks
        server = HttpServer(
            waiting_connections(self._workers),
            gateway.client_idle_s,
            gateway.public.open,
            self._accept_with,
            on_closed=self._receiver.closed,
        )
        restored = self._begin(self._beginning)
        await asyncio.to_thread(load_documents)  # the first thread opens files, too
        freeze_startup_objects()
        sweeping = tasks.create_task(sweep(server, gateway))
        server.acceptor.start()
        if self._redis is not None:
            await wait_for_redis(self._redis, self._number)
        await gateway.start_sharing()
        self._channel.send("ready", Ready(restored))
        cut = await self._run(commands, server)
        sweeping.cancel()
        if commands.ending.is_set():
            cut = gateway.public.active
        await end(gateway, server)
        self._channel.send("ended", WorkerEnded(cut, self._counts(), await gateway.learned_state.collect()))
        return ExitReport(0, signal.SIGTERM if commands.ending.is_set() else None)

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
        self._gateway.public.draining = True
        server.drain()
        await commands.finishing.wait()
        return await finish(self._gateway, server, self._drain_timeout_s)

    def _accept_with(self, take: Take) -> Accepting:
        self._receiver.take = take
        return self._receiver

    def handlers(self, commands: _Commands) -> dict[str, Handler]:
        """Return the methods for the supervisor."""
        view, learned = self._gateway.view, self._gateway.learned_state
        return {
            "drain": lambda _: commands.draining.set(),
            "finish": lambda _: commands.finishing.set(),
            "end": lambda _: commands.ending.set(),
            "ping": lambda _: None,
            "counts": lambda _: self._counts(),
            "scrape": lambda _: self._scrape(),
            "pools": lambda _: view.pools(),
            "admission": lambda _: view.admission(),
            "share": lambda _: view.share(),
            "proof": self._proof,
            "blocks": self._blocks,
            "describe": self._describe,
            "learned": lambda _: learned.collect(),
            "feed": self._feed,
            "switch_hedging": self._switch_hedging,
            "switch_replica": self._switch_replica,
            "token": self._use_token,
            "prepare": self._prepare,
            "commit": self._commit,
            "abandon": lambda _: self._abandon(),
        }

    def _counts(self) -> Counts:
        return Counts(*self._gateway.view.counts())

    async def _scrape(self) -> WorkerScrape:
        scrape = await self._gateway.view.scrape()
        process = [value._replace(labels=dict(value.labels)) for value in scrape.process]
        return WorkerScrape(self._counts(), list(scrape.pools), scrape.admission, process)

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

    def _prepare(self, payload: bytes) -> Prepared:
        self._abandon()
        try:
            prepare = msgspec.msgpack.decode(payload, type=Prepare)
            if prepare.settings is not None:
                settings = share_of(unpacked(prepare.settings, Settings), self._workers)
                self._prepared = self._gateway.reloads.prepare(settings)
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
