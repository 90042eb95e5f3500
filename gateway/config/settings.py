"""The settings as one frozen object, which the composition root turns into the object graph.

Owns names, types, ranges and defaults. Each YAML key is its field's name without the unit (`drain_timeout: 30s` is
`drain_timeout_s`). Files, line numbers and environment variables belong to loader.py, rules between settings to
rules.py. docs/configuration.md has a heading for each setting, and the docstrings of attributes are the descriptions
in docs/config.schema.json.

Units: `_s` seconds, `_bytes` bytes, shares are fractions of 1; all others are counts or have no unit.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SecretStr, WithJsonSchema

from gateway.config.addresses import ADMIN_LISTEN_DEFAULT, LISTEN_DEFAULT
from gateway.config.clouds import PlacePart
from gateway.config.credential import CredentialSettings, named_source
from gateway.config.discover import DiscoverSource, KubernetesSettings
from gateway.config.request_values import AnyJson, BodyField, HeaderName, HeaderValue, Origin, PassedHeader, header_name
from gateway.config.section import Section, is_same, overlaid
from gateway.config.tiers import Tier
from gateway.config.values import (
    BaseUrl,
    Count,
    Delay,
    Duration,
    EngineUrl,
    Gateways,
    HostName,
    Kind,
    ListenAddress,
    Name,
    Number,
    OptionalAddress,
    OptionalFile,
    ProxyUrl,
    Secret,
    Share,
    Size,
    Switch,
    Workers,
    invalid_value,
    no_boolean,
    parse_address,
)
from ttft_gateway.apis.base import CONNECT_S, MAX_TOKENS_DEFAULT, STALL_S, FirstToken
from ttft_gateway.apis.catalog import CATALOG, Auth
from ttft_gateway.hedging.contract import ATTEMPTS_MAX
from ttft_gateway.hedging.parameters import DEFAULTS, HEDGES_MAX
from ttft_gateway.requests.passed import Family

# The names of the enums of the core; tests/config/test_settings.py holds the sets equal.
WhenAwayName = Literal["share", "alone", "refuse"]
Routing = Literal["predicted", "least_in_flight", "round_robin", "prefix_affinity"]
GuardName = Literal["auto", "off"]
PreferName = Literal["first_token", "balanced", "answer", "cost"]
Policy = Literal["adaptive", "quantile", "static", "shadow", "off"]
BudgetUnitName = Literal["tokens", "cost"]
Recovery = Literal["off", "auto", "replay", "continue"]
CrossBoundary = Literal["never", "failover", "always"]
ApiName = Literal[
    "chat/completions", "completions", "responses", "messages", "embeddings", "rerank", "moderations", "tokenize"
]
AuthName = Literal["bearer", "api-key", "x-api-key"]
AUTHS: Mapping[AuthName, Auth] = {"bearer": Auth.BEARER, "api-key": Auth.API_KEY, "x-api-key": Auth.X_API_KEY}


class ShareSettings(Section):
    """A Redis or Valkey server, version 7 or later, over which gateways share limits and loads."""

    url: EngineUrl = Field(examples=["rediss://valkey.internal:6379/0"])
    """URL of the server, without user and password."""
    user: Name | None = Field(default=None, examples=["gateway"])
    """User at the server; unset: the default user."""
    password: Secret | None = Field(default=None, examples=["${REDIS_PASSWORD}"])
    """Password of the user; unset: no login."""
    password_file: str | None = None
    """File with the password, instead of `password`; relative to the configuration file."""
    ca_file: str | None = Field(default=None, examples=["/etc/ssl/internal-ca.pem"])
    """Certificate authorities to trust, in PEM form; unset: the system's. Relative to the configuration file."""
    fleet: Name = "default"
    """Name that gateways have in common if they share with each other."""
    gateways: Gateways | None = Field(default=None, examples=["3", "ttft-gateway-peers"])
    """Number of gateways, or a host name with the addresses of all of them; unset: as the server counts."""
    when_away: WhenAwayName = "share"
    """Part of each limit that a gateway uses while the server is away: `share` (0.9, divided by the number of
    gateways), `alone` (all) or `refuse` (none)."""


