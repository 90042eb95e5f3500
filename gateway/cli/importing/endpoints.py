"""LiteLLM's providers as kinds of the catalogue: base URLs, variables of keys, names of models. No units.

Names and base URLs are columns of the catalogue. All other rules are from LiteLLM's provider pages
(docs.litellm.ai/docs/providers).
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gateway.config.values import with_v1
from ttft_gateway.apis.catalog import CATALOG


class Provider(msgspec.Struct, frozen=True):
    """A provider of LiteLLM.

    Attributes:
        kind: kind of its replicas.
        base_url: base URL of a deployment without `api_base`; None if there is no common one.
        base_variable: variable from which LiteLLM reads the base URL; "" for none.
        key_variable: variable from which LiteLLM reads the key, and name for a literal key.
        needs_key: requests without a key fail.
        adds_v1: LiteLLM appends the version to the base URL itself.
    """

    kind: str
    base_url: str | None
    base_variable: str
    key_variable: str
    needs_key: bool
    adds_v1: bool


_VARIABLES: Final = {"ollama_chat": "OLLAMA", "perplexity": "PERPLEXITYAI", "together_ai": "TOGETHERAI"}
_ADDS_V1: Final = frozenset({"anthropic", "ollama", "ollama_chat"})
_HOSTED_ENGINE: Final = "nvidia_nim"  # NVIDIA's own address, which needs a key, is LiteLLM's default


def _provider(name: str, kind_name: str) -> Provider:
    """Return the facts of one of LiteLLM's providers; its variables begin with its name, except those above."""
    kind, variables = CATALOG[kind_name], _VARIABLES.get(name, name.upper())
    return Provider(
        kind_name,
        kind.base_url,
        "" if kind.base_url else f"{variables}_API_BASE",
        f"{variables}_API_KEY",
        needs_key=not kind.own_engine or name == _HOSTED_ENGINE,
        adds_v1=name in _ADDS_V1,
    )


PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {name: _provider(name, kind_name) for kind_name, kind in CATALOG.items() for name in kind.litellm}
)

_OPENAI_NAMES = re.compile(r"(gpt-|chatgpt-|o[1-9]|text-embedding-|ft:gpt-|omni-moderation)")
_API_PATHS = re.compile(r"/(chat/completions|completions|embeddings|messages|responses)/?$")


def provider_and_model(model: str, custom: object) -> tuple[str, str]:
    """Return LiteLLM's provider and the provider's name for the model; the provider is "" if it is not known."""
    if isinstance(custom, str) and custom:
        return custom, model.removeprefix(f"{custom}/")
    prefix, slash, rest = model.partition("/")
    if slash:
        return prefix, rest
    if _OPENAI_NAMES.match(model):
        return "openai", model
    return ("anthropic" if model.startswith("claude-") else ""), model


def upstream_model(provider: str, model: str) -> str:
    """Return the name of the model that LiteLLM sends: it completes the short names of Fireworks."""
    if provider == "fireworks_ai" and not model.startswith("accounts/"):
        return f"accounts/fireworks/models/{model}"
    return model


def base_url_fault(url: str) -> str | None:
    """Return the problem of a base URL, without quoting it; None if it is usable."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "it is not a URL"
    if parts.scheme not in ("http", "https") or not parts.hostname or not re.fullmatch(r"[!-~]+", url):
        return "it is not an http:// or https:// URL"
    if "@" in parts.netloc or parts.query or parts.fragment:
        return "it contains a user, a password or a query, which may be a secret"
    return None


def plain_base_url(url: str, provider: Provider) -> str:
    """Return the base URL of a replica for LiteLLM's `api_base`; a URL without a path ends with a slash."""
    root = _API_PATHS.sub("", url.rstrip("/")).rstrip("/")
    if urlsplit(root).path:
        return root
    return with_v1(root) if provider.adds_v1 else f"{root}/"


def azure_base_url(url: str, deployment: str, *, versioned: bool) -> str:
    """Return Azure's address: with the deployment in its path if there is an API version, else the newer form."""
    root = _API_PATHS.sub("", url.rstrip("/"))
    if "/openai/deployments/" in root or root.endswith("/openai/v1"):
        return root
    root = root.removesuffix("/openai")
    return f"{root}/openai/deployments/{deployment}" if versioned else f"{root}/openai/v1"
