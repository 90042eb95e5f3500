"""What the settings say, as objects: models with their pools and replicas, keys, limits; built again at each reload.

Half of the composition root (app.py is the other). A site that follows another one takes over what the new settings
leave as it is: replicas with their breakers and connections, what pools have learned, ledgers, what keys have used.
Requests under way go on with the objects they began with. Nothing is decided here. Units: seconds, bytes.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from gateway.api.admission import Admission, ModelQueue
from gateway.api.auth import Keyring
from gateway.api.body_reader import BodyReader
from gateway.api.routes import RequestLimits, Serving
from gateway.config import settings as config
from gateway.estimation.tokens import TokenScale
from gateway.events import ParamsDropped
from gateway.hedging.budget import BudgetUnit
from gateway.hedging.parameters import HedgeParameters
from gateway.hedging.plan import Policy
from gateway.inbound.parsed import NumberLimits
from gateway.limits.body_memory import BodyMemory
from gateway.limits.bucket import Limit
from gateway.limits.budget import RetryBudget
from gateway.limits.caller_limits import CallerLimits, KeyLimiter
from gateway.limits.fair_queue import FairQueue
from gateway.limits.ledger import LedgerRegistry
from gateway.limits.prices import Prices
from gateway.pool.pool import Pool
from gateway.race.context import Model, RecoveryMode, Runtime, Timeouts
from gateway.routing.affinity import Affinity
from gateway.routing.replicas import Replica
from gateway.routing.strategies import Crossing, Routing
from gateway.upstreams import UpstreamClient, client_to, endpoint_at, native_apis, origin_of, secrets_of
from gateway.version import gateway_version
from providers.base import Api, Resource
from providers.catalog import CATALOG, Kind
from providers.openai.transcript import OpenAIRecoverer
from providers.protocols import ProtocolOptions, protocols
from providers.transport.origin import Origin

_GAIN_MIN_PROVIDER = 0.25  # what a backup must save, as a multiple of its own TTFT,
_GAIN_MIN_ENGINE = 5.0  # and far more on one's own engines, where it slows others (docs/evaluation/hedging.md, W5)
_PASSED_HEADERS = frozenset({b"anthropic-beta", b"openai-beta", b"traceparent", b"tracestate"})
_PARAMS_MAX = 16  # told of one request
_PARAM_CHARS_MAX = 100
_VERSION = gateway_version()  # reads a file, so not on the loop

_T = TypeVar("_T")

Tune = Callable[[HedgeParameters], HedgeParameters]
"""Changes how every pool hedges beyond what settings can express: for measurements."""


@dataclass(frozen=True)
class Topology:
    """Everything that the settings decide.

    Attributes:
        settings: these.
        serving: what requests meet.
        models: by public name, in the order of the settings.
        accounts: what keys have used that have limits, by name.
        entrances: of the models that have a bound, by name.
        memory: counts the bytes of request bodies.
        ledgers: by quota.
        clients: to each origin.
        fleets: the clients of each pool.
        replicas: by model and name.
    """

    settings: config.Settings
    serving: Serving
    models: dict[str, Model]
    key_limiters: dict[str, KeyLimiter]
    model_queues: dict[str, ModelQueue]
    memory: BodyMemory
    ledgers: LedgerRegistry
    clients: dict[Origin, UpstreamClient]
    warm_pools: list["WarmPool"]
    replicas: dict[tuple[str, str], Replica]

    def keep_warm(self) -> None:
        """Have a connection ready to every replica of each pool that is in use; to be called every few seconds."""
        for fleet in self.warm_pools:
            fleet.keep_warm()

    def close(self, keep: "Topology | None" = None) -> None:
        """Let go of idle connections, but for those that another site has taken over."""
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
    """Build everything that the settings decide; must be called on the loop that will run it.

    Args:
        settings: checked.
        tasks: owner of connecting tasks.
        runtime: shared by all races.
        previous: the topology this one replaces, None at the start.
        tune: changes each model's hedging, None for the settings as they are.
    """
    return _Builder(settings, tasks, runtime, previous, tune).build()


class _Builder:
    """Builds one topology."""

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
        self._clients: dict[Origin, UpstreamClient] = {}
        self._warm_pools: list[WarmPool] = []
        self._replicas: dict[tuple[str, str], Replica] = {}

    def build(self) -> Topology:
        settings, previous = self._settings, self._previous
        models = {row.name: self._model(row) for row in settings.models}
        key_limiters, model_queues = _key_limiters(settings.keys), _model_queues(settings.models)
        memory = BodyMemory(settings.limits.buffered_bodies_max_bytes)
        if previous is not None:
            memory = previous.memory
            memory.bytes_max = settings.limits.buffered_bodies_max_bytes
            old = previous.settings
            key_limiters |= _kept(previous.key_limiters, {row.name: row for row in old.keys}, settings.keys)
            model_queues |= _kept(previous.model_queues, {row.name: row for row in old.models}, settings.models)
        bodies = BodyReader(
            settings.limits.request_body_max_bytes, settings.timeouts.request_body_s, memory, self._runtime
        )
        admission = Admission(key_limiters, model_queues, self._runtime)
        serving = Serving(models, _keyring(settings.keys), bodies, admission, _limits(settings.limits))
        return Topology(
            settings,
            serving,
            models,
            key_limiters,
            model_queues,
            memory,
            self._ledgers,
            self._clients,
            self._warm_pools,
            self._replicas,
        )

    def _model(self, row: config.ModelSettings) -> Model:
        settings = self._settings
        hedge = hedge_parameters(settings.hedge_of(row), Crossing(row.cross_boundary))
        if self._tune is not None:
            hedge = self._tune(hedge)
        old = None if self._previous is None else self._previous.models.get(row.name)
        rows = [row.replicas, *(fallback.replicas for fallback in row.fallbacks)]
        pools, kept = [], Affinity() if old is None else old.kept
        for number, replicas in enumerate(rows):
            name = row.name if number == 0 else f"{row.name}/fallback-{number}"
            made = [self._replica(row, replica, kept) for replica in replicas]
            previous = old.pools[number] if old is not None and number < len(old.pools) else None
            pools.append(Pool(name, made, hedge, self._ledgers, previous))
            self._warm_pools.append(WarmPool([self._client(replica) for replica in replicas]))
        apis = frozenset(api for pool in pools for replica in pool.replicas for api in replica.apis)
        keeps = any(
            CATALOG[each.kind].stores_responses and Api.RESPONSES in native_apis(each)
            for group in rows
            for each in group
        )
        return Model(
            row.name,
            pools,
            timeouts(settings.timeouts),
            scale=TokenScale() if old is None else old.scale,
            retries=RetryBudget() if old is None else old.retries,
            kept=kept,
            keeps=keeps,
            apis=apis,
            recovery=RecoveryMode(row.recovery),
            recoverers=dict.fromkeys((Api.CHAT, Api.COMPLETIONS), OpenAIRecoverer()),
        )

    def _replica(self, model: config.ModelSettings, row: config.ReplicaSettings, kept: Affinity) -> Replica:
        """The replica of the site before if nothing that concerns it has changed, else a new one."""
        named = (model.name, row.name)
        replica = self._same(model, row) or self._new(model, row, kept)
        self._replicas[named] = replica
        return replica

    def _same(self, model: config.ModelSettings, row: config.ReplicaSettings) -> Replica | None:
        previous = self._previous
        if previous is None or self._origin(row) not in previous.clients:  # its certificates may be new ones
            return None
        if _concerning(self._settings, model, row) not in (
            _concerning(previous.settings, old_model, old_row)
            for old_model in previous.settings.models
            if old_model.name == model.name
            for old_row in (*old_model.replicas, *(each for pool in old_model.fallbacks for each in pool.replicas))
            if old_row.name == row.name
        ):
            return None
        self._quota(row, CATALOG[row.kind], model)
        self._client(row)
        return previous.replicas[(model.name, row.name)]

    def _new(self, model: config.ModelSettings, row: config.ReplicaSettings, kept: Affinity) -> Replica:
        settings, kind = self._settings, CATALOG[row.kind]
        client = self._client(row)
        able = protocols(kind, native_apis(row), self._protocol_options(model, row, kept))
        endpoint = endpoint_at(client, row, able, model.name, settings.limits.event_max_bytes, self._runtime.burst)
        gain_min = _GAIN_MIN_ENGINE if kind.own_engine else _GAIN_MIN_PROVIDER
        cancel_stops = kind.cancel_stops_billing is True
        return Replica(
            row.name,
            endpoint,
            self._quota(row, kind, model),
            row.boundary,
            gain_min,
            hedgeable=cancel_stops or row.allow_billed_hedges,
            bills_cancelled=not cancel_stops,
            read_limits=None if kind.limits is None else kind.limits.read,
            counts_max_tokens=kind.counts_max_tokens,
            prices=_prices(row.prices or model.prices),
            apis=frozenset(able),
            prefills=kind.prefills,
            batches=kind.own_engine,
            secrets=secrets_of(row),
        )

    def _quota(self, row: config.ReplicaSettings, kind: Kind, model: config.ModelSettings) -> str | None:
        """Who counts a replica's limits; nobody does for an engine of one's own unless the configuration says so."""
        if row.quota is not None:
            return self._ledgers.named(row.quota)
        if kind.own_engine:
            return None
        key = None if row.api_key is None else row.api_key.get_secret_value()
        return self._ledgers.implied(row.base_url, urlsplit(row.base_url).hostname or "", key, row.model or model.name)

    def _client(self, row: config.ReplicaSettings) -> UpstreamClient:
        """The client to a replica's origin, which replicas share that are at one address."""
        origin = self._origin(row)
        client = self._clients.get(origin)
        if client is None and self._previous is not None:
            client = self._previous.clients.get(origin)
        if client is None:
            client = client_to(origin, self._tasks)
        self._clients[origin] = client
        return client

    def _origin(self, row: config.ReplicaSettings) -> Origin:
        return origin_of(row, self._settings.timeouts.connect_s, spare=True)

    def _protocol_options(
        self, model: config.ModelSettings, row: config.ReplicaSettings, kept: Affinity
    ) -> ProtocolOptions:
        """What a replica's protocols are told of the configuration."""
        runtime = self._runtime

        def dropped(params: Sequence[str]) -> None:
            told = tuple(param[:_PARAM_CHARS_MAX] for param in params[:_PARAMS_MAX])
            runtime.emit(ParamsDropped(runtime.loop.time(), model.name, row.name, told))

        return ProtocolOptions(
            first_token=model.first_token,
            on_response_id=partial(kept.learn, replica=row.name),
            on_dropped=dropped if model.drop_params else None,
            max_tokens=row.max_tokens_default,
            wall_s=lambda: datetime.now(UTC).timestamp(),
        )