class KeySettings(Section):
    """A caller's key. With `key_file`, `key` and `previous_key` are the lines of the file."""

    model_config = ConfigDict(
        json_schema_extra={"required": ["name"], "oneOf": [{"required": ["key"]}, {"required": ["key_file"]}]}
    )

    name: Name = Field(examples=["team-a"])
    """Name of the key in logs and metrics."""
    key: Secret = Field(examples=["${TEAM_A_KEY}"])
    """Secret that callers send as `Authorization: Bearer ...`."""
    key_file: str | None = None
    """File with the secret, instead of `key`; a second line is `previous_key`. Relative to the configuration file."""
    previous_key: Secret | None = Field(default=None, examples=["${TEAM_A_OLD_KEY}"])
    """Secret that was replaced and is still valid; unset: none."""
    models: tuple[str, ...] | None = Field(default=None, min_length=1, examples=["[llama-70b]"])
    """Models that the key may use; unset: all."""
    requests_per_min: Count | None = None
    """Requests per minute; unset: no limit."""
    tokens_per_min: Count | None = None
    """Tokens per minute, of prompts and answers together; unset: no limit."""
    concurrency: Count | None = None
    """Concurrent requests, queued ones included; unset: no limit."""
    hedge: Switch = True
    """Hedge the key's late requests."""
    attempts_max: Count = Field(default=ATTEMPTS_MAX, le=ATTEMPTS_MAX, examples=["1"])
    """Maximum number of upstream attempts of a request, hedges and failed ones included."""

    @property
    def without_secrets(self) -> "KeySettings":
        """The settings with the same secrets for every key: what does not change when a secret is replaced."""
        return self.model_copy(update={"key": SecretStr(""), "key_file": None, "previous_key": None})


_PATH = "/v1/traces"
_GRPC_PORT = 4317
_EXAMPLE = "for example http://otel-collector:4318"
_OWN_HEADERS = frozenset(["connection", "content-encoding", "content-length", "content-type", "host"])


def _endpoint(value: str) -> str:
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError:
        raise invalid_value("it is not a URL", _EXAMPLE) from None
    if not re.fullmatch(r"[!-~]+", value) or url.scheme not in ("http", "https") or not url.hostname:
        raise invalid_value("an endpoint must be http:// or https:// with a host", _EXAMPLE)
    if "@" in url.netloc:
        raise invalid_value("a URL with a user or password would appear in logs", "the login in headers")
    if url.query or url.fragment or value.endswith(("?", "#")):
        raise invalid_value("an endpoint must not contain ? or #", "the part before it, and a key in headers")
    if port == _GRPC_PORT:
        raise invalid_value("4317 is the port of OTLP over gRPC", value.replace(":4317", ":4318", 1))
    return value.rstrip("/")


def _export_header(value: str) -> str:
    name = header_name(value)
    if name in _OWN_HEADERS:
        raise invalid_value("the gateway sets this header itself; remove it")
    return name


Endpoint = Annotated[
    str,
    AfterValidator(_endpoint),
    WithJsonSchema({"type": "string", "pattern": r"^(https?://.+)$|\$\{", "examples": ["http://otel-collector:4318"]}),
]
"""Base URL of a receiver of OTLP over HTTP, without a trailing slash."""
ExportHeader = Annotated[str, AfterValidator(_export_header)]


class TracingSettings(Section):
    """Traces of requests, exported with OTLP over HTTP."""

    endpoint: Endpoint = Field(examples=["http://otel-collector:4318"])
    """Base URL of the receiver; the gateway adds `/v1/traces`."""
    sample: Share = 0.10
    """Share of the requests that are traced, where the caller has not decided."""
    headers: Mapping[ExportHeader, HeaderValue] = Field(
        default={}, max_length=20, examples=["{authorization: 'Bearer ${TRACES_TOKEN}'}"]
    )
    """Headers of each export, such as a login."""

    @property
    def url(self) -> str:
        """The URL that traces are sent to."""
        return self.endpoint if self.endpoint.endswith(_PATH) else self.endpoint + _PATH


class MeasureSettings(Section):
    """Measurement of what hedging saves, on random requests."""

    losers: Share = DEFAULTS.measure.losers
    """Share of the beaten primaries that are read until their first token, where that costs little."""
    holdout: Share = DEFAULTS.measure.holdout
    """Share of the hedges that are not sent, where beaten primaries are not read."""
    slo_s: Duration = 2.0
    """TTFT above which a request is a miss in the report."""


