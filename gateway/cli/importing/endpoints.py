"""LiteLLM's providers as kinds of the catalogue: base URLs, variables of keys, names of models. No units.

The defaults are those in LiteLLM's provider pages (docs.litellm.ai/docs/providers).
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

import msgspec

from gateway.config.values import with_v1


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
    base_url: str | None = None
    base_variable: str = ""
    key_variable: str = ""
    needs_key: bool = True
    adds_v1: bool = False


def _engine(kind: str, name: str, *, adds_v1: bool = False) -> Provider:
    return Provider(kind, None, f"{name}_API_BASE", f"{name}_API_KEY", needs_key=False, adds_v1=adds_v1)


PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {
        "openai": Provider("openai", "https://api.openai.com/v1", "", "OPENAI_API_KEY"),
        "azure": Provider("azure", None, "AZURE_API_BASE", "AZURE_API_KEY"),
        "anthropic": Provider("anthropic", "https://api.anthropic.com/v1", "", "ANTHROPIC_API_KEY", adds_v1=True),
        "hosted_vllm": _engine("vllm", "HOSTED_VLLM"),
        "ollama": _engine("ollama", "OLLAMA", adds_v1=True),
        "ollama_chat": _engine("ollama", "OLLAMA", adds_v1=True),
        "lm_studio": _engine("lmstudio", "LM_STUDIO"),
        "llamafile": _engine("llamacpp", "LLAMAFILE"),
        "litellm_proxy": Provider("compatible", None, "LITELLM_PROXY_API_BASE", "LITELLM_PROXY_API_KEY"),
        "databricks": Provider("databricks", None, "DATABRICKS_API_BASE", "DATABRICKS_API_KEY"),
        "cerebras": Provider("cerebras", "https://api.cerebras.ai/v1", "", "CEREBRAS_API_KEY"),
        "deepinfra": Provider("deepinfra", "https://api.deepinfra.com/v1/openai", "", "DEEPINFRA_API_KEY"),
        "deepseek": Provider("deepseek", "https://api.deepseek.com/v1", "", "DEEPSEEK_API_KEY"),
        "fireworks_ai": Provider("fireworks", "https://api.fireworks.ai/inference/v1", "", "FIREWORKS_AI_API_KEY"),
        "gemini": Provider("gemini", "https://generativelanguage.googleapis.com/v1beta/openai", "", "GEMINI_API_KEY"),
        "groq": Provider("groq", "https://api.groq.com/openai/v1", "", "GROQ_API_KEY"),
        "mistral": Provider("mistral", "https://api.mistral.ai/v1", "", "MISTRAL_API_KEY"),
        "nebius": Provider("nebius", "https://api.tokenfactory.nebius.com/v1", "", "NEBIUS_API_KEY"),
        "novita": Provider("novita", "https://api.novita.ai/openai/v1", "", "NOVITA_API_KEY"),
        "nvidia_nim": Provider("nim", None, "NVIDIA_NIM_API_BASE", "NVIDIA_NIM_API_KEY"),
        "openrouter": Provider("openrouter", "https://openrouter.ai/api/v1", "", "OPENROUTER_API_KEY"),
        "perplexity": Provider("perplexity", "https://api.perplexity.ai/", "", "PERPLEXITYAI_API_KEY"),
        "sambanova": Provider("sambanova", "https://api.sambanova.ai/v1", "", "SAMBANOVA_API_KEY"),
        "together_ai": Provider("together", "https://api.together.xyz/v1", "", "TOGETHERAI_API_KEY"),
        "xai": Provider("xai", "https://api.x.ai/v1", "", "XAI_API_KEY"),
    }
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