class WarmPool:
    """The clients of one pool."""

    def __init__(self, clients: Sequence[UpstreamClient]) -> None:
        self._clients = clients
        self._sent = 0

    def keep_warm(self) -> None:
        """Open what is missing, if anything was sent since the last time: the next one may be a backup elsewhere."""
        sent = sum(client.sent for client in self._clients)
        if sent != self._sent:
            self._sent = sent
            for client in self._clients:
                client.warm()


def hedge_parameters(row: config.HedgeSettings, crossing: Crossing) -> HedgeParameters:
    """Return the parameters that settings stand for."""
    return HedgeParameters(
        policy=Policy(row.policy),
        budget=row.budget,
        budget_unit=BudgetUnit(row.budget_unit),
        max_hedges=row.max_hedges,
        static_delay_s=row.delay_s if row.delay_s is not None else math.inf,
        quantile=row.quantile,
        hedge_delay_min_s=row.hedge_delay_min_s,
        cold_start_delay_s=row.cold_start_delay_s,
        gain_min=row.gain_min,
        routing=Routing(row.routing),
        crossing=crossing,
        hedge_hidden_reasoning=row.hedge_hidden_reasoning,
    )


def _prices(row: config.PriceSettings | None) -> Prices | None:
    if row is None:
        return None
    return Prices(row.prompt, row.prompt if row.cached_prompt is None else row.cached_prompt, row.completion)


