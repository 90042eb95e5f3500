"""The composition root: settings -> object graph -> the exchanges of the public address, and the admin application.

Only this module and topology.py name concrete classes of every package. No policy belongs here. Units: seconds, bytes.
"""

import asyncio
import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from gateway.api.count_tokens import TokenCounts
from gateway.api.dialects.base import ClientApi
from gateway.api.dialects.messages import PING, MessagesTerminator
from gateway.api.dialects.messages import error_body as messages_error_body
from gateway.api.dialects.responses import ResponsesTerminator
from gateway.api.exchange import ClientExchange, Connection
from gateway.api.plain_routes import PlainRoutes
from gateway.api.request_head import RequestHead
from gateway.api.routes import RacedRoutes
from gateway.api.web_pages import CrossOrigin
from gateway.config import settings as config
from gateway.errors import ReloadFailed
from gateway.observe.describe import admission_state, describe, pool_state
from gateway.observe.hub import Hub, Observers
from gateway.observe.instruments import Dump
from gateway.observe.process import ALONE, Member
from gateway.observe.proof import every_goal, goals
from gateway.observe.spans import ReplicaFacts
from gateway.observe.state import AdmissionState, PoolState, ShareState
from gateway.observe.usage import UsageDump, UsageReport
from gateway.observe.view import OwnView
from gateway.process_events import AcceptingChanged, ConfigReloaded, ReplicaSwitched
from gateway.proof.tally import Tally
from gateway.race.context import Runtime
from gateway.race.timers import TimerQueue
from gateway.server.discovery.driver import Discovery
from gateway.server.learned_file import LearnedFile
from gateway.server.learned_state import OwnState
from gateway.server.model_parts import Tune
from gateway.server.reloads import Reread, check_reload, read_again, reload_fault
from gateway.server.sharing import Sharing
from gateway.server.switches import Switches
from gateway.server.topology import Topology, build_topology
from gateway.server.tracing import Tracing, missing_exporter
from gateway.share.fleet import WhenAway
from gateway.share.messages import NamedEngine
from gateway.version import VERSION
from providers.anthropic.protocol import MessageAssembler
from providers.openai.chat import OpenAIChat
from providers.openai.completions import OpenAICompletions
from providers.responses.protocol import OpenAIResponses
from ttft_gateway.apis.base import Api, Headers
from ttft_gateway.limits.rates import LOCAL

if TYPE_CHECKING:
    from gateway.server.admin import Admin

_TRACEBACK_S = 60.0  # between tracebacks of the event loop: a failure in a callback may repeat with every event


