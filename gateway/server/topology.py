"""Builds the objects that settings describe: models with pools and replicas, keys, limits; again at each reload.

Part of the composition root. A new topology takes over the objects with unchanged
settings: replicas with breakers and connections, learned latencies of pools, ledgers, usage of keys. Models that
have the same settings object are taken over whole if nothing but models differs: replicas that come and go cost no more
than their own model. Running requests keep their old objects. No policy belongs here. Units: seconds, bytes.
"""

import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from gateway.admission.admission import Admission, ModelQueue
from gateway.admission.body_memory import BodyMemory
from gateway.admission.caller_limits import CallerLimits, KeyLimiter
from gateway.admission.fair_queue import FairQueue
from gateway.api.auth import HostCheck, Keyring, PageCheck
from gateway.api.body_reader import BodyLimits
from gateway.api.serving import AttemptLimits, RequestLimits, Serving
from gateway.api.turns import Turns
from gateway.config import settings as config
from gateway.config.settings import KeySettings
from gateway.events import PreviousKeyUsed
from gateway.listed_keys import ListedKeys
from gateway.observe.proof import Goal, goals
from gateway.race.context import Model, Runtime
from gateway.server.credentials.board import TokenUser
from gateway.server.model_parts import Before, Foundation, ModelParts, NewKey, PartsBuilder, answers_as
from gateway.server.upstreams import UpstreamClient, quota_model
from gateway.traces import TraceStart
from providers.transport.origin import Origin
from ttft_gateway.apis.base import Resource
from ttft_gateway.hedging.contract import ATTEMPTS_MAX
from ttft_gateway.limits.bucket import Limit
from ttft_gateway.limits.ledger import LedgerRegistry
from ttft_gateway.limits.rates import LimitMaker
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.routing.affinity import Affinity
from ttft_gateway.routing.replicas import Replica

_PASSED_HEADERS = frozenset(
    {
        b"anthropic-beta",
        b"openai-beta",
        b"traceparent",
        b"tracestate",
        b"x-llm-d-slo-tpot-ms",
        b"x-llm-d-slo-ttft-ms",
    }
)
_STEP_MODELS = 2  # some 1 ms, if all of their replicas are new
_KEYED_MODELS = 50  # some 0.5 ms
_WARM_MODELS = 250  # some 0.5 ms
_DRAINED_S = 300.0  # time for which a removed replica stays in the metrics
_T = TypeVar("_T")


class Drained(msgspec.Struct, frozen=True):
    """A replica that was removed from its model and completes its requests.

    Attributes:
        pool: name of its pool.
        was_out: True if an operator had taken it out.
        until_s: time at which it is forgotten, unless it still has requests.
    """

    pool: str
    replica: Replica
    was_out: bool
    until_s: float


