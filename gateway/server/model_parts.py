"""Builds the objects of one model from its settings: pools, replicas, the clients of their origins.

Part of the composition root, used by topology.py. What has not changed is taken over from the previous parts: replicas
with breakers and connections, learned latencies. No policy belongs here. Units: seconds, bytes.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from gateway.admission.listed_limiters import Listed
from gateway.config import settings as config
from gateway.config.discovered import pool_name
from gateway.events import ParamsDropped
from gateway.race.context import Model, RecoveryMode, Runtime
from gateway.race.deadlines import Timeouts
from gateway.server.credentials.board import TokenBoard, TokenUser
from gateway.server.upstreams import (
    UpstreamClient,
    WarmPool,
    auth_of,
    client_to,
    edits_of,
    endpoint_at,
    facts_of,
    native_apis,
    origin_of,
    prices_of,
    quota_model,
    secrets_of,
    source_of,
    tier_prices_of,
)
from providers.protocols import RECOVERERS, ProtocolOptions, continuing, prefixes, protocols
from providers.transport.origin import Origin
from providers.upstream import HttpEndpoint
from ttft_gateway.apis.base import Api, FirstToken, Prefix
from ttft_gateway.apis.catalog import CATALOG, Kind
from ttft_gateway.estimation.tokens import TokenScale
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.limits.budget import RetryBudget
from ttft_gateway.limits.ledger import LedgerRegistry
from ttft_gateway.limits.rates import LimitMaker
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.affinity import Affinity, StoredAnswer
from ttft_gateway.routing.replicas import Replica
from ttft_gateway.routing.strategies import Crossing

_PARAMS_MAX = 16  # dropped parameters that are reported for one request
_PARAM_CHARS_MAX = 100
Tune = Callable[[HedgeParameters], HedgeParameters]
"""Changes the hedging of every pool beyond the settings; for measurements."""


class Foundation(NamedTuple):
    """Objects of the process on which every topology is built.

    Attributes:
        tasks: owner of connecting tasks.
        runtime: clock and receiver of events.
        limits: makes the limits of keys, models and quotas.
        tune: change of each model's hedging; None for the settings as they are.
        tokens: tokens in use.
        listed: keys from a list; None without a list.
    """

    tasks: asyncio.TaskGroup
    runtime: Runtime
    limits: LimitMaker
    tune: Tune | None
    tokens: TokenBoard
    listed: Listed | None = None


class ModelParts(msgspec.Struct, frozen=True):
    """All objects that depend on the settings of one model.

    Attributes:
        settings: its settings.
        model: the model.
        rows: settings and origin of each replica, by its name.
        clients: client of each origin of its replicas.
        warm_pools: clients of each of its pools.
        token_users: its replicas that send a token.
    """

    settings: config.ModelSettings
    model: Model
    rows: dict[str, tuple[config.ReplicaSettings, Origin]]
    clients: dict[Origin, UpstreamClient]
    warm_pools: list[WarmPool]
    token_users: list[TokenUser]


class Before(NamedTuple):
    """The objects of the previous settings.

    Attributes:
        rows_only: True if the settings differ only in replicas that were found at run time; the same objects of
            settings then stand for the same objects here.
        keeps_models: True if a model with the same object of settings may be kept whole.
    """

    settings: config.Settings
    parts: Mapping[str, ModelParts]
    clients: Mapping[Origin, UpstreamClient]
    replicas: Mapping[tuple[str, str], Replica]
    rows_only: bool
    keeps_models: bool


class NewKey(NamedTuple):
    """A replica that is taken over with another key, which it uses when the settings are put in force.

    Attributes:
        endpoint: endpoint with the new key.
        secrets: texts that its errors must not reveal.
    """

    replica: Replica
    endpoint: HttpEndpoint
    secrets: tuple[str, ...]


class PartsBuilder:
    """Builds the parts of models.

    Args:
        before: objects to take over; None at the start.
        ledgers: ledgers by quota.
        kept: stored answers of all models.

    Attributes:
        replicas: replicas of the models that were built, by names of model and replica.
        new_keys: those with another key than before.
    """

    def __init__(
        self,
        settings: config.Settings,
        foundation: Foundation,
        before: Before | None,
        ledgers: LedgerRegistry,
        kept: Affinity,
    ) -> None:
        self._settings = settings
        self._tasks, self._runtime, _, self._tune, self._tokens, _ = foundation
        self._before = before
        self._ledgers = ledgers
        self._kept = kept
        self._now_s = self._runtime.loop.time()
        self._rows_only = before is not None and before.rows_only
        self._clients: dict[Origin, UpstreamClient] = {}  # of the model that is built
        self._rows: dict[str, tuple[config.ReplicaSettings, Origin]] = {}  # the same
        self._users: list[TokenUser] = []  # the same
        self._built_clients: dict[Origin, UpstreamClient] = {}  # of all
        self.replicas: dict[tuple[str, str], Replica] = {}
        self.new_keys: list[NewKey] = []

    def parts(self, model: config.ModelSettings) -> ModelParts:
        """Return the parts of a model; the previous ones if nothing has changed."""
        before = self._before
        old = None if before is None else before.parts.get(model.name)
        if before is None or old is None or old.settings is not model:
            return self._build(model, old)
        if self._rows_only:
            return old
        return self._kept_model(old, before) if before.keeps_models and _is_plain(model) else self._build(model, old)

    def _kept_model(self, old: ModelParts, before: Before) -> ModelParts:
        """Return the parts of a model that a reload has not changed; its replicas are tested again."""
        name = old.model.name
        for row in old.rows:
            replica = self.replicas[name, row] = before.replicas[name, row]
            replica.breaker.end_cool_down()
        for pool in old.model.pools:
            for ledger in pool.quotas.of.values():
                ledger.end_cool_down()
        return old

    def _build(self, model: config.ModelSettings, old: ModelParts | None) -> ModelParts:
        settings, self._clients, self._rows, self._users = self._settings, {}, {}, []
        hedge = hedge_parameters(settings.hedge_of(model), Crossing(model.cross_boundary), model.first_token)
        if self._tune is not None:
            hedge = self._tune(hedge)
        groups = [model.replicas, *(fallback.replicas for fallback in model.fallbacks)]
        limits = settings.timeouts_by_pool(model)
        pools, warm_pools = [], []
        for number, rows in enumerate(groups):
            name = pool_name(model.name, number)
            made = [self._replica(model, row, old, limits[number].connect_s) for row in rows]
            former = old.model.pools[number] if old is not None and number < len(old.model.pools) else None
            is_last, ends = number + 1 == len(groups), not self._rows_only
            pools.append(Pool(name, made, hedge, self._ledgers, former, has_fallback=not is_last, ends_cool_downs=ends))
            if former is not None:
                names = {replica.name for replica in former.replicas}
                pools[-1].welcome([replica for replica in made if replica.name not in names], self._now_s)
            warm_pools.append(WarmPool([self._clients[self._rows[row.name][1]] for row in rows]))
        apis = frozenset(api for pool in pools for replica in pool.replicas for api in replica.apis)
        keeps = any(
            CATALOG[each.kind].stores_responses and Api.RESPONSES in native_apis(each, model.name)
            for group in groups
            for each in group
        )
        built = Model(
            model.name,
            pools,
            timeouts(limits[0]),
            {
                pool.name: timeouts(own)
                for pool, own, fallback in zip(pools[1:], limits[1:], model.fallbacks, strict=True)
                if fallback.timeouts.model_fields_set
            },
            scale=TokenScale() if old is None else old.model.scale,
            retries=RetryBudget() if old is None else old.model.retries,
            stored_answers=self._kept,
            stores_by_default=keeps,
            apis=apis,
            recovery=RecoveryMode(model.recovery),
            recoverers=RECOVERERS,
            pass_through=frozenset(model.pass_through),
        )
        return ModelParts(model, built, self._rows, self._clients, warm_pools, self._users)

    def _replica(
        self, model: config.ModelSettings, row: config.ReplicaSettings, old: ModelParts | None, connect_s: float
    ) -> Replica:
        """Return the replica of the previous topology if its settings are unchanged, except its routing settings."""
        before, named = self._before, (model.name, row.name)
        old_row, origin = (None, None) if old is None else old.rows.get(row.name, (None, None))
        is_same = self._rows_only and row is old_row
        if origin is None or not is_same:
            origin = origin_of(row, connect_s, spare=True)
        client = self._client(origin)
        self._rows[row.name] = row, origin
        if before is None or old is None or old_row is None:
            built = self._new(model, row, client)
        elif is_same or (
            origin == old.rows[row.name][1] and self._is_unchanged(model, row, origin, old.settings, old_row, before)
        ):
            built = before.replicas[named]
            self._users += [user for user in old.token_users if user.replica is built]
            if row.api_key != old_row.api_key:
                self.new_keys.append(NewKey(built, self._endpoint(model, row, client)[0], secrets_of(row)))
        else:
            built = self._new(model, row, client)
        built.backup_only, built.weight, built.answers_as = row.backup_only, row.weight, answers_as(model, row)
        self.replicas[named] = built
        return built

    def _is_unchanged(
        self,
        model: config.ModelSettings,
        row: config.ReplicaSettings,
        origin: Origin,
        old_model: config.ModelSettings,
        old_row: config.ReplicaSettings,
        before: Before,
    ) -> bool:
        if origin not in before.clients:  # its certificates may have changed
            return False
        if _settings_of(self._settings, model, row) != _settings_of(before.settings, old_model, old_row):
            return False
        return self._quota(row, CATALOG[row.kind], model) == before.replicas[model.name, row.name].quota

    def _endpoint(
        self, model: config.ModelSettings, replica: config.ReplicaSettings, client: UpstreamClient
    ) -> tuple[HttpEndpoint, frozenset[Api], frozenset[Prefix]]:
        """Return the endpoint of a replica, the APIs that it supports, and the answers that it continues."""
        kind, native = facts_of(replica, model.name), native_apis(replica, model.name)
        options = self._protocol_options(model, replica)
        supported = protocols(kind, native, options)
        continued = continuing(kind, {api: supported[api] for api in supported if api in native}, options)
        event_bytes_max = self._settings.limits.event_max_bytes
        endpoint = endpoint_at(client, replica, supported, model.name, event_bytes_max, self._runtime.burst)
        endpoint.continue_with(continued)
        return endpoint, frozenset(supported), prefixes(kind, continued)

    def _new(self, model: config.ModelSettings, replica: config.ReplicaSettings, client: UpstreamClient) -> Replica:
        kind = facts_of(replica, model.name)
        endpoint, apis, prefills = self._endpoint(model, replica, client)
        stops, source = replica.stops_billing, source_of(replica)
        usual = prices_of(replica.prices or model.prices)
        tiers = tier_prices_of(replica, usual)
        built = Replica(
            replica.name,
            endpoint,
            self._quota(replica, kind, model),
            replica.boundary,
            hedgeable=bool(stops) or replica.allow_billed_hedges,
            bills_cancelled=not stops,
            billing_unknown=stops is None,
            read_limits=None if kind.limits is None else kind.limits.read,
            counts_max_tokens=kind.counts_max_tokens,
            prices=usual if tiers is None else tiers.billed(None),
            tiers=tiers,
            apis=apis,
            prefills=prefills,
            batches=kind.own_engine,
            secrets=secrets_of(replica),
            source=f"{replica.base_url} {replica.model or model.name} {model.first_token}",
            renew=None if source is None else self._tokens.renewer(source),
        )
        if source is not None:
            self._users.append(TokenUser(source, built, endpoint, auth_of(replica, model.name)))
        return built

    def _quota(self, replica: config.ReplicaSettings, kind: Kind, model: config.ModelSettings) -> str | None:
        """Return the quota of a replica; None for own engines, unless the configuration names one."""
        if replica.quota is not None:
            return self._ledgers.named(replica.quota)
        if kind.own_engine:
            return None
        source = source_of(replica)
        key = str(source) if source is not None else None
        if replica.api_key is not None:
            key = replica.api_key.get_secret_value()
        host = urlsplit(replica.base_url).hostname or ""
        return self._ledgers.implied(replica.base_url, host, key, quota_model(replica, model.name))

    def _client(self, origin: Origin) -> UpstreamClient:
        """Return the client of an origin; replicas with the same origin share it."""
        client = self._built_clients.get(origin)
        if client is None and self._before is not None:
            client = self._before.clients.get(origin)
        if client is None:
            client = client_to(origin, self._tasks)
        self._clients[origin] = self._built_clients[origin] = client
        return client

    def _protocol_options(self, model: config.ModelSettings, replica: config.ReplicaSettings) -> ProtocolOptions:
        runtime, kept = self._runtime, self._kept  # the builder has the previous objects: nothing may hold it

        def dropped(params: Sequence[str]) -> None:
            shortened = tuple(param[:_PARAM_CHARS_MAX] for param in params[:_PARAMS_MAX])
            runtime.emit(ParamsDropped(runtime.loop.time(), model.name, replica.name, shortened))

        def learn(owner: str, answer_id: str) -> None:
            kept.learn(answer_id, StoredAnswer(owner, model.name, replica.name))

        return ProtocolOptions(
            first_token=model.first_token,
            on_answer_id=learn,
            on_dropped=dropped if model.drop_params else None,
            max_tokens=int(min(replica.max_tokens_default, replica.body.max.get("max_tokens", math.inf))),
            edits=edits_of(replica),
            wall_s=lambda: datetime.now(UTC).timestamp(),
        )


def _is_plain(model: config.ModelSettings) -> bool:
    """Return True if no file of certificates and no quota of others belongs to a model: its settings are all of it."""
    return all(
        row.base_url.startswith("http://") and CATALOG[row.kind].own_engine and row.quota is None
        for rows in (model.replicas, *(fallback.replicas for fallback in model.fallbacks))
        for row in rows
    )


def answers_as(model: config.ModelSettings, replica: config.ReplicaSettings) -> str:
    """Return the name that replicas with the same answers share: the model's id at the first replica, or their own.

    A slash and the name of a replica is no id: such a replica shares its answers with no other.
    """
    primary = model.replicas[0].model if model.replicas else None
    if replica.answers_alike is None:
        return replica.model or model.name
    return (primary or model.name) if replica.answers_alike else f"/{replica.name}"


def hedge_parameters(
    settings: config.HedgeSettings, crossing: Crossing, first_token: FirstToken = "any"
) -> HedgeParameters:
    """Convert hedging settings of a model: each is the parameter of its name, and one that is unset has the default."""
    given = {name: value for name, value in settings if value is not None}
    if settings.delay_s is not None:
        given["static_delay_s"] = settings.delay_s
    if settings.gain_min is not None:
        given["gain_min_engine"] = settings.gain_min
    converted = msgspec.convert(given, HedgeParameters, from_attributes=True)
    return msgspec.structs.replace(converted, crossing=crossing, first_token=first_token)


def _settings_of(
    settings: config.Settings, model: config.ModelSettings, replica: config.ReplicaSettings
) -> tuple[object, ...]:
    """Return all settings that a replica depends on, except its origin, routing and the key.

    A reload changes routing and the key in place.
    """
    quotas = [quota for quota in settings.quotas if quota.name == replica.quota]
    in_place = {"backup_only": False, "weight": 1, "answers_alike": None, "api_key": None, "api_key_file": None}
    rest = replica.model_copy(update=in_place)
    return (
        rest,
        replica.api_key is None,
        model.first_token,
        model.prices,
        model.drop_params,
        quotas,
        settings.limits.event_max_bytes,
    )


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