class QueueSettings(Section):
    """Queue of requests for a model at its `concurrency`."""

    max: Annotated[int, Field(ge=0), BeforeValidator(no_boolean)] = 100
    """Maximum number of queued requests."""
    timeout_s: Duration = 5.0
    """Maximum time in the queue."""


class PriceSettings(Section):
    """Prices of tokens, per million, in any one currency."""

    prompt: Number = Field(examples=["2.50"])
    """Price of prompt tokens."""
    cached_prompt: Number | None = None
    """Price of prompt tokens that the provider had cached; unset: the same as `prompt`."""
    completion: Number = Field(examples=["10"])
    """Price of generated tokens, reasoning included."""


class ConnectionSettings(Section):
    """Connections to a replica. File paths are relative to the configuration file."""

    http2: Switch = False
    """Use HTTP/2: negotiated with ALPN for `https://`, always for `http://` (prior knowledge)."""
    proxy: ProxyUrl | None = Field(default=None, examples=["http://proxy.internal:3128"])
    """URL of an HTTP proxy; unset: none."""
    ca_file: str | None = Field(default=None, examples=["/etc/ssl/internal-ca.pem"])
    """Certificate authorities to trust, in PEM form; unset: the system's."""
    cert_file: str | None = Field(default=None, examples=["/run/secrets/gateway.crt"])
    """Client certificate of the gateway, in PEM form; unset: none."""
    key_file: str | None = Field(default=None, examples=["/run/secrets/gateway.key"])
    """Private key of `cert_file`, without a password; unset: the key is in `cert_file`."""


class BodySettings(Section):
    """Changes to the bodies sent to a replica, at their top level and in the form of the replica's own API."""

    set: Mapping[BodyField, AnyJson] = Field(default={}, max_length=50, examples=["{service_tier: flex}"])
    """Values to send, instead of the caller's or in addition to them."""
    max: Mapping[BodyField, Number] = Field(default={}, max_length=50, examples=["{max_tokens: 4096}"])
    """Largest numbers to send; larger ones are lowered, absent ones stay absent."""


def _address_is_optional(schema: dict[str, Any]) -> None:
    """Require a base URL in a schema only of kinds that derive none."""
    schema["required"].remove("base_url")
    at_clouds = [name for name, kind in CATALOG.items() if kind.place]
    schema["if"] = {"properties": {"kind": {"enum": at_clouds}}, "required": ["kind"]}
    schema["else"] = {"required": ["base_url"]}


class ReplicaName(Section):
    """The settings that only a replica itself has."""

    model_config = ConfigDict(json_schema_extra=_address_is_optional)
    name: Name = Field(examples=["a"])
    """Name in logs, metrics and response headers; unique within the model, fallbacks included."""
    kind: Kind = Field(examples=["vllm"])
    """Provider or server software of the endpoint."""
    base_url: BaseUrl = Field(examples=["http://10.0.0.1:8000/v1"])
    """URL of the API, usually ending in /v1; unset at a cloud: derived from `region`, `project` or `resource`."""
    region: PlacePart | None = Field(default=None, examples=["us-east-1"])
    """Region of a replica of kind `bedrock` or `vertex`."""
    project: PlacePart | None = Field(default=None, examples=["my-project"])
    """Google's project of a replica of kind `vertex`."""
    resource: PlacePart | None = Field(default=None, examples=["my-resource"])
    """Name of the resource of a replica of kind `azure` or `foundry`."""
    tiers: tuple[Tier, ...] | None = Field(
        default=None, min_length=1, max_length=8, examples=["[flex, default, priority]"]
    )
    """Ways to ask the provider for the same model at different prices; unset: one."""
    tier: Name | None = Field(default=None, examples=["flex"])
    """The one of `tiers` that is used; unset: all."""