class Topology(msgspec.Struct, frozen=True):
    """All objects that depend on the settings.

    Attributes:
        settings: settings of this topology.
        serving: objects that handle requests.
        models: models by public name, in the order of the settings.
        key_limiters: limiters of the keys with limits, by name of the key.
        count_limiters: the same for requests that only count tokens.
        model_queues: queues of the models with a concurrency limit, by name.
        memory: counter of the bytes of request bodies.
        ledgers: ledgers by quota.
        parts: parts of each model, by name.
        clients: client of each origin.
        replicas: replicas by names of model and replica.
        drained: replicas that were removed, by the same names.
        new_keys: replicas with another key than in the previous topology.
        kept: number of replicas that the previous topology has, too.
        goals: goals of the models with measured hedging.
    """

    settings: config.Settings
    serving: Serving
    models: dict[str, Model]
    key_limiters: dict[str, KeyLimiter]
    count_limiters: dict[str, KeyLimiter]
    model_queues: dict[str, ModelQueue]
    memory: BodyMemory
    ledgers: LedgerRegistry
    parts: dict[str, ModelParts]
    clients: dict[Origin, UpstreamClient]
    replicas: dict[tuple[str, str], Replica]
    drained: dict[tuple[str, str], Drained]
    new_keys: list[NewKey]
    kept: int
    goals: Mapping[str, Goal]

    def take_over(self, old: "Topology", now_s: float) -> list[Model]:
        """Go on as the previous topology: replicas stay out, keys change; return other models that have replicas out.

        Removed replicas get no new attempts, not even of requests that have the previous pools.
        """
        changed = [self.models[name] for name, parts in self.parts.items() if parts is not old.parts.get(name)]
        out = old.out()
        for named in out & self.replicas.keys():  # one with new settings stays out, too
            self.replicas[named].take_out(out=True)
        for model in changed:
            if model.name in old.models:
                for pool, former in zip(model.pools, old.models[model.name].pools, strict=False):
                    pool.hedging_on = former.hedging_on  # it may have been switched since the pool was built
        for new_key in self.new_keys:
            new_key.replica.use_key(new_key.endpoint, new_key.secrets, now_s)
        for drained in self.drained.values():
            drained.replica.take_out(out=True)
        in_part = {name for name, _ in out}
        return [model for model in changed if model.name in in_part]

    def out(self) -> set[tuple[str, str]]:
        """Return the replicas that an operator has taken out, with those that were removed since then."""
        out = {named for named, replica in self.replicas.items() if replica.taken_out}
        return out | {named for named, each in self.drained.items() if each.was_out}

    def draining(self) -> dict[tuple[str, str], list[Replica]]:
        """Return the replicas that were removed, by names of model and pool."""
        found: dict[tuple[str, str], list[Replica]] = {}
        for (model, _), each in self.drained.items():
            found.setdefault((model, each.pool), []).append(each.replica)
        return found

    def forget_drained(self, now_s: float) -> list[tuple[str, str]]:
        """Forget removed replicas after their time and last request; return their names."""
        over = [key for key, each in self.drained.items() if now_s >= each.until_s and not each.replica.in_flight]
        left = {(model, self.drained.pop((model, name)).pool) for model, name in over}
        for model in {model for model, _ in left} & self.models.keys():
            for pool in self.models[model].pools:
                if (model, pool.name) in left:
                    pool.learning.forget_others([replica.name for replica in pool.replicas])
        return over

    def keep_warm(self) -> Iterator[None]:
        """Keep a connection open to every replica of each pool in use; must be called every few seconds.

        Yields between steps that are too short to delay a stream.
        """
        for number, parts in enumerate(self.parts.values(), 1):
            for pool in parts.warm_pools:
                pool.keep_warm()
            if number % _WARM_MODELS == 0:
                yield

    def set_kept(self) -> None:
        """Give objects that several topologies share the values of these settings."""
        settings = self.settings
        self.memory.bytes_max = settings.limits.buffered_bodies_max_bytes
        self.memory.is_shared = _has_several_keys(settings)
        for model in settings.models:
            for replica in (*model.replicas, *(each for pool in model.fallbacks for each in pool.replicas)):
                built = self.replicas[(model.name, replica.name)]
                built.backup_only, built.weight = replica.backup_only, replica.weight
                built.answers_as = answers_as(model, replica)

    def close(self, keep: "Topology | None" = None) -> None:
        """Close idle connections, except connections of clients that `keep` has taken over."""
        kept = set() if keep is None else set(map(id, keep.clients.values()))
        for name, parts in self.parts.items():
            if keep is None or parts is not keep.parts.get(name):
                for client in parts.clients.values():
                    if id(client) not in kept:
                        client.close()


