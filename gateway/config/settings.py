"""The settings: one frozen object, checked, that the composition root turns into objects.

Owns names, types, ranges and defaults. Each YAML key is its field's name without the unit (`drain_timeout: 30s` is
`drain_timeout_s`). Knows nothing of files, line numbers or environment variables (config_file.py), nor of rules
between settings (config_rules.py). docs/configuration.md has a heading for each.

Units: `_s` seconds, `_bytes` bytes, shares are fractions of 1; the rest are counts or have no unit.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from gateway.config.values import (
    Address,
    BaseUrl,
    Count,
    Delay,
    Duration,
    HeaderName,
    HeaderValue,
    ListenAddress,
    Name,
    Number,
    OptionalAddress,
    ProxyUrl,
    Secret,
    Share,
    Size,
    Switch,
    no_boolean,
    refusal,
)
from providers.catalog import CATALOG, Auth

Routing = Literal["predicted", "least_in_flight", "round_robin", "prefix_affinity"]
Policy = Literal["adaptive", "quantile", "static", "off"]
FirstToken = Literal["any", "answer"]
BudgetUnitName = Literal["tokens", "cost"]
Recovery = Literal["off", "auto", "replay", "continue"]
CrossBoundary = Literal["never", "failover", "always"]

ApiName = Literal["chat/completions", "completions", "responses", "messages", "embeddings"]

AuthName = Literal["bearer", "api-key", "x-api-key"]
AUTHS: Mapping[AuthName, Auth] = {"bearer": Auth.BEARER, "api-key": Auth.API_KEY, "x-api-key": Auth.X_API_KEY}

DEFAULT_POLICY: Policy = "adaptive"


def _kind(value: str) -> str:
    if value not in CATALOG:
        raise refusal("there is no such kind", "one of " + ", ".join(sorted(CATALOG)))
    return value


Kind = Annotated[str, AfterValidator(_kind), WithJsonSchema({"type": "string", "enum": sorted(CATALOG)})]


def _key_of(field: str) -> str:
    """The YAML key of a field: its name without the unit."""
    return field.removesuffix("_s").removesuffix("_bytes")


class Section(BaseModel):
    """A mapping in the file: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=_key_of,
        hide_input_in_errors=True,  # inputs can be secrets
        use_attribute_docstrings=True,
    )


class KeySettings(Section):
    """One caller's key. With `key_file`, `key` is the file's content."""

    model_config = ConfigDict(
        json_schema_extra={"required": ["name"], "oneOf": [{"required": ["key"]}, {"required": ["key_file"]}]}
    )

    name: Name = Field(examples=["team-a"])
    """Stands for the key in logs and metrics."""
    key: Secret = Field(examples=["${TEAM_A_KEY}"])
    """The secret that callers send as `Authorization: Bearer ...`."""
    key_file: str | None = None
    """A file that holds the secret, instead of `key`; relative to the configuration file."""
    models: tuple[str, ...] | None = Field(default=None, min_length=1, examples=["[llama-70b]"])
    """The models it may use."""
    requests_per_min: Count | None = None
    """Requests a minute it may make."""
    tokens_per_min: Count | None = None
    """Tokens a minute it may use, of prompts and answers together."""
    concurrency: Count | None = None
    """Requests it may have under way at a time, waiting ones included."""


class PriceSettings(Section):
    """What a replica's tokens cost, per million, in any one currency."""

    prompt: Number = Field(examples=["2.50"])
    """Prompt tokens."""
    cached_prompt: Number | None = None
    """Prompt tokens that the provider had cached; without it, what other prompt tokens cost."""
    completion: Number = Field(examples=["10"])
    """Generated tokens, reasoning included."""


class ConnectionSettings(Section):
    """How a replica is connected to. Paths of files are relative to the configuration file."""

    http2: Switch = False
    """Whether HTTP/2 is spoken: where TLS agrees to it, and always without TLS."""
    proxy: ProxyUrl | None = Field(default=None, examples=["http://proxy.internal:3128"])
    """An HTTP proxy on the way."""
    ca_file: str | None = Field(default=None, examples=["/etc/ssl/internal-ca.pem"])
    """The authorities to trust instead of the system's, in PEM form."""
    cert_file: str | None = Field(default=None, examples=["/run/secrets/gateway.crt"])
    """The gateway's own certificate, in PEM form."""
    key_file: str | None = Field(default=None, examples=["/run/secrets/gateway.key"])
    """Its key, without a password; not needed where the key stands in `cert_file`."""


