"""The addresses of models at clouds: Amazon Bedrock, Google Vertex AI, Microsoft Foundry and Azure OpenAI.

A cloud has several routes, each for a family of models. The base URL contains the route, so that the APIs, the header
of the key and the other facts of a replica follow from its base URL and its model (`kind_at`), whether the base URL was
derived (`base_url_of`) or written. Pure.

Sources, read on 28 November 2026:

- Bedrock: docs.aws.amazon.com/bedrock/latest/userguide, pages inference-messages-api, inference-responses-api,
  inference-chat-completions and models-endpoint-availability; AnthropicBedrockMantle of anthropic 2.14.0. Names of
  models at bedrock-mantle have neither the prefix of a geography nor the suffix of a version: docs.getbifrost.ai, page
  bedrock-mantle. The two OpenAI-compatible routes of bedrock-mantle: NousResearch/hermes-agent#52316 (xai), #65076
  (gpt-5), maximhq/bifrost#7063 (gpt-6), braintrustdata/lingua#340 (gemma-4). gpt-5 has no chat completions there:
  enricoros/big-AGI#1167. Amazon's, Meta's, Cohere's and AI21's own models have Converse and Invoke only:
  models-api-compatibility.
- Vertex AI: docs.cloud.google.com/vertex-ai/generative-ai, pages use-claude and call-vertex-using-openai-library;
  platform.claude.com, page claude-on-vertex-ai; AnthropicVertex of anthropic 2.14.0, also for the hosts of `global`,
  `us` and `eu`.
- Foundry: platform.claude.com, page claude-in-microsoft-foundry; AnthropicFoundry of anthropic 2.14.0, which sends a
  key as `x-api-key`. Claude has no OpenAI-compatible route there: theopenco/llmgateway#3233.
- Continuations of Claude's answers: the clouds have the Messages API, which continues a last turn of the assistant:
  docs.aws.amazon.com/bedrock, page model-parameters-anthropic-claude-messages. A model that rejects this gets a replay.
- Azure OpenAI: learn.microsoft.com/azure/ai-services/openai, page api-version-lifecycle (/openai/v1).
"""

import re
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from ttft_gateway.apis.base import Api
from ttft_gateway.apis.catalog import CATALOG, Auth, Kind

_CLAUDE_ROUTES: Final = ("/anthropic/v1", "/publishers/anthropic")
_VERSION_HEADER: Final = ((b"anthropic-version", b"2023-06-01"),)
_VERTEX_VERSION: Final = "vertex-2023-10-16"
_MESSAGES: Final = frozenset({Api.MESSAGES})
_CHAT: Final = frozenset({Api.CHAT})
_RESPONSES: Final = frozenset({Api.RESPONSES})

_geography = re.compile(r"(?:us|us-gov|eu|apac|au|ca|jp|global)\.").match
_version = re.compile(r":\d+$|^(?:[\w-]+\.)?anthropic\..*-v\d+$").search  # nvidia.nemotron-nano-9b-v2 has no version
_mantle_host = re.compile(r"(?:^|\.)bedrock-mantle\.").search
_bedrock_region = re.compile(r"(?:^|\.)bedrock-(?:mantle|runtime)\.([\w-]+)\.").search
_runtime_host = re.compile(r"(?:^|\.)bedrock-runtime\.").search

_NO_ROUTE: Final = ("amazon.", "meta.", "cohere.", "ai21.", "stability.", "luma.", "twelvelabs.")
_OPENAI_ROUTE: Final = ("openai.gpt-", "xai.", "google.gemma-4")  # of bedrock-mantle
_OSS: Final = "openai.gpt-oss"


class Place(msgspec.Struct, frozen=True):
    """The settings of an address; None for one that is not set.

    Attributes:
        region: region of the cloud, such as `us-east-1` or `global`.
        project: Google's project.
        resource: name of the resource at Azure or Foundry.
    """

    region: str | None = None
    project: str | None = None
    resource: str | None = None


