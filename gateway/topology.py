"""Builds the objects that settings describe: models with pools and replicas, keys, limits; again at each reload.

One half of the composition root (app.py is the other). A new topology takes over the objects whose settings are
unchanged: replicas with breakers and connections, learned latencies of pools, ledgers, usage of keys. Running requests
keep their old objects. No policy belongs here. Units: seconds, bytes.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import urlsplit

from gateway.api.admission import Admission, ModelQueue
from gateway.api.body_reader import BodyLimits
from gateway.api.serving import Serving
from gateway.api.turns import Turns
from gateway.callers import attempt_limits, keyring, request_limits
from gateway.config import settings as config
from gateway.estimation.tokens import TokenScale
from gateway.events import ParamsDropped
from gateway.hedging.budget import BudgetUnit
from gateway.hedging.parameters import HedgeParameters
from gateway.hedging.plan import Policy
from gateway.limits.body_memory import BodyMemory
from gateway.limits.bucket import Limit
from gateway.limits.budget import RetryBudget
from gateway.limits.caller_limits import CallerLimits, KeyLimiter
from gateway.limits.fair_queue import FairQueue
from gateway.limits.ledger import LedgerRegistry
from gateway.pool.pool import Pool
from gateway.race.context import Model, RecoveryMode, Runtime, Timeouts
from gateway.routing.affinity import Affinity, Kept
from gateway.routing.replicas import Replica
from gateway.routing.strategies import Crossing, Routing
from gateway.upstreams import (
    UpstreamClient,
    WarmPool,
    client_to,
    edits_of,
    endpoint_at,
    native_apis,
    origin_of,
    prices_of,
    secrets_of,
)
from gateway.version import gateway_version
from providers.base import Api, FirstToken, Resource
from providers.catalog import CATALOG, Kind
from providers.openai.transcript import OpenAIRecoverer
from providers.protocols import ProtocolOptions, protocols
from providers.transport.origin import Origin

_GAIN_MIN_PROVIDER = 0.25  # minimum saving of a backup, as a multiple of its own TTFT
_GAIN_MIN_ENGINE = 5.0  # more on own engines, where a backup slows others down (docs/evaluation/hedging.md, W5)
_PARAMS_MAX = 16  # dropped parameters that are reported for one request
_PARAM_CHARS_MAX = 100
_VERSION = gateway_version()  # reads a file, so not on the loop

_T = TypeVar("_T")

Tune = Callable[[HedgeParameters], HedgeParameters]
"""Changes the hedging of every pool beyond the settings; for measurements."""


@dataclass(frozen=True)
class Topology:
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
        clients: client of each origin.
        warm_pools: clients of each pool.
        replicas: replicas by names of model and replica.
    """

    settings: config.Settings
    serving: Serving
    models: dict[str, Model]
    key_limiters: dict[str, KeyLimiter]
    count_limiters: dict[str, KeyLimiter]
    model_queues: dict[str, ModelQueue]
    memory: BodyMemory
    ledgers: LedgerRegistry
    clients: dict[Origin, UpstreamClient]
    warm_pools: list[WarmPool]
    replicas: dict[tuple[str, str], Replica]

    def keep_warm(self) -> None:
        """Keep a connection open to every replica of each pool in use; must be called every few seconds."""
        for pool in self.warm_pools:
            pool.keep_warm()

    def close(self, keep: "Topology | None" = None) -> None:
        """Close idle connections, except those of clients that `keep` has taken over."""
        for origin, client in self.clients.items():
            if keep is None or origin not in keep.clients:
                client.close()


def build_topology(
    settings: config.Settings,
    tasks: asyncio.TaskGroup,
    runtime: Runtime,
    previous: Topology | None = None,
    tune: Tune | None = None,
) -> Topology:
    """Build all objects that depend on the settings; must be called on the running loop.

    Args:
        tasks: owner of connecting tasks.
        previous: topology to replace; None at the start.
        tune: change of each model's hedging; None for the settings as they are.
    """
    return _Builder(settings, tasks, runtime, previous, tune).build()