class ReplicaSettings(Section):
    """One endpoint that can answer for a model. With `api_key_file`, `api_key` is the file's content."""

    name: Name = Field(examples=["a"])
    """Its name in logs, metrics and response headers; unique within the model, fallbacks included."""
    kind: Kind = Field(examples=["vllm"])
    """What speaks at the other end."""
    base_url: BaseUrl = Field(examples=["http://10.0.0.1:8000/v1"])
    """Where its API begins, usually ending in /v1."""
    api_key: Secret | None = None
    """The key sent to it."""
    api_key_file: str | None = None
    """A file that holds the key, instead of `api_key`; relative to the configuration file."""
    auth: AuthName | None = None
    """How the key is sent, where that differs from what is usual for its kind."""
    api_version: str | None = Field(default=None, pattern=r"^[A-Za-z0-9.-]{1,40}$", examples=["2024-10-21"])
    """Azure's `api-version`."""
    connection: ConnectionSettings = Field(
        default=ConnectionSettings(), examples=["{ca_file: /etc/ssl/internal-ca.pem}"]
    )
    """How it is connected to."""
    apis: tuple[ApiName, ...] | None = Field(default=None, min_length=1, examples=["[chat/completions, embeddings]"])
    """The APIs that it speaks itself, where that differs from what is usual for its kind."""
    max_tokens_default: Count = 32_000
    """The bound on an answer where the caller gave none and the replica's API demands one (`anthropic`)."""
    model: str | None = Field(default=None, min_length=1, max_length=256)
    """What the replica calls the model; without it, the model's public name."""
    quota: Name | None = None
    """Whoever counts its rate limits; replicas that name the same quota share it."""
    boundary: Name | None = None
    """A region or vendor that requests must not leave."""
    prices: PriceSettings | None = Field(default=None, examples=["{prompt: 2.50, cached_prompt: 1.25, completion: 10}"])
    """What its tokens cost, instead of what the model's `prices` say."""
    allow_billed_hedges: Switch = False
    """Whether hedges may go to it although cancelling them does not stop the bill, or may not."""
    headers: Mapping[HeaderName, HeaderValue] = Field(default={}, examples=["{x-team: search}"])
    """Headers added to each request."""


Replicas = tuple[ReplicaSettings, ...]


class FallbackSettings(Section):
    """Interchangeable replicas that are used when those before them have failed."""

    replicas: Replicas = Field(min_length=1, examples=["[{name: c, ...}]"])
    """The replicas of this fallback."""


class HedgeSettings(Section):
    """When a late request is sent to a second replica, and how much that may cost."""

    policy: Policy = DEFAULT_POLICY
    """What decides the delay before a backup is sent."""
    budget: Share = 0.10
    """How many hedges there may be, as a share of the requests."""
    budget_unit: BudgetUnitName = "tokens"
    """What that is a share of besides requests: their prompt tokens, or what they cost."""
    max_hedges: Count = Field(default=1, le=3)
    """How many backups one request may get."""
    delay_s: Delay | None = None
    """The fixed delay of policy `static`."""
    quantile: Number = Field(default=0.9, gt=0, lt=1)
    """Policy `quantile` hedges what takes longer than this share of recent requests took."""
    hedge_delay_min_s: Delay = 0.020
    """No hedge is sent earlier than this."""
    cold_start_delay_s: Delay = 10.0
    """The delay until enough requests have been seen to know better."""
    gain_min: Number | None = None
    """How much time a hedge must be expected to save, in units of the backup's own expected TTFT."""
    hedge_hidden_reasoning: Switch = False
    """Whether to hedge also where answers begin with reasoning that is not shown."""
    routing: Routing = "predicted"
    """What chooses the replica that is asked first."""


class QueueSettings(Section):
    """Where requests wait for a model whose `concurrency` is used up."""

    max: Annotated[int, Field(ge=0), BeforeValidator(no_boolean)] = 100
    """How many may wait."""
    timeout_s: Duration = 5.0
    """How long one waits at most."""


class ModelSettings(Section):
    """A public model name and the replicas that can answer for it."""

    name: Name = Field(examples=["llama-70b"])
    """What callers put in `model`."""
    replicas: Replicas = Field(min_length=1, examples=["[{name: a, kind: vllm, base_url: http://10.0.0.1:8000/v1}]"])
    """Interchangeable endpoints; requests are spread over them and hedged between them."""
    fallbacks: tuple[FallbackSettings, ...] = Field(default=(), examples=["[{replicas: [...]}]"])
    """Where requests go when every replica has failed, in this order."""
    prices: PriceSettings | None = Field(default=None, examples=["{prompt: 2.50, cached_prompt: 1.25, completion: 10}"])
    """What tokens cost at its replicas, fallbacks included, that have no `prices` of their own."""
    hedge: HedgeSettings = Field(default=HedgeSettings(), examples=["{policy: off}"])
    """Overrides the top-level `hedge` for this model, key by key."""
    first_token: FirstToken = Field(default="any")
    """Whether reasoning counts as the first token (`any`) or only the answer does."""
    recovery: Recovery = Field(default="auto")
    """What is done when a stream breaks after part of it has gone out."""
    concurrency: Count | None = None
    """How many requests may be under way at a time; more wait in the `queue`."""
    queue: QueueSettings = Field(default=QueueSettings(), examples=["{max: 100, timeout: 5s}"])
    """Where requests wait beyond that."""
    drop_params: Switch = False
    """Drop what a replica's API has no words for, with a warning in the log, instead of refusing the request."""
    cross_boundary: CrossBoundary = Field(default="never")
    """Which later attempts of a request may leave the `boundary` that it was sent to first."""


