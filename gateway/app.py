"""The composition root: settings -> object graph -> the public and the admin application.

Only this module and topology.py name concrete classes of every package. No policy belongs here. Units: seconds, bytes.
"""

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from gateway.api.asgi import Application, Message, Receive, Scope, Send
from gateway.api.cors import CrossOrigin
from gateway.api.count_tokens import PATH as COUNT_PATH
from gateway.api.count_tokens import TokenCounts
from gateway.api.deferred import Deferred
from gateway.api.dialects.base import ClientApi
from gateway.api.dialects.messages import PING, MessagesTerminator
from gateway.api.dialects.messages import error_body as messages_error_body
from gateway.api.dialects.responses import ResponsesTerminator
from gateway.api.exchange import ClientExchange, Connection
from gateway.api.health import answer_health, is_health_check
from gateway.api.hosts import HostCheck
from gateway.api.request_head import RequestHead
from gateway.api.routes import RacedRoutes
from gateway.config import settings as config
from gateway.discovery.driver import Discovery
from gateway.errors import LastReplica, ReloadFailed, UnknownReplica
from gateway.events import AcceptingChanged, ConfigReloaded, Event, HedgingSwitched, ReplicaSwitched
from gateway.learned_file import LearnedFile
from gateway.learned_state import OwnState
from gateway.limits.rates import LOCAL
from gateway.model_parts import Tune
from gateway.observe.describe import admission_state, describe, pool_state
from gateway.observe.hub import Hub
from gateway.observe.instruments import Dump
from gateway.observe.observers import Observers
from gateway.observe.process import ALONE, Member
from gateway.observe.proof import goals
from gateway.observe.state import AdmissionState, PoolState
from gateway.observe.usage import UsageDump, UsageReport
from gateway.observe.view import OwnView
from gateway.race.context import Model, Runtime
from gateway.race.timers import TimerQueue
from gateway.reloads import Reread, check_reload, read_again, reload_fault
from gateway.share.fleet import WhenAway
from gateway.share.words import Engine
from gateway.shared_pools import SharedPools
from gateway.sharing import SharedLimits
from gateway.topology import Topology, build_topology
from gateway.version import gateway_version
from providers.anthropic.assembler import MessageAssembler
from providers.base import Api, Headers
from providers.openai.chat import OpenAIChat
from providers.openai.completions import OpenAICompletions
from providers.responses.protocol import OpenAIResponses

_TRACEBACK_S = 60.0  # between tracebacks of the event loop: a failure in a callback may repeat with every event
_NO_BODY = {"root_path": "", "query_string": b"", "headers": []}
_HEALTH: Scope = {"type": "http", "method": "GET", "path": "/healthz", **_NO_BODY}
_VERSION = gateway_version()  # reads a file, so not on the loop


class _Admin(Protocol):
    """The admin application, whose module is imported after the start."""

    key: str | None
    hosts: HostCheck

    def on_event(self, event: Event) -> None:
        """Pass an event to the feeds."""

    def close(self) -> None:
        """End all feeds."""