class _Builder:
    def __init__(
        self,
        settings: config.Settings,
        tasks: asyncio.TaskGroup,
        runtime: Runtime,
        previous: Topology | None,
        tune: Tune | None,
    ) -> None:
        self._tune = tune
        self._settings = settings
        self._tasks = tasks
        self._runtime = runtime
        self._previous = previous
        self._ledgers = _ledgers(settings.quotas, None if previous is None else previous.ledgers)
        models = () if previous is None else previous.models.values()
        self._kept = next((model.kept for model in models), None) or Affinity()  # one for all models
        self._clients: dict[Origin, UpstreamClient] = {}
        self._warm_pools: list[WarmPool] = []
        self._replicas: dict[tuple[str, str], Replica] = {}

    def build(self) -> Topology:
        settings, previous = self._settings, self._previous
        models = {model.name: self._model(model) for model in settings.models}
        key_limiters, count_limiters = _key_limiters(settings.keys), _key_limiters(settings.keys, counts_only=True)
        model_queues = _model_queues(settings.models)
        memory = BodyMemory(settings.limits.buffered_bodies_max_bytes) if previous is None else previous.memory
        memory.bytes_max = settings.limits.buffered_bodies_max_bytes
        memory.is_shared = len(settings.keys) > 1
        if previous is not None:
            old = previous.settings
            old_keys = {key.name: key for key in old.keys}
            key_limiters |= _kept(previous.key_limiters, old_keys, settings.keys)
            count_limiters |= _kept(previous.count_limiters, old_keys, settings.keys)
            model_queues |= _kept(previous.model_queues, {model.name: model for model in old.models}, settings.models)
        turns = Turns(self._runtime.loop) if previous is None else previous.serving.bodies.turns
        body_bytes_max, body_s = settings.limits.request_body_max_bytes, settings.timeouts.request_body_s
        bodies = BodyLimits(body_bytes_max, body_s, memory, self._runtime, turns)
        admission = Admission(key_limiters, model_queues, self._runtime)
        counts = Admission(count_limiters, {}, self._runtime)
        named = models | {alias: models[each.name] for each in settings.models for alias in each.aliases}
        limits, attempts = request_limits(settings), attempt_limits(settings.keys)
        serving = Serving(named, keyring(settings), bodies, admission, counts, limits, attempts)
        return Topology(
            settings,
            serving,
            models,
            key_limiters,
            count_limiters,
            model_queues,
            memory,
            self._ledgers,
            self._clients,
            self._warm_pools,
            self._replicas,
        )

    def _model(self, model: config.ModelSettings) -> Model:
        settings = self._settings
        hedge = hedge_parameters(settings.hedge_of(model), Crossing(model.cross_boundary), model.first_token)
        if self._tune is not None:
            hedge = self._tune(hedge)
        old = None if self._previous is None else self._previous.models.get(model.name)
        groups = [model.replicas, *(fallback.replicas for fallback in model.fallbacks)]
        pools, kept = [], self._kept
        for number, replicas in enumerate(groups):
            name = model.name if number == 0 else f"{model.name}/fallback-{number}"
            made = [self._replica(model, replica, kept) for replica in replicas]
            previous = old.pools[number] if old is not None and number < len(old.pools) else None
            pools.append(Pool(name, made, hedge, self._ledgers, previous))
            self._warm_pools.append(WarmPool([self._client(replica) for replica in replicas]))
        apis = frozenset(api for pool in pools for replica in pool.replicas for api in replica.apis)
        keeps = any(
            CATALOG[each.kind].stores_responses and Api.RESPONSES in native_apis(each)
            for group in groups
            for each in group
        )
        return Model(
            model.name,
            pools,
            timeouts(settings.timeouts),
            scale=TokenScale() if old is None else old.scale,
            retries=RetryBudget() if old is None else old.retries,
            kept=kept,
            keeps=keeps,
            apis=apis,
            recovery=RecoveryMode(model.recovery),
            recoverers=dict.fromkeys((Api.CHAT, Api.COMPLETIONS), OpenAIRecoverer()),
        )

    def _replica(self, model: config.ModelSettings, replica: config.ReplicaSettings, kept: Affinity) -> Replica:
        """Return the replica of the previous topology if its settings are unchanged, except those of routing."""
        built = self._unchanged(model, replica) or self._new(model, replica, kept)
        built.backup_only, built.weight = replica.backup_only, replica.weight
        self._replicas[(model.name, replica.name)] = built
        return built

    def _unchanged(self, model: config.ModelSettings, replica: config.ReplicaSettings) -> Replica | None:
        previous = self._previous
        if previous is None or self._origin(replica) not in previous.clients:  # its certificates may have changed
            return None
        if _settings_of(self._settings, model, replica) not in (
            _settings_of(previous.settings, old_model, old_replica)
            for old_model in previous.settings.models
            if old_model.name == model.name
            for old_replica in (*old_model.replicas, *(each for pool in old_model.fallbacks for each in pool.replicas))
            if old_replica.name == replica.name
        ):
            return None
        self._quota(replica, CATALOG[replica.kind], model)
        self._client(replica)
        return previous.replicas[(model.name, replica.name)]

    def _new(self, model: config.ModelSettings, replica: config.ReplicaSettings, kept: Affinity) -> Replica:
        settings, kind = self._settings, CATALOG[replica.kind]
        client = self._client(replica)
        supported = protocols(kind, native_apis(replica), self._protocol_options(model, replica, kept))
        endpoint = endpoint_at(
            client, replica, supported, model.name, settings.limits.event_max_bytes, self._runtime.burst
        )
        gain_min = _GAIN_MIN_ENGINE if kind.own_engine else _GAIN_MIN_PROVIDER
        stops = replica.stops_billing
        return Replica(
            replica.name,
            endpoint,
            self._quota(replica, kind, model),
            replica.boundary,
            gain_min,
            hedgeable=bool(stops) or replica.allow_billed_hedges,
            bills_cancelled=not stops,
            billing_unknown=stops is None,
            read_limits=None if kind.limits is None else kind.limits.read,
            counts_max_tokens=kind.counts_max_tokens,
            prices=prices_of(replica.prices or model.prices),
            apis=frozenset(supported),
            prefills=kind.prefills,
            batches=kind.own_engine,
            secrets=secrets_of(replica),
            source=f"{replica.base_url} {replica.model or model.name} {model.first_token}",
        )

    def _quota(self, replica: config.ReplicaSettings, kind: Kind, model: config.ModelSettings) -> str | None:
        """Return the quota of a replica; None for own engines, unless the configuration names one."""
        if replica.quota is not None:
            return self._ledgers.named(replica.quota)
        if kind.own_engine:
            return None
        key = None if replica.api_key is None else replica.api_key.get_secret_value()
        return self._ledgers.implied(
            replica.base_url, urlsplit(replica.base_url).hostname or "", key, replica.model or model.name
        )

    def _client(self, replica: config.ReplicaSettings) -> UpstreamClient:
        """Return the client of a replica's origin; replicas with the same origin share it."""
        origin = self._origin(replica)
        client = self._clients.get(origin)
        if client is None and self._previous is not None:
            client = self._previous.clients.get(origin)
        if client is None:
            client = client_to(origin, self._tasks)
        self._clients[origin] = client
        return client

    def _origin(self, replica: config.ReplicaSettings) -> Origin:
        return origin_of(replica, self._settings.timeouts.connect_s, spare=True)

    def _protocol_options(
        self, model: config.ModelSettings, replica: config.ReplicaSettings, kept: Affinity
    ) -> ProtocolOptions:
        runtime = self._runtime

        def dropped(params: Sequence[str]) -> None:
            shortened = tuple(param[:_PARAM_CHARS_MAX] for param in params[:_PARAMS_MAX])
            runtime.emit(ParamsDropped(runtime.loop.time(), model.name, replica.name, shortened))

        def learn(owner: str, answer_id: str) -> None:
            kept.learn(answer_id, Kept(owner, model.name, replica.name))

        return ProtocolOptions(
            first_token=model.first_token,
            on_response_id=learn,
            on_dropped=dropped if model.drop_params else None,
            max_tokens=int(min(replica.max_tokens_default, replica.body.max.get("max_tokens", math.inf))),
            edits=edits_of(replica),
            wall_s=lambda: datetime.now(UTC).timestamp(),
        )