class Gateway:
    """The running object graph.

    Args:
        tasks: owner of every long-lived task; its loop must be running.
        reread: reads the settings again for a reload; None if there is no file.
        tune: change of each model's hedging (`gateway.server.model_parts.Tune`); None for the settings as they are.
        member: place of the process among the processes of the gateway.
        engine: connection to the engine of shared limits; None for limits of this process.

    Attributes:
        learned: file of the learned state.
        learned_state: learned state of the pools.
        view: state for the admin address.
        discovery: sources of replicas.
        draining: True while the gateway stops; /readyz then returns 503.
        switches: switches of hedging and of replicas.
        runtime: clock, timers and receiver of events.
    """

    def __init__(
        self,
        settings: config.Settings,
        tasks: asyncio.TaskGroup,
        reread: Reread | None = None,
        tune: Tune | None = None,
        member: Member = ALONE,
        engine: NamedEngine | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.draining = False
        self._tasks = tasks
        self._reread = reread
        self._tune = tune
        self._reloading = asyncio.Lock()
        self._next_traceback_s = 0.0
        self._observers = Observers(loop, VERSION, member)
        self._hub = self._observers.hub
        self.runtime = Runtime(loop, self._hub.emit, random.Random().random, TimerQueue(loop))
        dropped = self._observers.dropped
        self._leave_out = partial(dropped.leaving_out, "pool")
        when_away = WhenAway.SHARE if settings.share is None else WhenAway(settings.share.when_away)
        self.switches = Switches(lambda: self._topology.models, self._hub.emit_now, loop.time)
        self._sharing = (
            None
            if engine is None
            else Sharing(
                engine,
                when_away,
                self.runtime,
                lambda name, on: self.switches.follow_hedging(name, on=on),
                dropped.of("share"),
            )
        )
        self._limits = LOCAL if self._sharing is None else self._sharing.limits
        self._topology = build_topology(settings, tasks, self.runtime, tune=tune, limits=self._limits)
        self.discovery = Discovery(tasks, self.runtime, self._apply_rows, os.environ)
        self.learned_state = OwnState(lambda: self._topology.models, dropped.of("learned_file"))
        self.learned = LearnedFile(
            settings.learned_file, self.learned_state, self.runtime.emit, dropped.of("learned_file")
        )
        self._observers.values.append(self.learned.values)
        self._metrics = self._observers.metrics(self._states, self._admission_state, self.discovery.states)
        self.view = OwnView(
            self._metrics,
            self._states,
            self._describe,
            self._report_usage,
            self._admission_state,
            self._observers.proof,
            self._share_state,
            self._observers.blocks,
        )
        if self._sharing is not None:
            self._sharing.count_in(self._metrics.instruments)
        self._observers.measure(goals(settings), every_goal(settings))
        self._tracing = Tracing(self._hub, loop, self._facts_of, VERSION, member.number)
        self._observers.values.append(self._tracing.counts.values)
        self._tracing.use(settings.tracing)
        apis = client_apis()
        self._routes = RacedRoutes(self._topology.serving, apis, self.runtime)
        self._counts = TokenCounts(self._topology.serving, apis[Api.MESSAGES], self.runtime)
        self._plain = PlainRoutes(
            self._topology.serving,
            self._models_of,
            int(datetime.now(UTC).timestamp()),
            lambda: not self.draining,
            self.runtime,
        )
        self._cors = CrossOrigin(settings.cors_origins) if settings.cors_origins else None

    @property
    def settings(self) -> config.Settings:
        """The settings in force."""
        return self._topology.settings

    @property
    def hub(self) -> Hub:
        """The receiver of all events."""
        return self._hub

    def counts(self) -> tuple[Dump, UsageDump, dict[str, Tally]]:
        """Return what the metrics, the usage table and the measurement of hedging have counted."""
        self._hub.flush()
        return self._metrics.instruments.dump(), self._observers.usage.dump(), self._observers.proof(None)

    async def start_sharing(self) -> None:
        """Ask the engine for the first time, at most 100 ms, and exchange with the other processes until `close`."""
        if self._sharing is None:
            return
        self._observers.values.append(self._sharing.values)
        self._sharing.use(self._topology.models.values(), self._topology.ledgers)
        await self._sharing.start()
        if self._sharing.carries_switches:
            self.switches.publish = self._sharing.publish

    def build_admin(self) -> "Admin":
        """Return the admin application; its framework is imported only then."""
        from gateway.server.admin import Admin, Controls

        controls = Controls(self.switches.switch_hedging, self.switches.switch_replica, self.reload)
        return Admin(self.view, controls, lambda: self.settings)

    @property
    def active(self) -> int:
        """Number of running requests."""
        return len(self._routes.active)

    def end_streams(self) -> None:
        """End every running request with an error, and reject new requests."""
        self._routes.refusing = True
        for race in tuple(self._routes.active):
            race.shut_down()
        for loser in tuple(self.runtime.losers):
            loser.stop()

    async def discover(self) -> None:
        """Find the replicas of models with a source, once before the first request; then follow the sources."""
        prepared = await self.discovery.prepare(self._topology.settings)
        if prepared.followed:
            self._use_rows(prepared.settings)
            self.discovery.commit(prepared)

    async def _apply_rows(self, settings: config.Settings, _model: str) -> None:
        self._use_rows(settings)

    def _use_rows(self, settings: config.Settings) -> None:
        """Put settings in force that differ only in replicas that were found at run time."""
        for each in self._use(self.prepare(settings, rows_only=True)):
            self._hub.emit_now(each)

    def close(self) -> None:
        """Close idle connections, and flush the log."""
        if self._sharing is not None:
            self._sharing.close()
        self.discovery.close()
        self._topology.close()
        self._tracing.close()
        self._observers.close()

    def client_idle_s(self) -> float:
        """Return the time after which an idle client connection is closed."""
        return self._topology.settings.timeouts.client_idle_s

    def on_accepting(self, address: str, error: OSError | None) -> None:
        """Report that accepting connections fails, or with None that it works again."""
        reason = None if error is None else error.strerror or type(error).__name__
        self._hub.emit_now(AcceptingChanged(self.runtime.loop.time(), address, error is None, reason))

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
        """Report an exception that only the event loop received (an exception handler of asyncio).

        The first traceback of each minute is logged; the metric counts all.
        """
        error = context.get("exception")
        self.runtime.report("event_loop", error if isinstance(error, Exception) else RuntimeError())
        if loop.time() >= self._next_traceback_s:
            self._next_traceback_s = loop.time() + _TRACEBACK_S
            given = error if isinstance(error, BaseException) else None
            logging.getLogger(__name__).error("the event loop reported: %s", context.get("message"), exc_info=given)

    def keep_warm(self) -> None:
        """Keep a connection open to every replica of each pool in use; must be called every few seconds."""
        self._topology.keep_warm()
        for model, replica in self._topology.forget_drained(self.runtime.loop.time()):
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
                    ConfigReloaded(self.runtime.loop.time(), len(topology.models), len(topology.replicas), 0, text)
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
        if fault := missing_exporter(settings.tracing):
            raise ReloadFailed(fault)
        try:
            return build_topology(
                settings, self._tasks, self.runtime, old, self._tune, self._limits, rows_only=rows_only
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
        old = self._topology
        switched = self._use(topology)
        origins = topology.settings.cors_origins
        self._cors = CrossOrigin(origins) if origins else None
        self._observers.measure(goals(topology.settings), every_goal(topology.settings))
        self._tracing.use(topology.settings.tracing)
        kept = sum(replica is old.replicas.get(named) for named, replica in topology.replicas.items())
        now_s = self.runtime.loop.time()
        new, rekeyed = len(topology.replicas) - kept, len(topology.new_keys)
        return ConfigReloaded(now_s, len(topology.models), kept, new, rekeyed=rekeyed), switched

    def _use(self, topology: Topology) -> list[ReplicaSwitched]:
        """Replace the topology; return an event for each replica that was taken in."""
        old, self._topology = self._topology, topology
        changed = [name for name, parts in topology.parts.items() if parts is not old.parts.get(name)]
        for name in changed:
            for pool in topology.models[name].pools:
                for replica in pool.replicas:  # one with new settings stays out, too
                    if replica is not old.replicas.get((name, replica.name)):
                        replica.out = old.is_out((name, replica.name))
        topology.use_keys(self.runtime.loop.time())
        topology.start_draining()
        switched = []
        for name in changed:
            model = topology.models[name]
            if all(replica.out for replica in model.replicas):
                switched += self.switches.take_in(model)  # the rest is gone
        self._routes.serving = self._counts.serving = self._plain.serving = topology.serving
        if self._sharing is not None:
            self._sharing.use(topology.models.values(), topology.ledgers)
        old.close(keep=topology)
        return switched

    def exchange(self, connection: Connection, head: RequestHead) -> ClientExchange:
        """Return the exchange for a request of a client."""
        cors = self._cors
        preflight = None if cors is None else cors.preflight(head.method, head.by_name)
        if preflight is not None:
            return self._plain.open_preflight(connection, head, preflight)
        exchange: ClientExchange | None = self._routes.open(connection, head)
        if exchange is None:
            exchange = self._counts.open(connection, head) or self._plain.open(connection, head)
        if cors is not None:
            exchange.own_headers = (*connection.own_headers, *cors.added(head.by_name))
        return exchange

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
        now_s = self.runtime.loop.time()
        for model in self._topology.models.values():
            for pool in model.pools:
                with self._leave_out(pool.name):
                    yield from pool_state(model.name, pool, now_s, self._topology.draining(model.name, pool.name))

    def _admission_state(self) -> AdmissionState:
        topology = self._topology
        fair_queues = {name: queue.fair_queue for name, queue in topology.model_queues.items()}
        return admission_state(fair_queues, topology.key_limiters, topology.memory, self.runtime.loop.time())

    def _facts_of(self, model: str, replica: str) -> ReplicaFacts | None:
        parts = self._topology.parts.get(model)
        row, origin = (None, None) if parts is None else parts.rows.get(replica, (None, None))
        if row is None or origin is None:
            return None
        port = None if origin.socket else origin.port
        return ReplicaFacts(row.kind, row.model or model, origin.socket or origin.host, port)

    def _share_state(self) -> ShareState | None:
        return None if self._sharing is None else self._sharing.state()

    def _describe(self, name: str, quantiles: Sequence[float]) -> dict[str, object] | None:
        model = self._topology.models.get(name)
        if model is None:
            return None
        described = describe(model, self.runtime.loop.time(), quantiles, self._leave_out)
        found = [source for source in self.discovery.states() if source.model == name]
        return {**described, "discovery": found, "learned_file": self.learned.describe()}


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