class ReplicaOptions(Section):
    """The settings of a replica that a list of replicas may share. With `api_key_file`, `api_key` is its content."""

    api_key: Secret | None = None
    """Key sent to the replica; unset: none."""
    api_key_file: str | None = None
    """File with the key, instead of `api_key`; relative to the configuration file."""
    credential: Annotated[CredentialSettings | None, BeforeValidator(named_source)] = Field(
        default=None, examples=["google"]
    )
    """Source of a token that is sent instead of a key, and renewed before its end; unset: none."""
    auth: AuthName | None = None
    """Header that carries the key or token; unset: the usual one for the kind, bearer for a cloud's token."""
    api_version: str | None = Field(default=None, pattern=r"^[A-Za-z0-9.-]{1,40}$", examples=["2024-10-21"])
    """Azure's `api-version`; unset: none is sent."""
    connection: ConnectionSettings = Field(
        default=ConnectionSettings(), examples=["{ca_file: /etc/ssl/internal-ca.pem}"]
    )
    """Connections to the replica."""
    apis: tuple[ApiName, ...] | None = Field(default=None, min_length=1, examples=["[chat/completions, embeddings]"])
    """APIs that the replica serves without translation; unset: the usual ones for the kind."""
    max_tokens_default: Count = MAX_TOKENS_DEFAULT
    """`max_tokens` where the caller set none and the replica's API requires one (`anthropic`)."""
    model: str | None = Field(default=None, min_length=1, max_length=256)
    """Name of the model at the replica; unset: the public name."""
    quota: Name | None = None
    """Quota that counts the replica's rate limits; unset: one for each URL, key and model, none for own engines."""
    boundary: Name | None = None
    """Region or vendor that requests must not leave; unset: none."""
    prices: PriceSettings | None = Field(default=None, examples=["{prompt: 2.50, cached_prompt: 1.25, completion: 10}"])
    """Prices of the replica's tokens; unset: the model's `prices`."""
    cancel_stops_billing: Switch | None = Field(default=None, examples=["true"])
    """True if cancelling a request stops its bill; unset: the catalogue's fact about the kind."""
    allow_billed_hedges: Switch = False
    """Allow hedges although the provider bills cancelled requests, or may do so."""
    weight: Count = Field(default=1, le=100)
    """Share of first attempts, relative to the weights of the other replicas."""
    backup_only: Switch = False
    """Use the replica only for hedges and failovers."""
    answers_alike: Switch | None = Field(default=None, examples=["true"])
    """True if the replica answers like the model's first one; unset: if its `model` is the same."""
    headers: Mapping[HeaderName, HeaderValue] = Field(default={}, examples=["{x-team: search}"])
    """Headers added to each request to the replica."""
    body: BodySettings = Field(default=BodySettings(), examples=["{max: {max_tokens: 4096}}"])
    """Values set or capped in each request to the replica that generates text."""


class ReplicaSettings(ReplicaOptions, ReplicaName):
    """An endpoint that serves a model."""

    @property
    def stops_billing(self) -> bool | None:
        """`cancel_stops_billing`, by default the fact of the kind; None if it is unknown."""
        configured = self.cancel_stops_billing
        return CATALOG[self.kind].cancel_stops_billing if configured is None else configured


Replicas = tuple[ReplicaSettings, ...]


class DiscoverSettings(ReplicaOptions, DiscoverSource):
    """A source of replicas that come and go, and the settings of replicas that have none of their own."""


_LISTED = ConfigDict(json_schema_extra={"anyOf": [{"required": ["replicas"]}, {"required": ["discover"]}]})


class AttemptTimeoutSettings(Section):
    """Timeouts of an attempt at a replica."""

    connect_s: Duration = CONNECT_S
    """Timeout of connecting to a replica, TLS included."""
    ttft_failover_s: Duration = 10.0
    """Time without a first token after which the next untried replica is tried."""
    ttft_failover_per_1000_tokens_s: Delay = 0.25
    """Time added to `ttft_failover` for each 1,000 prompt tokens."""
    ttft_max_s: Duration = 120.0
    """Timeout of the first token when no untried replica remains."""
    stall_s: Duration = STALL_S
    """Timeout of the next text of a stream that has begun; pings and empty events do not count."""
    stall_thinking_s: Duration = 600.0
    """Timeout of the next event of a stream that sends reasoning; pings count."""
    stall_tool_call_s: Duration = 60.0
    """Timeout of the next piece of a tool call."""


class ModelTimeoutSettings(AttemptTimeoutSettings):
    """Timeouts of a request for a model."""

    total_s: Duration = 600.0
    """Timeout of the whole answer."""
    commit_status_after_s: Duration = 15.0
    """Maximum delay of a streaming request's HTTP status while there is no first token."""
    keepalive_interval_s: Duration = 15.0
    """Interval of the comments that keep a waiting client's connection open."""
    retry_after_max_s: Delay = 3.0
    """Longest Retry-After of a replica that is waited out before a fallback is used."""