def hedge_parameters(
    settings: config.HedgeSettings, crossing: Crossing, first_token: FirstToken = "any"
) -> HedgeParameters:
    """Convert hedging settings of a model."""
    return HedgeParameters(
        policy=Policy(settings.policy),
        budget=settings.budget,
        budget_unit=BudgetUnit(settings.budget_unit),
        max_hedges=settings.max_hedges,
        static_delay_s=settings.delay_s if settings.delay_s is not None else math.inf,
        quantile=settings.quantile,
        hedge_delay_min_s=settings.hedge_delay_min_s,
        cold_start_delay_s=settings.cold_start_delay_s,
        gain_min=settings.gain_min,
        routing=Routing(settings.routing),
        crossing=crossing,
        hedge_hidden_reasoning=settings.hedge_hidden_reasoning,
        first_token=first_token,
    )


def _settings_of(
    settings: config.Settings, model: config.ModelSettings, replica: config.ReplicaSettings
) -> tuple[object, ...]:
    """Return all settings that a replica depends on, except those of routing, which a reload changes in place."""
    bounds = (settings.timeouts.connect_s, settings.limits.event_max_bytes)
    quotas = [quota for quota in settings.quotas if quota.name == replica.quota]
    unrouted = replica.model_copy(update={"backup_only": False, "weight": 1})
    return (unrouted, model.first_token, model.prices, model.drop_params, quotas, *bounds)