def _concerning(
    settings: config.Settings, model: config.ModelSettings, row: config.ReplicaSettings
) -> tuple[object, ...]:
    """All settings that a replica's objects are made of."""
    bounds = (settings.timeouts.connect_s, settings.limits.event_max_bytes)
    quotas = [quota for quota in settings.quotas if quota.name == row.quota]
    return (row, model.first_token, model.prices, model.drop_params, quotas, *bounds)


def _kept(
    old: Mapping[str, _T], old_rows: Mapping[str, object], rows: Sequence[config.KeySettings | config.ModelSettings]
) -> dict[str, _T]:
    """What stays of the objects that rows of the settings have: that of each row that is as it was."""
    return {row.name: old[row.name] for row in rows if row.name in old and old_rows.get(row.name) == row}


def _ledgers(rows: Sequence[config.QuotaSettings], previous: LedgerRegistry | None) -> LedgerRegistry:
    configured = {}
    for row in rows:
        amounts = ((Resource.REQUESTS, row.requests_per_min), (Resource.TOKENS, row.tokens_per_min))
        limits = [Limit(resource, amount, enforce=row.enforce) for resource, amount in amounts if amount is not None]
        configured[row.name] = limits
    return LedgerRegistry(configured, previous)


def timeouts(row: config.TimeoutSettings) -> Timeouts:
    """Return the timeouts that settings stand for."""
    return Timeouts(
        ttft_failover_s=row.ttft_failover_s,
        ttft_failover_per_token_s=row.ttft_failover_per_1000_tokens_s / 1000,
        ttft_max_s=row.ttft_max_s,
        stall_s=row.stall_s,
        total_s=row.total_s,
        commit_status_after_s=row.commit_status_after_s,
        keepalive_interval_s=row.keepalive_interval_s,
        retry_after_s_max=row.retry_after_max_s,
    )


def _limits(rows: config.LimitSettings) -> RequestLimits:
    return RequestLimits(NumberLimits(n_max=rows.n_max, max_tokens_max=rows.max_tokens_max), _PASSED_HEADERS)


def _keyring(rows: Sequence[config.KeySettings]) -> Keyring:
    names = {row.key.get_secret_value(): row.name for row in rows}
    return Keyring(names, {row.name: frozenset(row.models) for row in rows if row.models is not None})


def _key_limiters(rows: Sequence[config.KeySettings]) -> dict[str, KeyLimiter]:
    """Of the keys that have limits."""
    limits = {row.name: CallerLimits(row.requests_per_min, row.tokens_per_min, row.concurrency) for row in rows}
    return {name: KeyLimiter(given) for name, given in limits.items() if given != CallerLimits()}


def _model_queues(rows: Sequence[config.ModelSettings]) -> dict[str, ModelQueue]:
    """Of the models that have a bound."""
    return {
        row.name: ModelQueue(FairQueue(row.concurrency, row.queue.max), row.queue.timeout_s)
        for row in rows
        if row.concurrency is not None
    }