class FallbackSettings(Section):
    """Interchangeable replicas, used after all earlier ones have failed."""

    model_config = _LISTED
    replicas: Replicas = Field(default=(), min_length=1, examples=["[{name: c, ...}]"])
    """Replicas of this fallback."""
    discover: DiscoverSettings | None = Field(default=None, examples=["{dns: vllm.llm.svc, port: 8000, kind: vllm}"])
    """Source of further replicas of this fallback."""
    timeouts: AttemptTimeoutSettings = Field(default=AttemptTimeoutSettings(), examples=["{ttft_max: 20s}"])
    """Overrides the model's timeouts for attempts at this fallback, key by key."""


class HedgeSettings(Section):
    """Hedging: the delay before a late request is sent to a second replica, and its budget."""

    policy: Policy = "adaptive"
    """Policy that sets the delay before a backup."""
    budget: Share = DEFAULTS.budget
    """Maximum number of hedges, as a share of the requests."""
    budget_unit: BudgetUnitName = "tokens"
    """Quantity that `budget` limits in addition to requests: prompt tokens, or cost."""
    ttft_target_s: Duration | None = None
    """Target of the TTFT, reached with as few hedges as possible; unset: hedges save as much time as possible."""
    ttft_target_share: Share = DEFAULTS.ttft_target_share
    """Share of the requests that keep the target, where `prefer` is `cost`."""
    max_hedges: Count = Field(default=DEFAULTS.max_hedges, le=HEDGES_MAX)
    """Maximum number of backups per request."""
    delay_s: Delay | None = None
    """Fixed delay of policy `static`; required there."""
    quantile: Number = Field(default=DEFAULTS.quantile, gt=0, lt=1)
    """Quantile of recent TTFTs after which policy `quantile` sends a backup."""
    hedge_delay_min_s: Delay = DEFAULTS.hedge_delay_min_s
    """Minimum delay before a backup."""
    cold_start_delay_s: Delay = DEFAULTS.cold_start_delay_s
    """Delay before a backup until enough requests have been measured."""
    gain_min: Number | None = None
    """Minimum expected saving of a hedge, as a multiple of the backup's expected TTFT; unset: 0.25, own engines 5."""
    hedge_hidden_reasoning: Switch = DEFAULTS.hedge_hidden_reasoning
    """Hedge also where answers begin with hidden reasoning."""
    routing: Routing = "predicted"
    """Strategy that chooses the first replica of a request."""
    prefer: PreferName = "balanced"
    """Quantity that the choice of a replica keeps low: time to the first token or to the end, both, or the bill."""
    guard: GuardName = "auto"
    """Attempts that continue an answer beside its stream while the stream is silent or slow."""
    measure: MeasureSettings = Field(default=MeasureSettings(), examples=["{losers: 1%, holdout: 1%}"])
    """Measurement of what hedging saves; off by default."""


class ModelSettings(Section):
    """A public model name and the replicas that serve it."""

    model_config = _LISTED
    name: Name = Field(examples=["llama-70b"])
    """Public name, as callers write it in `model`."""
    aliases: tuple[Name, ...] = Field(default=(), max_length=100, examples=["[gpt-4o, claude-sonnet-4-5]"])
    """Further public names of the model; unique among all names and aliases."""
    replicas: Replicas = Field(
        default=(), min_length=1, examples=["[{name: a, kind: vllm, base_url: http://10.0.0.1:8000/v1}]"]
    )
    """Interchangeable endpoints; requests are spread over them and hedged between them."""
    discover: DiscoverSettings | None = Field(default=None, examples=["{dns: vllm.llm.svc, port: 8000, kind: vllm}"])
    """Source of further replicas, which come and go."""
    fallbacks: tuple[FallbackSettings, ...] = Field(default=(), examples=["[{replicas: [...]}]"])
    """Replicas for requests that every earlier replica has failed, in this order."""
    prices: PriceSettings | None = Field(default=None, examples=["{prompt: 2.50, cached_prompt: 1.25, completion: 10}"])
    """Prices of tokens at replicas and fallbacks without their own `prices`; unset: unknown."""
    hedge: HedgeSettings = Field(default=HedgeSettings(), examples=["{policy: off}"])
    """Overrides the top-level `hedge` for this model, key by key."""
    timeouts: ModelTimeoutSettings = Field(default=ModelTimeoutSettings(), examples=["{ttft_max: 6s, stall: 4s}"])
    """Overrides the top-level `timeouts` for this model, key by key."""
    first_token: FirstToken = Field(default="any")
    """Event that is timed as the first token: any output, also a sign of `work`, or no reasoning (`answer`)."""
    recovery: Recovery = Field(default="auto")
    """Recovery of a stream that breaks after part of it was sent."""
    concurrency: Count | None = None
    """Maximum number of concurrent requests; further ones wait in the `queue`; unset: no limit."""
    queue: QueueSettings = Field(default=QueueSettings(), examples=["{max: 100, timeout: 5s}"])
    """Queue of requests beyond `concurrency`."""
    drop_params: Switch = False
    """Drop parameters that a replica's API does not support, with a log warning, instead of rejecting the request."""
    pass_through: tuple[Family, ...] = Field(default=("audio", "images"), examples=["[audio, files, batches]"])
    """Families of routes that are passed on to a replica of the model as they are, such as `files` for `/v1/files`."""
    cross_boundary: CrossBoundary = Field(default="never")
    """Later attempts of a request that may leave the `boundary` of the first one."""