class Gateway:
    """The running object graph.

    Args:
        tasks: owner of every long-lived task; its loop must be running.
        reread: reads the settings again for a reload; None if there is no file.
        tune: change of each model's hedging (`gateway.model_parts.Tune`); None for the settings as they are.
        member: place of the process among those of the gateway.
        engine: connection to the engine of shared limits; None for limits of this process.

    Attributes:
        learned: file of the learned state.
        learned_state: learned state of the pools.
        view: state for the admin address.
        discovery: sources of replicas.
        draining: True while the gateway stops; /readyz then returns 503.
        application: public ASGI application, for the requests without an exchange.
        admin: admin ASGI application.
    """

    def __init__(
        self,
        settings: config.Settings,
        tasks: asyncio.TaskGroup,
        reread: Reread | None = None,
        tune: Tune | None = None,
        member: Member = ALONE,
        engine: Engine | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.draining = False
        self._tasks = tasks
        self._reread = reread
        self._tune = tune
        self._reloading = asyncio.Lock()
        self._next_traceback_s = 0.0
        self._observers = Observers(loop, _VERSION, member)
        self._hub = self._observers.hub
        self._runtime = Runtime(loop, self._hub.emit, random.Random().random, TimerQueue(loop))
        when_away = WhenAway.SHARE if settings.share is None else WhenAway(settings.share.when_away)
        self._shared = None if engine is None else SharedLimits(engine, when_away, self._runtime)
        self._shared_pools = (
            None
            if engine is None
            else SharedPools(engine, self._runtime, lambda name, on: self._apply_switch(name, on=on))
        )
        self._limits = LOCAL if self._shared is None else self._shared.limits
        self._topology = build_topology(settings, tasks, self._runtime, tune=tune, limits=self._limits)
        self.discovery = Discovery(tasks, self._runtime, self._apply_rows, os.environ)
        self.learned_state = OwnState(lambda: self._topology.models)
        self.learned = LearnedFile(settings.learned_file, self.learned_state, self._runtime.emit)
        self._metrics = self._observers.metrics(self._states, self._admission_state, self.discovery.states)
        self.view = OwnView(
            self._metrics,
            self._states,
            self._describe,
            self._report_usage,
            self._admission_state,
            self._observers.proof,
        )
        self._admin: _Admin | None = None  # until its application is built
        self._set_access(settings)
        apis = client_apis()
        self._routes = RacedRoutes(self._topology.serving, apis, self._runtime)
        self._counts = TokenCounts(self._topology.serving, apis[Api.MESSAGES], self._runtime)
        self._started = int(datetime.now(UTC).timestamp())
        self._plain = Deferred(self._build_plain)
        self.application: Application = self._application
        self.admin = Deferred(self._build_admin)

    @property
    def hub(self) -> Hub:
        """The receiver of all events."""
        return self._hub

    def counts(self) -> tuple[Dump, UsageDump]:
        """Return what the metrics and the usage table have counted."""
        self._hub.flush()
        return self._metrics.instruments.dump(), self._observers.usage.dump()

    async def start_sharing(self) -> None:
        """Ask the engine for the first time, at most 100 ms, and exchange with the other heads until `close`."""
        if self._shared is None or self._shared_pools is None:
            return
        await self._shared.start()
        self._observers.values.append(self._shared.values)
        self._shared_pools.use(self._topology.models.values(), self._topology.ledgers)
        self._shared_pools.start()

    async def load_plain(self) -> None:
        """Load the framework of the plain routes."""
        await self._plain.load()

    async def load_framework(self) -> None:
        """Load the framework of the plain and admin routes; later, no file may be left to open for it."""
        try:
            from anyio import to_thread

            for application in (self._plain, self.admin):
                await application(_HEALTH, _no_body, _ignore)
            await to_thread.run_sync(int)  # the framework's way to a thread
        except Exception as error:  # most likely no file is left to open
            logging.getLogger(__name__).warning(
                "the plain or the admin routes are not loaded (%s); the next request for them tries again", error
            )

    def _build_plain(self) -> Application:
        from gateway.api.plain_routes import plain_app

        return plain_app(self._models_of, self._started, lambda: not self.draining, _VERSION)

    def _build_admin(self) -> Application:
        from gateway.admin import Admin, Controls

        admin = Admin(self.view, Controls(self._switch, self._switch_replica, self.reload))
        # On the loop, where a reload may change the access too, and before the thread's result gets there the same way.
        self._runtime.loop.call_soon_threadsafe(self._add_admin, admin)
        return admin.app

    def _add_admin(self, admin: "_Admin") -> None:
        self._admin = admin
        self._set_access(self._topology.settings)
        self._hub.listeners.append(admin.on_event)

    @property
    def active(self) -> int:
        """Number of running requests."""
        return len(self._routes.active)

    def end_streams(self) -> None:
        """End every running request with an error, end every event feed, and reject new requests."""
        self._routes.refusing = True
        if self._admin is not None:
            self._admin.close()
        for race in tuple(self._routes.active):
            race.shut_down()
        for loser in tuple(self._runtime.living):
            loser.stop()

    async def discover(self) -> None:
        """Find the replicas of models with a source, once before the first request; then follow the sources."""
        prepared = await self.discovery.prepare(self._topology.settings)
        if prepared.followed:
            self._apply_rows(prepared.settings)
            self.discovery.commit(prepared)

    def _apply_rows(self, settings: config.Settings) -> None:
        """Put settings in force that differ only in replicas that were found at run time."""
        for each in self.commit(self.prepare(settings, rows_only=True))[1]:
            self._hub.emit_now(each)

    def close(self) -> None:
        """Close idle connections, and flush the log."""
        if self._shared is not None and self._shared_pools is not None:
            self._shared.close()
            self._shared_pools.close()
        self.discovery.close()
        self._topology.close()
        self._observers.close()

    def client_idle_s(self) -> float:
        """Return the time after which an idle client connection is closed."""
        return self._topology.settings.timeouts.client_idle_s

    def on_accepting(self, address: str, error: OSError | None) -> None:
        """Report that accepting connections fails, or with None that it works again."""
        reason = None if error is None else error.strerror or type(error).__name__
        self._hub.emit_now(AcceptingChanged(self._runtime.loop.time(), address, error is None, reason))

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
        """Report an exception that only the event loop received (an exception handler of asyncio).

        The first traceback of each minute is logged; the metric counts all.
        """
        error = context.get("exception")
        self._runtime.report("event_loop", error if isinstance(error, Exception) else RuntimeError())
        if loop.time() >= self._next_traceback_s:
            self._next_traceback_s = loop.time() + _TRACEBACK_S
            given = error if isinstance(error, BaseException) else None
            logging.getLogger(__name__).error("the event loop reported: %s", context.get("message"), exc_info=given)

    def keep_warm(self) -> None:
        """Keep a connection open to every replica of each pool in use; must be called every few seconds."""
        self._topology.keep_warm()
        for model, replica in self._topology.forget_drained(self._runtime.loop.time()):
            self._metrics.forget(model, replica)

    async def reload(self) -> ConfigReloaded:
        """Read the settings again and apply them to new requests; running requests keep the old ones.

        Raises:
            ReloadFailed: the settings are invalid or need a restart; the old ones remain in force.
        """
        async with self._reloading:
            try:
                prepared = await self.discovery.prepare(await read_again(self._reread))
                event, switched = self.commit(self.prepare(prepared.settings))
                self.discovery.commit(prepared)
            except Exception as error:
                text = reload_fault(error)
                topology = self._topology
                self._hub.emit_now(
                    ConfigReloaded(self._runtime.loop.time(), len(topology.models), len(topology.replicas), 0, text)
                )
                raise ReloadFailed(text) from error
            for each in switched:
                self._hub.emit_now(each)
            self._hub.emit_now(event)
            return event

    def prepare(self, settings: config.Settings, *, rows_only: bool = False) -> Topology:
        """Return a new topology, which is then used with `commit` or given up with `abandon`.

        Args:
            rows_only: True if the settings differ only in replicas that were found at run time.

        Raises:
            ReloadFailed: the settings need a restart.
        """
        old = self._topology
        check_reload(old.settings, settings)
        try:
            return build_topology(
                settings, self._tasks, self._runtime, old, self._tune, self._limits, rows_only=rows_only
            )
        except BaseException:
            old.set_kept()
            raise

    def abandon(self, topology: Topology) -> None:
        """Give up a new topology."""
        self._topology.set_kept()
        topology.close(keep=self._topology)

    def commit(self, topology: Topology) -> tuple[ConfigReloaded, list[ReplicaSwitched]]:
        """Use a new topology for new requests; return the events to emit."""
        old, self._topology = self._topology, topology
        for named, replica in topology.replicas.items():  # one with new settings stays out, too
            if replica is not old.replicas.get(named):
                replica.out = old.is_out(named)
        topology.start_draining()
        switched = []
        for model in topology.models.values():
            if model is not old.models.get(model.name) and all(replica.out for replica in model.replicas):
                switched += self._take(
                    model, [replica.name for replica in model.replicas], out=False
                )  # the rest is gone
        self._routes.serving = self._counts.serving = topology.serving
        self._set_access(topology.settings)
        if self._shared_pools is not None:
            self._shared_pools.use(topology.models.values(), topology.ledgers)
        old.close(keep=topology)
        kept = sum(replica is old.replicas.get(named) for named, replica in topology.replicas.items())
        now_s = self._runtime.loop.time()
        return ConfigReloaded(now_s, len(topology.models), kept, len(topology.replicas) - kept), switched

    def _set_access(self, settings: config.Settings) -> None:
        self._cors = CrossOrigin(settings.cors_origins) if settings.cors_origins else None
        self._observers.measure(goals(settings))
        if self._admin is not None:
            self._admin.key = None if settings.admin_key is None else settings.admin_key.get_secret_value()
            self._admin.hosts = HostCheck(settings.own_hosts)

    def exchange(self, connection: Connection, head: RequestHead) -> ClientExchange | None:
        """Return the exchange for a request of a client, None if the request is for the ASGI application."""
        cors = self._cors
        if cors is not None and cors.is_preflight(head.method, head.headers):
            return None
        exchange: ClientExchange | None = self._routes.open(connection, head)
        if exchange is None and head.path == COUNT_PATH:
            exchange = self._counts.open(connection, head)
        if exchange is not None and cors is not None:
            exchange.response.own_headers = (*connection.own_headers, *cors.added(head.headers))
        return exchange

    def _application(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a preflight request, or pass a request to the plain routes."""
        if self._cors is not None and scope["type"] == "http":
            if self._cors.is_preflight(scope["method"], scope["headers"]):
                return self._cors.answer(scope, send)
            send = self._cors.adding(scope, send)
        if is_health_check(scope):
            return answer_health(scope, send, ready=not self.draining)
        return self._plain(scope, receive, send)

    # callables of the plain routes, the metrics and the admin application

    def _models_of(self, headers: Headers) -> list[str]:
        keyring = self._topology.serving.keyring
        key_name = keyring.name(headers)
        models = [model for model in self._topology.settings.models if keyring.may_use(key_name, model.name)]
        return [name for model in models for name in (model.name, *model.aliases)]

    def _report_usage(self, key: str | None = None, model: str | None = None) -> UsageReport:
        self._hub.flush()
        return self._observers.usage.report(key, model)

    def _states(self) -> Iterator[PoolState | None]:
        self._hub.flush()  # what was emitted before is in the metrics beside this state
        now_s = self._runtime.loop.time()
        for model in self._topology.models.values():
            for pool in model.pools:
                yield from pool_state(model.name, pool, now_s, self._topology.draining(model.name, pool.name))

    def _admission_state(self) -> AdmissionState:
        topology = self._topology
        fair_queues = {name: queue.fair_queue for name, queue in topology.model_queues.items()}
        return admission_state(fair_queues, topology.key_limiters, topology.memory, self._runtime.loop.time())

    def _describe(self, name: str, quantiles: Sequence[float]) -> dict[str, object] | None:
        model = self._topology.models.get(name)
        if model is None:
            return None
        described = describe(model, self._runtime.loop.time(), quantiles)
        found = [source for source in self.discovery.states() if source.model == name]
        return {**described, "discovery": found, "learned_file": self.learned.describe()}

    def switch_hedging(self, name: str | None, /, *, on: bool) -> None:
        """Switch hedging of a model, or of every model if None."""
        for model in self._topology.models.values():
            if name in (None, model.name):
                for pool in model.pools:
                    pool.hedging_on = on

    def _apply_switch(self, name: str | None, /, *, on: bool) -> None:
        self.switch_hedging(name, on=on)
        self._hub.emit_now(HedgingSwitched(self._runtime.loop.time(), name, on))

    async def _switch(self, name: str | None, /, *, on: bool) -> None:
        self._apply_switch(name, on=on)
        if self._shared_pools is not None:
            self._shared_pools.switched(name, on=on)

    async def _switch_replica(self, name: str, model_name: str | None, /, *, out: bool) -> None:
        for switched in self.switch_replica(name, model_name, out=out):
            self._hub.emit_now(switched)

    def switch_replica(self, name: str, model_name: str | None, /, *, out: bool) -> list[ReplicaSwitched]:
        """Take a replica out or in; return an event for each change.

        Raises:
            UnknownReplica: no replica has this name.
            LastReplica: a model would have no replica left; nothing was changed.
        """
        models = [model for model in self._topology.models.values() if model_name in (None, model.name)]
        models = [model for model in models if model.replica(name) is not None]
        if not models:
            raise UnknownReplica(
                f"replica {name[:80]!r} does not exist; GET /admin/replicas lists the replicas", param="replica"
            )
        for model in models if out else ():
            if all(replica.out or replica.name == name for replica in model.replicas):
                raise LastReplica(
                    f"{name} is the last replica of {model.name}; take another one in first", param="replica"
                )
        return [switched for model in models for switched in self._take(model, [name], out=out)]

    def _take(self, model: Model, names: Sequence[str], *, out: bool) -> list[ReplicaSwitched]:
        """Take replicas out or in; return an event for each change."""
        now_s, switched = self._runtime.loop.time(), []
        for pool in model.pools:
            for replica in pool.replicas:
                if replica.name in names and replica.out is not out:
                    pool.switch(replica, now_s, out=out)
                    switched.append(ReplicaSwitched(now_s, model.name, replica.name, out))
        return switched


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _ignore(_: Message) -> None:
    pass


def client_apis() -> dict[Api, ClientApi]:
    """Return the APIs for clients."""
    return {
        Api.CHAT: ClientApi(OpenAIChat().assembler),
        Api.COMPLETIONS: ClientApi(OpenAICompletions().assembler),
        Api.RESPONSES: ClientApi(OpenAIResponses().assembler, ResponsesTerminator),
        Api.EMBEDDINGS: ClientApi(None),
        Api.RERANK: ClientApi(None),
        Api.MODERATIONS: ClientApi(None),
        Api.TOKENIZE: ClientApi(None),
        Api.MESSAGES: ClientApi(lambda _: MessageAssembler(), MessagesTerminator, messages_error_body, PING),
    }