def _kept(
    old: Mapping[str, _T],
    old_settings: Mapping[str, object],
    settings: Sequence[config.KeySettings | config.ModelSettings],
) -> dict[str, _T]:
    """Return the previous objects of the keys or models whose settings are unchanged, by name."""
    return {new.name: old[new.name] for new in settings if new.name in old and old_settings.get(new.name) == new}


def _ledgers(quotas: Sequence[config.QuotaSettings], previous: LedgerRegistry | None) -> LedgerRegistry:
    configured = {}
    for quota in quotas:
        amounts = ((Resource.REQUESTS, quota.requests_per_min), (Resource.TOKENS, quota.tokens_per_min))
        limits = [Limit(resource, amount, enforce=quota.enforce) for resource, amount in amounts if amount is not None]
        configured[quota.name] = limits
    return LedgerRegistry(configured, previous)


def timeouts(settings: config.TimeoutSettings) -> Timeouts:
    """Convert timeout settings."""
    return Timeouts(
        ttft_failover_s=settings.ttft_failover_s,
        ttft_failover_per_token_s=settings.ttft_failover_per_1000_tokens_s / 1000,
        ttft_max_s=settings.ttft_max_s,
        stall_s=settings.stall_s,
        stall_thinking_s=settings.stall_thinking_s,
        stall_tool_call_s=settings.stall_tool_call_s,
        total_s=settings.total_s,
        commit_status_after_s=settings.commit_status_after_s,
        keepalive_interval_s=settings.keepalive_interval_s,
        retry_after_s_max=settings.retry_after_max_s,
    )


def _key_limiters(keys: Sequence[config.KeySettings], *, counts_only: bool = False) -> dict[str, KeyLimiter]:
    limits = {
        key.name: CallerLimits(key.requests_per_min, None if counts_only else key.tokens_per_min, key.concurrency)
        for key in keys
    }
    return {name: KeyLimiter(given) for name, given in limits.items() if given != CallerLimits()}


def _model_queues(models: Sequence[config.ModelSettings]) -> dict[str, ModelQueue]:
    return {
        model.name: ModelQueue(FairQueue(model.concurrency, model.queue.max), model.queue.timeout_s)
        for model in models
        if model.concurrency is not None
    }
