"""The composition root: settings -> object graph -> the public and the admin application.

The only file that names concrete classes of every room. Nothing is decided here. Units: seconds, bytes.
"""

import asyncio
import logging
import random
import ssl
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from urllib.parse import urlsplit

from fastapi import Request

from gateway import settings as config
from gateway.admin import Admin
from gateway.admission import Admission, Entrance
from gateway.bodies import Bodies, HeldBytes
from gateway.client_api import ClientApi
from gateway.client_messages import PING, MessagesEnding
from gateway.client_messages import error_body as messages_error_body
from gateway.count_tokens import PATH as COUNT_PATH
from gateway.count_tokens import TokenCounts
from gateway.events import Event, HedgingSwitched, Listener, ParamsDropped
from gateway.hedging.allowance import BudgetOf
from gateway.hedging.plan import Policy
from gateway.hedging.pool import Pool
from gateway.hedging.settings import HedgeSettings
from gateway.inbound_asked import Bounds as RequestBounds
from gateway.limits.admission import Gate
from gateway.limits.bucket import Limit
from gateway.limits.callers import Account, CallerLimits
from gateway.limits.ledgers import Ledgers
from gateway.limits.prices import Prices
from gateway.observe.describe import admission_state, describe, pool_state
from gateway.observe.logs import RequestLog, wants_text
from gateway.observe.metrics import Metrics
from gateway.observe.state import AdmissionState, PoolState
from gateway.observe.usage import UsageTable
from gateway.observe.writer import LineWriter
from gateway.plain_routes import plain_app
from gateway.request import Host, Model, RecoveryMode, Timeouts
from gateway.response import Application, Receive, Scope, Send
from gateway.responses_ending import ResponsesEnding
from gateway.routes import Keyring, Limits, RacedRoutes
from gateway.routing.affinity import Affinity
from gateway.routing.choose import Crossing, Routing
from gateway.routing.replicas import Replica
from gateway.version import gateway_version
from providers.anthropic.assemble import MessageAssembler
from providers.base import Api, Headers, Resource
from providers.catalog import CATALOG, Auth, Kind
from providers.openai.chat import OpenAIChat
from providers.openai.completions import OpenAICompletions
from providers.openai.transcript import OpenAIRecoverer
from providers.protocols import Wishes, protocols
from providers.responses.native import OpenAIResponses
from providers.upstream import Bounds, HttpEndpoint
from providers.wire import Origin, WireClient

_GAIN_MIN_PROVIDER = 0.25  # what a backup must save, as a multiple of its own TTFT,
_GAIN_MIN_ENGINE = 5.0  # and far more on one's own engines, where it slows others down (docs/hedging.md, W5)
_PASSED_HEADERS = frozenset({b"anthropic-beta", b"openai-beta", b"traceparent", b"tracestate"})

_PARAMS_MAX = 16  # told of one request
_PARAM_CHARS_MAX = 100

_VERSION = gateway_version()  # reads a file, so not on the loop