class RouteFault(ValueError):
    """No route of a cloud serves a model.

    Attributes:
        text: reason and correction.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def base_url_of(kind: str, place: Place, model: str) -> str | None:
    """Return the base URL of a model at a cloud; None for a kind without such an address, or if a setting is missing.

    Raises:
        RouteFault: no route serves the model.
    """
    if any(getattr(place, name) is None for name in CATALOG[kind].place) or not CATALOG[kind].place:
        return None
    if kind == "bedrock":
        return _bedrock(str(place.region), model)
    if kind == "vertex":
        return _vertex(str(place.region), str(place.project), model)
    if kind == "foundry":
        route = "anthropic/v1" if _is_claude(model) else "openai/v1"
        return f"https://{place.resource}.services.ai.azure.com/{route}"
    return f"https://{place.resource}.openai.azure.com/openai/v1"


def region_of(base_url: str) -> str | None:
    """Return the region of Bedrock in a base URL; None if it has none."""
    found = _bedrock_region(urlsplit(base_url).hostname or "")
    return None if found is None else found[1]


def kind_at(name: str, base_url: str, model: str) -> Kind:
    """Return the facts of a kind as they hold for the route in a base URL.

    Args:
        name: name of the kind.
        base_url: base URL of the replica.
        model: the replica's name of the model.
    """
    kind, path = CATALOG[name], urlsplit(base_url).path
    if name == "azure" and "/deployments/" in path:  # the Responses API is below /openai/v1 only
        return replace(kind, apis=kind.apis - {Api.RESPONSES})
    if name not in ("bedrock", "vertex", "foundry"):
        return kind
    if path.endswith(_CLAUDE_ROUTES):
        kind = replace(kind, apis=_MESSAGES, prefills=CATALOG["anthropic"].prefills)
        if name == "vertex":
            return replace(kind, body_version=_VERTEX_VERSION)
        auth = Auth.X_API_KEY if name == "foundry" else kind.auth
        return replace(kind, auth=auth, headers=_VERSION_HEADER)
    if name == "bedrock":
        return _openai_at_bedrock(kind, base_url, _family(model))
    if name == "foundry":  # the service of Azure OpenAI
        azure = CATALOG["azure"]
        return replace(kind, apis=kind.apis - _MESSAGES, limits=azure.limits, counts_max_tokens=azure.counts_max_tokens)
    return replace(kind, apis=kind.apis - _MESSAGES)


def route_fault(kind: str, base_url: str, model: str) -> str | None:
    """Return the reason for which the route in a written base URL does not serve a model; None if it may."""
    path, host = urlsplit(base_url).path, urlsplit(base_url).hostname or ""
    is_claude_route = path.endswith(_CLAUDE_ROUTES)
    if kind == "vertex" and is_claude_route != _is_claude(model):
        right = "/publishers/anthropic" if _is_claude(model) else "/endpoints/openapi"
        return f"this route of Vertex AI does not serve {model}; use an address that ends in {right}"
    if kind == "foundry" and is_claude_route and not _is_claude(model):
        return None  # a deployment may have any name
    if kind != "bedrock" or model.startswith("arn:"):
        return None
    try:
        right = _bedrock("REGION", model)
    except RouteFault as fault:
        return fault.text
    if _mantle_host(host) and _is_of_runtime(model):
        text = "bedrock-mantle serves no names with the prefix of a geography or the suffix of a version"
        return f"{text}, such as {model}; write the name without them, or use {right}"
    wanted = urlsplit(right).path
    if (_mantle_host(host) or _runtime_host(host)) and path != wanted and not _is_other(path, host, model):
        return f"this route of Bedrock does not serve {model}; use {right}"
    return None


def _bedrock(region: str, model: str) -> str:
    family = _family(model)
    if model.startswith("arn:"):
        raise RouteFault(
            "the ARN of an inference profile has no name of a model; write `base_url`, for Claude "
            f"https://bedrock-runtime.{region}.amazonaws.com/anthropic/v1"
        )
    if family.startswith(_NO_ROUTE):
        raise RouteFault(
            f"Bedrock serves {model} over Converse and Invoke only, which the gateway does not support; "
            "use a model with the Messages API, chat completions or the Responses API"
        )
    if "." not in family:
        raise RouteFault(f"{model} is not the name of a model at Bedrock; write it as anthropic.claude-opus-4-8")
    is_claude = family.startswith("anthropic.")
    if _is_of_runtime(model):
        route = "anthropic/v1" if is_claude else "openai/v1"
        return f"https://bedrock-runtime.{region}.amazonaws.com/{route}"
    route = "anthropic/v1" if is_claude else "openai/v1" if _has_openai_route(family) else "v1"
    return f"https://bedrock-mantle.{region}.api.aws/{route}"


def _vertex(region: str, project: str, model: str) -> str:
    hosts = {
        "global": "aiplatform.googleapis.com",
        "us": "aiplatform.us.rep.googleapis.com",
        "eu": "aiplatform.eu.rep.googleapis.com",
    }
    root = f"https://{hosts.get(region, f'{region}-aiplatform.googleapis.com')}/v1/projects/{project}"
    if _is_claude(model):
        return f"{root}/locations/{region}/publishers/anthropic"
    if "/" not in model:
        raise RouteFault(f"Vertex AI names a model with its publisher; write google/{model}")
    if model.startswith("anthropic/"):
        raise RouteFault(f"Claude's name at Vertex AI has no publisher; write {model.removeprefix('anthropic/')}")
    return f"{root}/locations/{region}/endpoints/openapi"


def _openai_at_bedrock(kind: Kind, base_url: str, family: str) -> Kind:
    """Return the facts of an OpenAI-compatible route of Bedrock."""
    if not family.startswith("openai.gpt-") or family.startswith(_OSS):
        return replace(kind, apis=_CHAT)
    is_chatless = _mantle_host(urlsplit(base_url).hostname or "") is not None and family.startswith("openai.gpt-5")
    return replace(kind, apis=_RESPONSES if is_chatless else _CHAT | _RESPONSES, max_tokens="max_completion_tokens")


def _is_other(path: str, host: str, model: str) -> bool:
    """Return True for a second route of a model: bedrock-runtime has more names than those with a suffix."""
    if _runtime_host(host) is None:
        return False
    return path.endswith("/anthropic/v1") if _family(model).startswith("anthropic.") else path.endswith("/openai/v1")


def _family(model: str) -> str:
    """Return a name at Bedrock without the prefix of a geography."""
    prefix = _geography(model)
    return model if prefix is None else model[prefix.end() :]


def _is_of_runtime(model: str) -> bool:
    return _geography(model) is not None or _version(model) is not None


def _has_openai_route(family: str) -> bool:
    return family.startswith(_OPENAI_ROUTE) and not family.startswith(_OSS)


def _is_claude(model: str) -> bool:
    return model.startswith("claude-")