class TimeoutSettings(Section):
    """How long the gateway waits, for what."""

    connect_s: Duration = 3.0
    """For a connection to a replica, TLS included."""
    ttft_failover_s: Duration = 10.0
    """For the first token while another replica could still be tried."""
    ttft_failover_per_1000_tokens_s: Delay = 0.25
    """Added to `ttft_failover` for each 1,000 prompt tokens."""
    ttft_max_s: Duration = 120.0
    """For the first token when no other replica is left."""
    stall_s: Duration = 20.0
    """For the next event of a stream that has begun."""
    total_s: Duration = 600.0
    """For the whole answer."""
    commit_status_after_s: Duration = 15.0
    """How long a streaming request's HTTP status is held back while there is no first token."""
    keepalive_interval_s: Duration = 15.0
    """Between the comments that keep a waiting client's connection open."""
    retry_after_max_s: Delay = 3.0
    """A replica's Retry-After up to this is waited out before a fallback is used."""
    request_body_s: Duration = 30.0
    """For a client to send its request body."""


class LimitSettings(Section):
    """The largest input the gateway takes."""

    request_body_max_bytes: Size = 10_000_000
    """A client's request body."""
    buffered_bodies_max_bytes: Size = 512_000_000
    """All request bodies that the gateway holds at a time, together."""
    n_max: Count = 16
    """`n` in a request."""
    max_tokens_max: Count = 1_000_000
    """`max_tokens` in a request."""
    event_max_bytes: Size = 4_000_000
    """One event of a replica's stream."""


class QuotaSettings(Section):
    """Limits that a provider counts, possibly for several replicas together."""

    name: Name = Field(examples=["openai-main"])
    """What replicas write in `quota`."""
    requests_per_min: Count | None = None
    """Requests a minute."""
    tokens_per_min: Count | None = None
    """Tokens a minute."""
    enforce: Switch = False
    """Whether the gateway refuses a request at the limit instead of letting the provider do so."""


class Settings(Section):
    """Everything that can be configured."""

    listen: ListenAddress = Address("127.0.0.1", 8080)
    """Where callers reach the gateway."""
    admin_listen: OptionalAddress = Address("127.0.0.1", 8081)
    """Where metrics and admin routes are served, or `off`."""
    keys: tuple[KeySettings, ...] = Field(default=(), examples=["[{name: team-a, key: ${TEAM_A_KEY}}]"])
    """Who may call."""
    allow_anonymous: Switch = False
    """Whether callers without a key are served."""
    models: tuple[ModelSettings, ...] = Field(min_length=1, examples=["[{name: llama-70b, replicas: [...]}]"])
    """What is served."""
    hedge: HedgeSettings = Field(default=HedgeSettings(), examples=["{policy: off}"])
    """Hedging of every model that does not say otherwise."""
    timeouts: TimeoutSettings = Field(default=TimeoutSettings(), examples=["{ttft_failover: 10s}"])
    """How long the gateway waits."""
    limits: LimitSettings = Field(default=LimitSettings(), examples=["{request_body_max: 10MB}"])
    """How large requests and events may be."""
    quotas: tuple[QuotaSettings, ...] = Field(default=(), examples=["[{name: openai-main, requests_per_min: 500}]"])
    """Rate limits of providers."""
    drain_timeout_s: Duration = 30.0
    """How long running streams may go on after the gateway was told to stop."""

    def hedge_of(self, model: ModelSettings) -> HedgeSettings:
        """The hedging settings in force for a model: its own where it has them, else the top-level ones."""
        own = {name: getattr(model.hedge, name) for name in model.hedge.model_fields_set}
        return self.hedge.model_copy(update=own)


def sections() -> dict[tuple[str, ...], type[Section]]:
    """Every mapping in the file by its path without indices; `()` is the file itself."""
    found: dict[tuple[str, ...], type[Section]] = {}

    def visit(path: tuple[str, ...], section: type[Section]) -> None:
        found[path] = section
        for name, field in section.model_fields.items():
            for kind in (field.annotation, *get_args(field.annotation)):
                if isinstance(kind, type) and issubclass(kind, Section):
                    visit((*path, field.alias or name), kind)

    visit((), Settings)
    return found