class Gateway:
    """The running object graph.

    Args:
        settings: checked.
        tasks: owner of every long-lived task; the loop is the running one.

    Attributes:
        draining: no new requests are welcome; /readyz says so.
        application: the public ASGI application.
        admin: the admin ASGI application.
    """

    def __init__(self, settings: config.Settings, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        self.draining = False
        self._hub = Hub()
        self._clients: dict[Origin, WireClient] = {}
        self._fleets: list[Fleet] = []
        self._ledgers = _ledgers(settings.quotas)
        self._models = {row.name: self._model(settings, row, tasks) for row in settings.models}
        usage = UsageTable()
        self._metrics = Metrics(self._states, self._admission_state)
        self._admin = Admin(
            self._metrics, self._states, self._describe, self._switch, usage.report, admission=self._admission_state
        )
        self._writer = LineWriter(sys.stdout.fileno())
        log = RequestLog(self._writer.write, text=wants_text("auto", sys.stdout.fileno()))
        self._hub.listeners += [self._metrics.on_event, usage.on_event, log.on_event, self._admin.on_event]
        host = Host(loop, self._hub.emit, random.Random().random)
        keyring = _keyring(settings.keys)
        self._held = HeldBytes(settings.limits.request_bodies_max_bytes)
        self._accounts = _accounts(settings.keys)
        self._entrances = _entrances(settings.models)
        bodies = Bodies(settings.limits.request_body_max_bytes, settings.timeouts.request_body_s, self._held)
        admission = Admission(self._accounts, self._entrances, host)
        limits = _limits(settings.limits)
        apis = client_apis()
        self._routes = RacedRoutes(self._models, keyring, bodies, admission, limits, apis, host, tasks)
        self._counts = TokenCounts(self._models, keyring, bodies, apis[Api.MESSAGES], host, tasks)

        def models_of(request: Request) -> list[str]:
            key_name = keyring.name(request.scope["headers"])
            return [row.name for row in settings.models if keyring.may_use(key_name, row.name)]

        started = int(datetime.now(UTC).timestamp())
        self._plain = plain_app(models_of, started, lambda: not self.draining, _VERSION)
        self.application: Application = self._application
        self.admin: Application = self._admin.app

    @property
    def active(self) -> int:
        """Requests under way."""
        return len(self._routes.active)

    def end_streams(self) -> None:
        """End every running request with an error, and every event feed; refuse new ones."""
        self._routes.refusing = True
        self._admin.close()
        for race in tuple(self._routes.active):
            race.shut_down()

    def close(self) -> None:
        """Let go of idle connections, and write out the log."""
        for client in self._clients.values():
            client.close()
        self._writer.close()

    def keep_warm(self) -> None:
        """Have a connection ready to every replica of each pool that is in use; to be called every few seconds."""
        for fleet in self._fleets:
            fleet.keep_warm()

    async def _application(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in self._routes.paths:
            await self._routes(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == COUNT_PATH:
            await self._counts(scope, receive, send)
        else:
            await self._plain(scope, receive, send)

    # building

    def _model(self, settings: config.Settings, row: config.Model, tasks: asyncio.TaskGroup) -> Model:
        hedge = _hedge(settings.hedge_of(row), Crossing(row.cross_boundary))
        rows = [row.replicas, *(fallback.replicas for fallback in row.fallbacks)]
        pools, kept = [], Affinity()
        for number, replicas in enumerate(rows):
            name = row.name if number == 0 else f"{row.name}/fallback-{number}"
            made = [self._replica(settings, row, replica, kept, tasks) for replica in replicas]
            pools.append(Pool(name, made, hedge, self._ledgers))
            self._fleets.append(Fleet([self._client(settings, replica, tasks) for replica in replicas]))
        apis = frozenset(api for pool in pools for replica in pool.replicas for api in replica.apis)
        keeps = any(CATALOG[each.kind].keeps and Api.RESPONSES in spoken_by(each) for group in rows for each in group)
        return Model(
            row.name,
            pools,
            _timeouts(settings.timeouts),
            kept=kept,
            keeps=keeps,
            apis=apis,
            recovery=RecoveryMode(row.recovery),
            recoverers=dict.fromkeys((Api.CHAT, Api.COMPLETIONS), OpenAIRecoverer()),
        )

    def _replica(
        self,
        settings: config.Settings,
        model: config.Model,
        row: config.Replica,
        kept: Affinity,
        tasks: asyncio.TaskGroup,
    ) -> Replica:
        kind = CATALOG[row.kind]
        client = self._client(settings, row, tasks)
        able = protocols(kind, spoken_by(row), self._wishes(model, row, kept))
        bounds = Bounds(event_bytes_max=settings.limits.event_max_bytes)
        url = urlsplit(row.base_url)
        headers = upstream_headers(row, kind, url.netloc)
        endpoint = HttpEndpoint(client, able, url.path, headers, row.model or model.name, bounds)
        gain_min = _GAIN_MIN_ENGINE if kind.own_engine else _GAIN_MIN_PROVIDER
        cancel_stops = kind.cancel_stops_billing is True
        return Replica(
            row.name,
            endpoint,
            self._quota(row, kind, model),
            row.boundary,
            gain_min,
            hedgeable=cancel_stops or row.hedge_when_billed,
            bills_cancelled=not cancel_stops,
            read_limits=None if kind.limits is None else kind.limits.read,
            counts_max_tokens=kind.counts_max_tokens,
            prices=_prices(row.prices or model.prices),
            apis=frozenset(able),
            prefills=kind.prefills,
        )

    def _quota(self, row: config.Replica, kind: Kind, model: config.Model) -> str | None:
        """Who counts a replica's limits; nobody does for an engine of one's own unless the configuration says so."""
        if row.quota is not None:
            return self._ledgers.named(row.quota)
        if kind.own_engine:
            return None
        key = None if row.api_key is None else row.api_key.get_secret_value()
        return self._ledgers.implied(row.base_url, urlsplit(row.base_url).hostname or "", key, row.model or model.name)

    def _client(self, settings: config.Settings, row: config.Replica, tasks: asyncio.TaskGroup) -> WireClient:
        """The client to a replica's origin, which replicas share that are at one address."""
        url = urlsplit(row.base_url)
        tls = tls_context() if url.scheme == "https" else None
        port = url.port or (443 if tls else 80)
        origin = Origin(url.hostname or "", port, tls, settings.timeouts.connect_s, spare=True)
        client = self._clients.get(origin)
        if client is None:
            client = self._clients[origin] = WireClient(origin, tasks)
        return client

    def _wishes(self, model: config.Model, row: config.Replica, kept: Affinity) -> Wishes:
        """What a replica's protocols are told of the configuration."""

        def dropped(params: Sequence[str]) -> None:
            told = tuple(param[:_PARAM_CHARS_MAX] for param in params[:_PARAMS_MAX])
            self._hub.emit(ParamsDropped(asyncio.get_running_loop().time(), model.name, row.name, told))

        return Wishes(
            first_token=model.first_token,
            note=partial(kept.learn, replica=row.name),
            dropped=dropped if model.drop_params else None,
            max_tokens=row.max_tokens_default,
            wall_s=lambda: datetime.now(UTC).timestamp(),
        )

    # what observers and the admin address ask

    def _states(self) -> Iterator[PoolState]:
        now_s = asyncio.get_running_loop().time()
        for model in self._models.values():
            for pool in model.pools:
                yield pool_state(model.name, pool, now_s)

    def _admission_state(self) -> AdmissionState:
        gates = {name: entrance.gate for name, entrance in self._entrances.items()}
        return admission_state(gates, self._accounts, self._held, asyncio.get_running_loop().time())

    def _describe(self, name: str, quantiles: Sequence[float]) -> dict[str, object] | None:
        model = self._models.get(name)
        return None if model is None else describe(model, asyncio.get_running_loop().time(), quantiles)

    def _switch(self, name: str | None, /, *, on: bool) -> None:
        for model in self._models.values():
            if name in (None, model.name):
                for pool in model.pools:
                    pool.hedging_on = on
        self._hub.emit(HedgingSwitched(asyncio.get_running_loop().time(), name, on))


class Fleet:
    """The clients of one pool."""

    def __init__(self, clients: Sequence[WireClient]) -> None:
        self._clients = clients
        self._sent = 0

    def keep_warm(self) -> None:
        """Open what is missing, if anything was sent since the last time: the next one may be a backup elsewhere."""
        sent = sum(client.sent for client in self._clients)
        if sent != self._sent:
            self._sent = sent
            for client in self._clients:
                client.warm()


class Hub:
    """Hands events to listeners; one that raises is skipped, and never costs a request."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.failures = 0

    def emit(self, event: Event) -> None:
        """Tell every listener."""
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:  # an observer's bug
                self.failures += 1
                if self.failures == 1:
                    logging.getLogger(__name__).exception("an observer failed; this is told once")


def build(settings: config.Settings, tasks: asyncio.TaskGroup) -> Gateway:
    """Build everything; must be called on the loop that will run it."""
    return Gateway(settings, tasks)


def _hedge(row: config.Hedge, crossing: Crossing) -> HedgeSettings:
    defaults = HedgeSettings()
    return HedgeSettings(
        policy=Policy(row.policy),
        budget=row.budget,
        budget_of=BudgetOf(row.budget_of),
        max_hedges=row.max_hedges,
        static_delay_s=row.delay_s if row.delay_s is not None else defaults.static_delay_s,
        quantile=row.quantile,
        hedge_delay_min_s=row.hedge_delay_min_s,
        cold_start_delay_s=row.cold_start_delay_s,
        gain_min=row.gain_min,
        routing=Routing(row.routing),
        crossing=crossing,
    )


def _prices(row: config.Prices | None) -> Prices | None:
    if row is None:
        return None
    return Prices(row.prompt, row.prompt if row.cached_prompt is None else row.cached_prompt, row.completion)


def _ledgers(rows: Sequence[config.Quota]) -> Ledgers:
    configured = {}
    for row in rows:
        amounts = ((Resource.REQUESTS, row.requests_per_min), (Resource.TOKENS, row.tokens_per_min))
        limits = [Limit(resource, amount, enforce=row.enforce) for resource, amount in amounts if amount is not None]
        configured[row.name] = limits
    return Ledgers(configured)


def _timeouts(row: config.Timeouts) -> Timeouts:
    return Timeouts(
        ttft_s=row.ttft_s,
        ttft_per_token_s=row.ttft_per_1000_tokens_s / 1000,
        ttft_last_s=row.ttft_last_s,
        stall_s=row.stall_s,
        total_s=row.total_s,
        commit_status_after_s=row.commit_status_after_s,
        keepalive_interval_s=row.keepalive_interval_s,
        retry_after_s_max=row.retry_after_max_s,
    )


def _limits(rows: config.Limits) -> Limits:
    return Limits(RequestBounds(n_max=rows.n_max, max_tokens_max=rows.max_tokens_max), _PASSED_HEADERS)


def _keyring(rows: Sequence[config.Key]) -> Keyring:
    names = {row.key.get_secret_value(): row.name for row in rows}
    return Keyring(names, {row.name: frozenset(row.models) for row in rows if row.models is not None})


def _accounts(rows: Sequence[config.Key]) -> dict[str, Account]:
    """Of the keys that have limits."""
    limits = {row.name: CallerLimits(row.requests_per_min, row.tokens_per_min, row.concurrency) for row in rows}
    return {name: Account(given) for name, given in limits.items() if given != CallerLimits()}


def _entrances(rows: Sequence[config.Model]) -> dict[str, Entrance]:
    """Of the models that have a bound."""
    return {
        row.name: Entrance(Gate(row.concurrency, row.queue.max), row.queue.timeout_s)
        for row in rows
        if row.concurrency is not None
    }


def spoken_by(row: config.Replica) -> frozenset[Api]:
    """What a replica speaks itself."""
    return CATALOG[row.kind].apis if row.apis is None else frozenset(map(Api, row.apis))


def client_apis() -> dict[Api, ClientApi]:
    """What clients may speak."""
    return {
        Api.CHAT: ClientApi(OpenAIChat().assembler),
        Api.COMPLETIONS: ClientApi(OpenAICompletions().assembler),
        Api.RESPONSES: ClientApi(OpenAIResponses().assembler, ResponsesEnding),
        Api.EMBEDDINGS: ClientApi(None),
        Api.MESSAGES: ClientApi(lambda _: MessageAssembler(), MessagesEnding, messages_error_body, PING),
    }


def upstream_headers(row: config.Replica, kind: Kind, host: str) -> Headers:
    """What every request to a replica carries."""
    headers = [(b"host", host.encode()), (b"user-agent", f"ttft-gateway/{_VERSION}".encode())]
    if row.api_key is not None:
        key = row.api_key.get_secret_value().encode()
        bearer = kind.auth is Auth.BEARER
        headers.append((kind.auth.value.encode(), b"Bearer " + key if bearer else key))
    headers += (header for header in kind.headers if header[0].decode() not in map(str.lower, row.headers))
    headers += [(name.lower().encode(), value.get_secret_value().encode()) for name, value in row.headers.items()]
    return headers


@cache
def tls_context() -> ssl.SSLContext:
    """One context for all upstreams: loading the certificates takes 20 ms."""
    return ssl.create_default_context()