class InForce:
    """The settings in force: objects that live as long as the process read the topology here at every use.

    Attributes:
        topology: objects that the settings describe; only a reload replaces it.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    def models(self) -> Iterator[Model]:
        """Yield the models; those that a reload replaces meanwhile are freed one by one, not all at the end."""
        left = list(reversed(self.topology.models.values()))
        while left:
            yield left.pop()

    def token_users(self) -> Iterator[TokenUser]:
        """Yield the replicas that send a token."""
        for parts in self.topology.parts.values():
            yield from parts.token_users


def build_topology(
    settings: config.Settings, foundation: Foundation, previous: Topology | None = None, *, rows_only: bool = False
) -> Topology:
    """Build all objects that depend on the settings; must be called on the running loop.

    Args:
        previous: topology to replace; None at the start.
        rows_only: True if the settings differ from the previous ones only in replicas that were found at run time.
    """
    steps = build_in_steps(settings, foundation, previous, rows_only=rows_only)
    while True:
        try:
            next(steps)
        except StopIteration as built:
            found: Topology = built.value
            return found


def build_in_steps(
    settings: config.Settings, foundation: Foundation, previous: Topology | None = None, *, rows_only: bool = False
) -> Generator[None, None, Topology]:
    """Do the same, and yield between steps that are too short to delay a stream."""
    return (yield from _Builder(settings, foundation, previous, rows_only=rows_only).build())


class _Builder:
    def __init__(
        self, settings: config.Settings, foundation: Foundation, previous: Topology | None, *, rows_only: bool
    ) -> None:
        self._limits, self._runtime, self._listed = foundation.limits, foundation.runtime, foundation.listed
        self._settings = settings
        self._previous = previous
        self._rows_only = rows_only
        self._now_s = self._runtime.loop.time()
        if previous is not None and self._rows_only:
            self._ledgers = previous.ledgers
        else:
            self._ledgers = _ledgers(settings.quotas, None if previous is None else previous.ledgers, self._limits)
        models = () if previous is None else previous.models.values()
        stored = next((model.stored_answers for model in models), None) or Affinity()  # one for all models
        before = None
        if previous is not None:
            keeps = self._rows_only or settings.is_same_but_models(previous.settings)
            state = previous.settings, previous.parts, previous.clients, previous.replicas
            before = Before(*state, rows_only, keeps)
        self._builder = PartsBuilder(settings, foundation, before, self._ledgers, stored)

    def build(self) -> Generator[None, None, Topology]:
        settings, previous = self._settings, self._previous
        if previous is not None and not self._rows_only:
            yield from _rekey(self._ledgers, previous.settings, settings)
        parts: dict[str, ModelParts] = {}
        for number, model in enumerate(settings.models, 1):
            parts[model.name] = self._builder.parts(model)
            if number % _STEP_MODELS == 0:
                yield
        models = {name: each.model for name, each in parts.items()}
        if previous is not None and self._rows_only:
            return self._with_changed(previous, parts, models)
        yield
        key_limiters = _key_limiters(settings.keys, self._limits)
        count_limiters = _key_limiters(settings.keys, self._limits, counts_only=True)
        yield
        model_queues = _model_queues(settings.models, self._limits)
        memory = BodyMemory(settings.limits.buffered_bodies_max_bytes) if previous is None else previous.memory
        memory.bytes_max = settings.limits.buffered_bodies_max_bytes
        memory.is_shared = _has_several_keys(settings)
        if previous is not None:
            old = previous.settings
            old_keys = {key.name: key.without_secrets for key in old.keys}
            key_limiters |= _kept(previous.key_limiters, old_keys, settings.keys)
            count_limiters |= _kept(previous.count_limiters, old_keys, settings.keys)
            model_queues |= _kept_queues(previous, settings.models)
        yield
        turns = Turns(self._runtime.loop) if previous is None else previous.serving.bodies.turns
        body_bytes_max, body_s = settings.limits.request_body_max_bytes, settings.timeouts.request_body_s
        bodies = BodyLimits(body_bytes_max, body_s, memory, self._runtime, turns)
        uploads = replace(bodies, bytes_max=settings.limits.upload_max_bytes)
        listed = self._listed
        admission = Admission(key_limiters, model_queues, self._runtime, None if listed is None else listed.limiters)
        counts = Admission(count_limiters, {}, self._runtime, None if listed is None else listed.counts)
        limits, attempts = _request_limits(settings), _attempt_limits(settings.keys)
        listed_keys = None if listed is None else listed.keys
        keys = _keyring(settings, partial(_report_previous_key, self._runtime), listed_keys)
        named = _with_aliases(models, settings.models)
        tracing = settings.tracing
        traces = None if tracing is None else TraceStart(tracing.sample, random.Random().getrandbits)
        yield
        serving = Serving(named, keys, bodies, uploads, admission, counts, limits, attempts, traces, listed_keys)
        clients = {origin: client for each in parts.values() for origin, client in each.clients.items()}
        yield
        drained = self._drained(() if previous is None else previous.models, self._builder.replicas)
        yield
        kept = self._kept(self._builder.replicas)
        yield
        return Topology(
            settings,
            serving,
            models,
            key_limiters,
            count_limiters,
            model_queues,
            memory,
            self._ledgers,
            parts,
            clients,
            self._builder.replicas,
            drained,
            self._builder.new_keys,
            kept,
            goals(settings),
        )

    def _kept(self, replicas: Mapping[tuple[str, str], Replica]) -> int:
        old = {} if self._previous is None else self._previous.replicas
        return sum(replica is old.get(named) for named, replica in replicas.items())

    def _with_changed(self, old: Topology, parts: dict[str, ModelParts], models: dict[str, Model]) -> Topology:
        """Return a topology in which only the replicas of some models are others."""
        changed = [name for name, each in parts.items() if each is not old.parts.get(name)]
        clients, replicas = dict(old.clients), dict(old.replicas)
        for name in changed:
            for replica in old.parts[name].rows:
                del replicas[name, replica]
            for origin in old.parts[name].clients.keys() - parts[name].clients.keys():
                if not any(origin in each.clients for each in parts.values()):
                    del clients[origin]
            clients.update(parts[name].clients)
        replicas |= self._builder.replicas
        drained = self._drained(changed, replicas)
        quotas = {each.replica.quota for named, each in drained.items() if named not in old.drained} - {None}
        if quotas:
            for quota in quotas - {each.quota for each in replicas.values()}:
                self._ledgers.forget(quota or "")
        serving = replace(old.serving, models=_with_aliases(models, self._settings.models))
        return replace(
            old,
            settings=self._settings,
            serving=serving,
            models=models,
            parts=parts,
            clients=clients,
            replicas=replicas,
            drained=drained,
            new_keys=self._builder.new_keys,
            kept=self._kept(replicas),
            goals=goals(self._settings),
        )

    def _drained(
        self, models: Iterable[str], replicas: Mapping[tuple[str, str], Replica]
    ) -> dict[tuple[str, str], Drained]:
        """Return the removed replicas, with those that were removed from these models now."""
        old = self._previous
        if old is None:
            return {}
        drained = {named: each for named, each in old.drained.items() if named not in replicas}
        until_s = self._now_s + _DRAINED_S
        for name in models:
            for pool in old.models[name].pools:
                for replica in pool.replicas:
                    if (name, replica.name) not in replicas:
                        drained[name, replica.name] = Drained(pool.name, replica, replica.taken_out, until_s)
        return drained


def _report_previous_key(runtime: Runtime, name: str) -> None:
    runtime.emit(PreviousKeyUsed(runtime.loop.time(), name))


def _with_aliases(models: Mapping[str, Model], settings: Sequence[config.ModelSettings]) -> dict[str, Model]:
    return {**models, **{alias: models[each.name] for each in settings for alias in each.aliases}}


def _kept_queues(old: Topology, settings: Sequence[config.ModelSettings]) -> dict[str, ModelQueue]:
    """Return the previous queues of the models with unchanged concurrency: their requests still count."""
    queues = old.model_queues
    before = {model.name: (model.concurrency, model.queue) for model in old.settings.models if model.name in queues}
    return {
        model.name: queues[model.name]
        for model in settings
        if before.get(model.name) == (model.concurrency, model.queue)
    }


def _kept(
    old: Mapping[str, _T], old_settings: Mapping[str, KeySettings], settings: Sequence[KeySettings]
) -> dict[str, _T]:
    """Return the previous objects of the keys with settings that are unchanged except for secrets, by name."""
    return {
        new.name: old[new.name]
        for new in settings
        if new.name in old and old_settings.get(new.name) == new.without_secrets
    }


def _ledgers(
    quotas: Sequence[config.QuotaSettings], previous: LedgerRegistry | None, made: LimitMaker
) -> LedgerRegistry:
    configured = {}
    for quota in quotas:
        amounts = ((Resource.REQUESTS, quota.requests_per_min), (Resource.TOKENS, quota.tokens_per_min))
        limits = [Limit(resource, amount, enforce=quota.enforce) for resource, amount in amounts if amount is not None]
        configured[quota.name] = limits
    return LedgerRegistry(configured, previous, made)


def _rekey(ledgers: LedgerRegistry, old: config.Settings, new: config.Settings) -> Iterator[None]:
    """Carry over each quota of which all replicas have a new key; yields between short steps."""
    former_models, others = {model.name: model for model in old.models}, []
    for number, model in enumerate(new.models, 1):
        former = former_models.get(model.name, model)
        if former is not model:
            before = _keyed(former)
            pairs = [(before.get(name, now), now) for name, now in _keyed(model).items()]
            others += [(was, now) for was, now in pairs if was != now and was[:2] == now[:2]]
        if number % _KEYED_MODELS == 0:
            yield
    in_use: set[tuple[str, str, str | None]] = set()
    for number, model in enumerate(new.models if others else (), 1):
        in_use.update(_keyed(model).values())
        if number % _KEYED_MODELS == 0:
            yield
    for number, (was, now) in enumerate(others, 1):
        if was not in in_use:
            ledgers.rekey(*was, now[2])
        if number % _KEYED_MODELS == 0:
            yield


def _keyed(model: config.ModelSettings) -> dict[str, tuple[str, str, str | None]]:
    """Return base URL, model and key of each replica of a model, by its name."""
    return {
        row.name: (
            row.base_url,
            quota_model(row, model.name),
            None if row.api_key is None else row.api_key.get_secret_value(),
        )
        for row in (*model.replicas, *(each for pool in model.fallbacks for each in pool.replicas))
    }


def _key_limiters(keys: Sequence[KeySettings], made: LimitMaker, *, counts_only: bool = False) -> dict[str, KeyLimiter]:
    limits = {
        key.name: CallerLimits(key.requests_per_min, None if counts_only else key.tokens_per_min, key.concurrency)
        for key in keys
    }
    kind = "count" if counts_only else "key"
    return {
        name: KeyLimiter(given, f"{kind}:{name}", made) for name, given in limits.items() if given != CallerLimits()
    }


def _model_queues(models: Sequence[config.ModelSettings], made: LimitMaker) -> dict[str, ModelQueue]:
    queues = {}
    for model in models:
        if model.concurrency is not None:
            slots = made.slots(f"model:{model.name}", model.concurrency)
            queue = ModelQueue(FairQueue(model.concurrency, model.queue.max, slots), model.queue.timeout_s)
            slots.serve(queue.waiting, queue.admit)
            queues[model.name] = queue
    return queues


def _request_limits(settings: config.Settings) -> RequestLimits:
    limits = settings.limits
    passed_headers = _PASSED_HEADERS.union(map(str.encode, settings.pass_headers))
    if settings.tracing is not None:
        passed_headers -= {b"traceparent"}  # each attempt has its own
    bounds = NumberLimits(n_max=limits.n_max, max_tokens_max=limits.max_tokens_max)
    return RequestLimits(bounds, passed_headers, settings.default_model)


def _has_several_keys(settings: config.Settings) -> bool:
    return len(settings.keys) > 1 or settings.keys_from is not None


def _keyring(settings: config.Settings, on_previous: Callable[[str], object], listed: ListedKeys | None) -> Keyring:
    """Return the keys; a key for a model may use its aliases, too.

    Args:
        on_previous: called with the name of a key for each use of its previous secret.
        listed: keys from a list.
    """
    names = {key.key.get_secret_value(): key.name for key in settings.keys}
    previous = {key.previous_key.get_secret_value(): key.name for key in settings.keys if key.previous_key is not None}
    aliases = {model.name: model.aliases for model in settings.models}
    return Keyring(
        names,
        {
            key.name: frozenset(name for model in key.models for name in (model, *aliases[model]))
            for key in settings.keys
            if key.models is not None
        },
        HostCheck(settings.own_hosts),
        previous,
        on_previous,
        PageCheck(settings.cors_origins, is_local=settings.listen.loopback),
        listed,
        {name: (model, *names) for model, names in aliases.items() if names for name in (model, *names)},
    )


def _attempt_limits(keys: Sequence[KeySettings]) -> dict[str, AttemptLimits]:
    """Return the limits on attempts by name of the key, for keys that have some."""
    limits = {key.name: AttemptLimits(key.hedge and key.attempts_max > 1, key.attempts_max) for key in keys}
    usual = AttemptLimits(hedge=True, attempts_max=ATTEMPTS_MAX)
    return {name: given for name, given in limits.items() if given != usual}
