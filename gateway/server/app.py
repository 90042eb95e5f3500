"""The composition root: builds the objects that live as long as the process, around the topology in force.

What the settings describe is the topology (topology.py), which a reload replaces (reloads.py). Whatever depends on the
settings in force has `InForce`, or is renewed in `Gateway._use_new`. No policy belongs here. Units: seconds, bytes.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.admission.listed_limiters import Listed
from gateway.config.settings import Settings
from gateway.health.watch import Watch
from gateway.health.windows import WindowCounts
from gateway.listed_keys import KeyChange
from gateway.observe.hub import Observers
from gateway.observe.logs import epoch_of
from gateway.observe.process import ALONE, Member
from gateway.observe.proof import every_goal
from gateway.process_events import AcceptingChanged
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from gateway.server.credentials.board import TokenBoard, token_sources
from gateway.server.credentials.keepers import TokenKeepers
from gateway.server.fleet_size import FleetSize
from gateway.server.key_watch import FirstKeys, KeyWatch
from gateway.server.learned_file import LearnedFile
from gateway.server.learned_state import OwnState
from gateway.server.model_parts import Foundation, Tune
from gateway.server.own_view import OwnView
from gateway.server.public_routes import PublicRoutes
from gateway.server.reloads import Reloads, Reread
from gateway.server.sharing import Sharing
from gateway.server.switches import Switches
from gateway.server.topology import InForce, build_topology
from gateway.server.tracing import Tracing
from gateway.share.fleet import Fleet, WhenAway
from gateway.share.messages import NamedEngine
from gateway.version import VERSION
from ttft_gateway.estimation.window import bin_values
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
        hub: receiver of all events.
        runtime: clock, timers and receiver of events.
        in_force: the topology in force, the only object that a reload replaces.
        switches: switches of hedging and of replicas.
        reloads: changes of the settings in force.
        public: routes of the public address.
        learned_state: learned state of the pools.
        learned: file of the learned state.
        tokens: tokens in use.
        listed: keys from a list; None without a list.
        view: state for the admin address.
        watch: verdict and history; its task is for the process that has the admin address.
    """

    def __init__(
        self,
        settings: Settings,
        tasks: asyncio.TaskGroup,
        reread: Reread | None = None,
        tune: Tune | None = None,
        member: Member = ALONE,
        engine: NamedEngine | None = None,
    ) -> None:
        bin_values()  # so that the first plan of a pool imports nothing
        loop = asyncio.get_running_loop()
        self._tasks = tasks
        self._next_traceback_s = 0.0
        self._observers = observers = Observers(loop, VERSION, member)
        self.hub, dropped = observers.hub, observers.dropped
        self.runtime = Runtime(loop, self.hub.emit, random.Random().random, TimerQueue(loop))
        when_away = WhenAway.SHARE if settings.share is None else WhenAway(settings.share.when_away)
        gateways = 1 if settings.share is None else settings.share.gateways
        size = FleetSize(gateways, member.workers, Fleet(when_away), tasks)
        self._sharing = None if engine is None else Sharing(engine, size, self.runtime, dropped.of("share"))
        limits = LOCAL if self._sharing is None else self._sharing.limits
        self.tokens = TokenBoard(loop.time)
        self.listed = None if settings.keys_from is None else Listed(limits)
        foundation = Foundation(tasks, self.runtime, limits, tune, self.tokens, self.listed)
        self.in_force = InForce(build_topology(settings, foundation))
        self._models = {*self.in_force.topology.models}  # and those with draining replicas
        self.tokens.users = self.in_force.token_users
        self._keepers: TokenKeepers | None = None
        self._watching: asyncio.Task[None] | None = None
        self.switches = Switches(self.in_force, self.hub.emit_now, loop.time)
        self.reloads = Reloads(self.in_force, foundation, reread, self.switches, self._use_new, self.hub.emit_now)
        self.public = PublicRoutes(self.in_force, self.runtime)
        self.learned_state = OwnState(self.in_force, dropped.of("learned_file"))
        self.learned = LearnedFile(
            settings.learned_file, self.learned_state, self.runtime.emit, dropped.of("learned_file")
        )
        self._tracing = Tracing(self.hub, loop, self.in_force, VERSION, member.number)
        observers.values += [self.learned.values, self._tracing.counts.values]
        self._windows = WindowCounts(epoch_of(loop.time), loop.time)
        self.view = OwnView(
            self.in_force,
            self.runtime,
            observers,
            self.reloads.discovery,
            self.learned,
            self._sharing,
            self._windows,
            self.listed,
        )
        self.watch = Watch(self.view.collect, self.hub.emit_now, loop.time, epoch_of(loop.time))
        self.view.watch = self.watch
        self.hub.collectors += [self._windows.on_events, self.watch.on_events]
        observers.values.append(self.watch.values)
        if self._sharing is not None:
            self._sharing.count_in(self.view.metrics.instruments)
        self._use_new()

    def _use_new(self) -> None:
        """Renew whatever was made from the settings and is not part of the topology."""
        topology = self.in_force.topology
        self.tokens.use_new()
        if self._keepers is not None:
            self._keepers.follow(user.source for user in self.in_force.token_users())
        self.public.use_new()
        self._observers.measure(topology.goals, partial(every_goal, topology.settings))
        self._tracing.use(topology.settings.tracing)
        if self._sharing is not None:
            self._sharing.use(topology.models.values(), topology.ledgers)

    async def start_sharing(self) -> None:
        """Ask the engine for the first time, at most 100 ms, and exchange with the other processes until `close`."""
        if self._sharing is None:
            return
        self._observers.values.append(self._sharing.values)
        await self._sharing.start(self.switches.follow_hedging)
        if self._sharing.carries_switches:
            self.switches.publish = self._sharing.publish

    async def start_tokens(self) -> None:
        """Fetch the tokens of the settings, at most ten seconds, and keep them until `close`."""
        self._keepers = keepers = TokenKeepers(self._tasks, self.runtime, self.tokens.put)
        self.tokens.reject = keepers.on_rejected
        self.reloads.prepare_tokens = keepers.prepare
        self._observers.values.append(keepers.values)
        await keepers.prepare(token_sources(self.in_force.topology.settings))

    async def use_keys(self, change: KeyChange) -> None:
        """Put a change of the list of keys in force."""
        for _ in () if self.listed is None else self.listed.keys.apply(change):
            await asyncio.sleep(0)

    async def start_keys(self, first: FirstKeys | None) -> None:
        """Put the first keys of the list in force, and follow it; nothing without a list."""
        path = self.in_force.topology.settings.keys_from
        if first is None or path is None:
            return
        watch = KeyWatch(Path(path), lambda: self.in_force.topology.settings, self.runtime, self.use_keys)
        await watch.begin(first)
        self._observers.values.append(watch.values)
        self._watching = self._tasks.create_task(watch.run())

    def build_admin(self) -> "Admin":
        """Return the admin application; its framework is imported only then."""
        from gateway.server.admin import Admin, Controls

        controls = Controls(self.switches.switch_hedging, self.switches.switch_replica, self.reloads.reload)
        return Admin(self.view, controls, lambda: self.in_force.topology.settings)

    def close(self) -> None:
        """Close idle connections, and flush the log."""
        if self._sharing is not None:
            self._sharing.close()
        if self._keepers is not None:
            self._keepers.close()
        self.reloads.discovery.close()
        if self._watching is not None:
            self._watching.cancel()
        self.in_force.topology.close()
        self._tracing.close()
        self._observers.close()

    def client_idle_s(self) -> float:
        """Return the time after which an idle client connection is closed."""
        return self.in_force.topology.settings.timeouts.client_idle_s

    def keep_warm(self) -> None:
        """Keep a connection open to every replica of each pool in use; must be called every few seconds."""
        topology = self.in_force.topology
        self._step(topology.keep_warm())
        drained = topology.forget_drained(self.runtime.loop.time())
        before, self._models = self._models, {*topology.models, *(model for model, _ in topology.drained)}
        self._step(self._forget(drained, before - self._models))

    def _forget(self, drained: Iterable[tuple[str, str]], models: Iterable[str]) -> Iterator[None]:
        """Drop what was counted of removed replicas and models; yields after each."""
        for model, replica in drained:
            self.view.metrics.forget(model, replica)
            self._windows.forget(model, replica)
            yield
        for model in models:
            self.view.metrics.forget(model, None)
            yield

    def _step(self, steps: Iterator[None]) -> None:
        """Take a step now, and each later one in another turn of the loop."""
        for _ in steps:
            self.runtime.loop.call_soon(self._step, steps)
            return

    def on_accepting(self, address: str, error: OSError | None) -> None:
        """Report that accepting connections fails, or with None that it works again."""
        reason = None if error is None else error.strerror or type(error).__name__
        self.hub.emit_now(AcceptingChanged(self.runtime.loop.time(), address, error is None, reason))

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