class TimeoutSettings(ModelTimeoutSettings):
    """Timeouts of a request."""

    request_body_s: Duration = 30.0
    """Timeout of a client's request body."""
    client_idle_s: Duration = 75.0
    """Time after which a client's idle connection is closed."""


class LimitSettings(Section):
    """Maximum sizes of input."""

    request_body_max_bytes: Size = 10_000_000
    """Maximum size of a client's request body."""
    upload_max_bytes: Size = 512_000_000
    """Maximum size of a body that is passed on while it arrives, such as a file."""
    buffered_bodies_max_bytes: Size = 512_000_000
    """Maximum total size of the request bodies held at a time."""
    n_max: Count = 16
    """Maximum `n` in a request."""
    max_tokens_max: Count = 1_000_000
    """Maximum `max_tokens` in a request."""
    event_max_bytes: Size = 16_000_000
    """Maximum size of one event of a replica's stream; a generated image is one event."""


class QuotaSettings(Section):
    """Rate limits of a provider, possibly shared by several replicas."""

    name: Name = Field(examples=["openai-main"])
    """Name of the quota, as replicas write it in `quota`."""
    requests_per_min: Count | None = None
    """Requests per minute; unset: as the provider reports."""
    tokens_per_min: Count | None = None
    """Tokens per minute; unset: as the provider reports."""
    enforce: Switch = False
    """Reject requests at the limit in the gateway instead of sending them to the provider."""


