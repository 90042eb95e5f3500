"""The catalogue of upstream kinds: one explicit row for each, with every fact that depends on the kind.

Addresses and LiteLLM's names come from LiteLLM's provider pages (docs.litellm.ai/docs/providers). Facts about billing
come from a public list, not from contracts: they are unverified until probed. A kind that differs in these facts alone
needs no other code; CONTRIBUTING.md has its tests and documents.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from ttft_gateway.apis.base import Api
from ttft_gateway.apis.rate_limit_headers import RateLimitFormat


class Auth(enum.Enum):
    """The header that carries a replica's key."""

    BEARER = "authorization"
    API_KEY = "api-key"
    X_API_KEY = "x-api-key"

    def header(self, secret: str) -> tuple[bytes, bytes]:
        """Return the header with a key or token."""
        return self.value.encode(), (f"Bearer {secret}" if self is Auth.BEARER else secret).encode()


_COMPATIBLE = frozenset({Api.CHAT, Api.COMPLETIONS, Api.EMBEDDINGS})
_WITH_RESPONSES = _COMPATIBLE | {Api.RESPONSES}
_ENGINE_PREFILLS = frozenset({Api.CHAT, Api.COMPLETIONS})
_ENGINE = frozenset({Api.RERANK, Api.TOKENIZE})  # served by vLLM, SGLang and llama-server in addition to OpenAI's API


class Kind(msgspec.Struct, frozen=True):
    """One row of the catalogue.

    Attributes:
        base_url: base URL of the provider's API; None if each customer or server has another one.
        place: settings from which the base URL is derived (clouds.py); empty if it has to be written.
        hosts: further hosts of the provider; their subdomains are included, and `*` stands for a region.
        litellm: the provider's names in LiteLLM.
        auth: the header that carries the key.
        own_engine: a self-hosted inference engine, not a provider: capacity is shared, not bought.
        cancel_stops_billing: closing the connection stops generation and billing; None is unknown, taken as False.
        supports_usage_option: supports `stream_options.include_usage`.
        apis: its native APIs; other APIs are translated to one of these where possible.
        stores_responses: stores answers of the Responses API unless the request has `store: false`.
        stores_threads: stores the threads of the Messages API.
        limits: the format of its rate-limit headers; None if it sends none.
        counts_max_tokens: charges a request's whole `max_tokens` to its token limit in advance.
        prefills: native APIs in which it continues an answer from a given beginning. In chat completions this is
            `continue_final_message`, and completions are continued by a longer prompt.
        max_tokens: name of the bound on a chat completion's tokens, for translations.
        headers: headers of every request to it.
        body_version: value of `anthropic_version` in a body, at a server that has the model in its path; None: neither.
    """

    base_url: str | None = None
    place: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    litellm: tuple[str, ...] = ()
    auth: Auth = Auth.BEARER
    own_engine: bool = False
    cancel_stops_billing: bool | None = None
    supports_usage_option: bool = True
    apis: frozenset[Api] = _COMPATIBLE
    stores_responses: bool = False
    stores_threads: bool = False
    limits: RateLimitFormat | None = None
    counts_max_tokens: bool = False
    prefills: frozenset[Api] = frozenset()
    max_tokens: str = "max_tokens"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body_version: str | None = None