class Settings(Section):
    """Everything that can be configured."""

    listen: ListenAddress = parse_address(LISTEN_DEFAULT)
    """Address of the public API."""
    admin_listen: OptionalAddress = parse_address(ADMIN_LISTEN_DEFAULT)
    """Address of metrics and admin routes, or `off`."""
    admin_key: Secret | None = Field(default=None, examples=["${ADMIN_KEY}"])
    """Key of the admin address, sent as `Authorization: Bearer ...`; unset: none."""
    admin_key_file: str | None = None
    """File with the key, instead of `admin_key`; relative to the configuration file."""
    hosts: tuple[HostName, ...] = Field(default=(), examples=["[gateway.internal]"])
    """Names, without port, under which clients reach an address that has no key; IP addresses always work."""
    cors_origins: tuple[Origin, ...] = Field(default=(), examples=["[https://app.example]"])
    """Origins of web pages that may read responses of the public address (CORS)."""
    keys: tuple[KeySettings, ...] = Field(default=(), examples=["[{name: team-a, key: ${TEAM_A_KEY}}]"])
    """Keys of callers."""
    keys_from: str | None = Field(default=None, min_length=1, examples=["/etc/ttft-gateway/keys"])
    """File or directory with further keys, one JSON object a line, followed at run time; unset: none. Relative to the
    configuration file."""
    allow_anonymous: Switch = False
    """Serve callers without a key."""
    pass_headers: tuple[PassedHeader, ...] = Field(default=(), max_length=32, examples=["[x-tenant]"])
    """Further headers of callers to pass to every replica."""
    models: tuple[ModelSettings, ...] = Field(min_length=1, examples=["[{name: llama-70b, replicas: [...]}]"])
    """Models to serve."""
    default_model: Name | None = Field(default=None, examples=["llama-70b"])
    """Model of requests with a missing or unknown `model`; unset: such requests are errors."""
    hedge: HedgeSettings = Field(default=HedgeSettings(), examples=["{policy: off}"])
    """Hedging of every model, except where its own `hedge` differs."""
    timeouts: TimeoutSettings = Field(default=TimeoutSettings(), examples=["{ttft_failover: 10s}"])
    """Timeouts of requests."""
    limits: LimitSettings = Field(default=LimitSettings(), examples=["{request_body_max: 10MB}"])
    """Maximum sizes of requests and events."""
    quotas: tuple[QuotaSettings, ...] = Field(default=(), examples=["[{name: openai-main, requests_per_min: 500}]"])
    """Rate limits of providers."""
    learned_file: OptionalFile = Field(default=None, examples=["/var/lib/ttft-gateway/learned.json"])
    """File that stores learned latencies over restarts, or `off`; relative to the configuration file."""
    share: ShareSettings | None = Field(default=None, examples=["{url: rediss://valkey.internal:6379/0}"])
    """Server over which several gateways share limits and loads; unset: none."""
    kubernetes: KubernetesSettings = Field(default=KubernetesSettings(), examples=["{url: http://127.0.0.1:8001}"])
    """Cluster with the Services of `discover.endpointslices`; unset: the cluster that the gateway runs in."""
    tracing: TracingSettings | None = Field(default=None, examples=["{endpoint: http://otel-collector:4318}"])
    """Receiver of traces; unset: none."""
    workers: Workers = 1
    """Number of processes that serve requests, or `auto`: one for each core."""
    drain_timeout_s: Duration = 30.0
    """Maximum time for running requests to finish after a stop signal."""

    @property
    def own_hosts(self) -> tuple[str, ...]:
        """`hosts`, and the hosts of the addresses to listen on."""
        return (*self.hosts, *(each.host for each in (self.listen, self.admin_listen) if each is not None))

    def keeping(self, old: "Settings") -> "Settings":
        """Return these settings with the old objects of the models that are the same."""
        known = {model.name: model for model in old.models}
        pairs = ((known.get(model.name), model) for model in self.models)
        models = tuple(was if was is not None and is_same(was, model) else model for was, model in pairs)
        return self.model_copy(update={"models": models})

    def is_same_but_models(self, old: "Settings") -> bool:
        """Return True if the settings differ from old ones in models and keys at most."""
        rest: dict[str, object] = {"models": (), "keys": ()}
        return is_same(self.model_copy(update=rest), old.model_copy(update=rest))

    @property
    def needs_key(self) -> bool:
        """True if callers need a key."""
        return bool(self.keys) or self.keys_from is not None

    def hedge_of(self, model: ModelSettings) -> HedgeSettings:
        """Return the hedging settings in force for a model: its own where set, else the top-level ones."""
        return overlaid(self.hedge, model.hedge)

    def timeouts_of(self, model: ModelSettings) -> TimeoutSettings:
        """Return the timeouts in force for a model: its own where set, else the top-level ones."""
        return overlaid(self.timeouts, model.timeouts)

    def timeouts_by_pool(self, model: ModelSettings) -> tuple[TimeoutSettings, ...]:
        """Return the timeouts in force for each pool of a model: its replicas, then each fallback's own where set."""
        primary = self.timeouts_of(model)
        return (primary, *(overlaid(primary, fallback.timeouts) for fallback in model.fallbacks))


@cache
def sections() -> dict[tuple[str, ...], type[Section]]:
    """Return every mapping in the file by its path without indices; `()` is the file itself."""
    found: dict[tuple[str, ...], type[Section]] = {}

    def visit(path: tuple[str, ...], section: type[Section]) -> None:
        found[path] = section
        for name, field in section.model_fields.items():
            for kind in _parts(field.annotation):
                if isinstance(kind, type) and issubclass(kind, Section):
                    visit((*path, field.alias or name), kind)

    visit((), Settings)
    return found


def _parts(annotation: object) -> list[object]:
    """Return a type and all types in it."""
    return [annotation, *(part for argument in get_args(annotation) for part in _parts(argument))]