CATALOG: Mapping[str, Kind] = MappingProxyType(
    {
        "openai": Kind(
            base_url="https://api.openai.com/v1",
            litellm=("openai",),
            cancel_stops_billing=True,
            apis=_WITH_RESPONSES | {Api.MODERATIONS},
            stores_responses=True,
            limits=RateLimitFormat(),
            counts_max_tokens=True,
            max_tokens="max_completion_tokens",
        ),
        "azure": Kind(  # the /openai/v1 form of its address
            place=("resource",),
            hosts=("openai.azure.com",),
            litellm=("azure",),
            auth=Auth.API_KEY,
            cancel_stops_billing=True,
            apis=_WITH_RESPONSES,
            stores_responses=True,
            limits=RateLimitFormat(requests_window_s=10.0, zero_is_unknown=True),  # 120 a minute are 20 in 10 s there
            counts_max_tokens=True,
            max_tokens="max_completion_tokens",
        ),
        "anthropic": Kind(
            base_url="https://api.anthropic.com/v1",
            litellm=("anthropic",),
            auth=Auth.X_API_KEY,
            cancel_stops_billing=True,
            apis=frozenset({Api.MESSAGES}),
            stores_threads=True,
            limits=RateLimitFormat(),
            prefills=frozenset({Api.MESSAGES}),
            headers=((b"anthropic-version", b"2023-06-01"),),
        ),
        "bedrock": Kind(  # its routes are in clouds.py; BerriAI/litellm#36008: Invoke bills a cancelled stream in full
            place=("region",),
            hosts=("bedrock-mantle.*.api.aws", "bedrock-runtime.*.amazonaws.com"),
            apis=frozenset({Api.CHAT, Api.RESPONSES, Api.MESSAGES}),
            stores_responses=True,  # at bedrock-mantle: can1357/oh-my-pi#1732
        ),
        "vertex": Kind(  # no source states what a cancelled request costs, here and at foundry
            place=("region", "project"),
            hosts=("*-aiplatform.googleapis.com", "aiplatform.googleapis.com", "aiplatform.*.rep.googleapis.com"),
            apis=frozenset({Api.CHAT, Api.MESSAGES}),
        ),
        "foundry": Kind(
            place=("resource",),
            hosts=("services.ai.azure.com",),
            auth=Auth.API_KEY,
            apis=frozenset({Api.CHAT, Api.RESPONSES, Api.EMBEDDINGS, Api.MESSAGES}),
            stores_responses=True,
            max_tokens="max_completion_tokens",
        ),
        "compatible": Kind(litellm=("litellm_proxy",), limits=RateLimitFormat()),  # any other server with OpenAI's API
        "vllm": Kind(
            litellm=("hosted_vllm",),
            own_engine=True,
            cancel_stops_billing=True,
            apis=_WITH_RESPONSES | _ENGINE,
            prefills=_ENGINE_PREFILLS,
        ),
        "sglang": Kind(
            own_engine=True, cancel_stops_billing=True, apis=_COMPATIBLE | _ENGINE, prefills=_ENGINE_PREFILLS
        ),
        "tgi": Kind(own_engine=True, cancel_stops_billing=True),
        "ollama": Kind(litellm=("ollama", "ollama_chat"), own_engine=True, cancel_stops_billing=True),
        "llamacpp": Kind(
            litellm=("llamafile",), own_engine=True, cancel_stops_billing=True, apis=_COMPATIBLE | _ENGINE
        ),
        "lmstudio": Kind(
            litellm=("lm_studio",),
            own_engine=True,
            cancel_stops_billing=True,
            apis=_WITH_RESPONSES,
            stores_responses=True,
        ),
        "nim": Kind(litellm=("nvidia_nim",), own_engine=True, cancel_stops_billing=True, apis=_WITH_RESPONSES),
        "simulated": Kind(
            own_engine=True,
            cancel_stops_billing=True,
            apis=_WITH_RESPONSES | _ENGINE | {Api.MODERATIONS},
            prefills=_ENGINE_PREFILLS | {Api.RESPONSES, Api.MESSAGES},
        ),
        "cerebras": Kind(
            base_url="https://api.cerebras.ai/v1",
            litellm=("cerebras",),
            limits=RateLimitFormat(),
            counts_max_tokens=True,
        ),
        "databricks": Kind(litellm=("databricks",)),
        "deepinfra": Kind(
            base_url="https://api.deepinfra.com/v1/openai", litellm=("deepinfra",), cancel_stops_billing=True
        ),
        "deepseek": Kind(base_url="https://api.deepseek.com/v1", litellm=("deepseek",), cancel_stops_billing=True),
        "fireworks": Kind(
            base_url="https://api.fireworks.ai/inference/v1",
            litellm=("fireworks_ai",),
            cancel_stops_billing=True,
            limits=RateLimitFormat(),
        ),
        "gemini": Kind(
            base_url="https://generativelanguage.googleapis.com/v1beta/openai",
            litellm=("gemini",),
            cancel_stops_billing=False,
        ),
        "groq": Kind(
            base_url="https://api.groq.com/openai/v1",
            litellm=("groq",),
            cancel_stops_billing=False,
            limits=RateLimitFormat(requests_window_s=86_400.0),
        ),
        "mistral": Kind(  # reports usage without the option and rejects the option
            base_url="https://api.mistral.ai/v1",
            litellm=("mistral",),
            cancel_stops_billing=False,
            supports_usage_option=False,
            apis=_COMPATIBLE | {Api.MODERATIONS},
            limits=RateLimitFormat(),
        ),
        "nebius": Kind(
            base_url="https://api.tokenfactory.nebius.com/v1",
            hosts=("api.studio.nebius.com",),
            litellm=("nebius",),
            cancel_stops_billing=False,
        ),
        "novita": Kind(base_url="https://api.novita.ai/openai/v1", litellm=("novita",), cancel_stops_billing=False),
        "openrouter": Kind(
            base_url="https://openrouter.ai/api/v1",
            litellm=("openrouter",),
            limits=RateLimitFormat(requests_window_s=None),  # a minute's or a day's, with a 429 only
        ),
        "perplexity": Kind(
            base_url="https://api.perplexity.ai/",
            litellm=("perplexity",),
            cancel_stops_billing=False,
            apis=frozenset({Api.CHAT}),
        ),
        "sambanova": Kind(
            base_url="https://api.sambanova.ai/v1",
            litellm=("sambanova",),
            cancel_stops_billing=False,
            apis=frozenset({Api.CHAT, Api.EMBEDDINGS}),
        ),
        "together": Kind(
            base_url="https://api.together.xyz/v1",
            litellm=("together_ai",),
            cancel_stops_billing=True,
            limits=RateLimitFormat(requests_window_s=1.0, tokens_window_s=1.0),
        ),
        "xai": Kind(
            base_url="https://api.x.ai/v1",
            litellm=("xai",),
            cancel_stops_billing=True,
            apis=_WITH_RESPONSES,
            stores_responses=True,
            limits=RateLimitFormat(),
        ),
    }
)
