"""The replicas of a hedging client: their addresses, keys and model names.

Facts about providers are those of the gateway (`providers.catalog`), found by host name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from providers.catalog import CATALOG, Kind

_HOSTS: Final[Mapping[str, str]] = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure",
    "api.anthropic.com": "anthropic",
    "api.cerebras.ai": "cerebras",
    "api.deepinfra.com": "deepinfra",
    "api.deepseek.com": "deepseek",
    "api.fireworks.ai": "fireworks",
    "generativelanguage.googleapis.com": "gemini",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "api.studio.nebius.com": "nebius",
    "api.novita.ai": "novita",
    "openrouter.ai": "openrouter",
    "api.perplexity.ai": "perplexity",
    "api.sambanova.ai": "sambanova",
    "api.together.xyz": "together",
    "api.x.ai": "xai",
}
_PORTS: Final = {"http": 80, "https": 443}

Origin = tuple[str, str, int]
"""Scheme, host and port."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """One replica.

    Attributes:
        base_url: address as an SDK is given it, such as "https://api.openai.com/v1".
        api_key: key, sent to this address only; None: no key is sent, except the request's own to its own host.
        model: name of the model there; None: the request's.
        name: name in the statistics; empty: the host.
        headers: further headers, sent to this address only; they replace those of the request.
        kind: kind of the server (docs/providers.md); None: found by the host, else a compatible server.
    """

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    name: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    kind: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"base_url is {self.base_url!r}; use an address such as 'https://api.openai.com/v1'")
        if parts.query or parts.fragment or parts.username or parts.password:
            raise ValueError("base_url has a query, fragment or password; remove it")
        if self.kind is not None and self.kind not in CATALOG:
            raise ValueError(f"kind is {self.kind!r}; use one of {', '.join(sorted(CATALOG))}")

    @property
    def origin(self) -> Origin:
        """Scheme, host and port."""
        parts = urlsplit(self.base_url)
        return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]

    @property
    def path(self) -> str:
        """Path of the base URL, without a slash at its end."""
        return urlsplit(self.base_url).path.rstrip("/")

    @property
    def label(self) -> str:
        """Name in the statistics."""
        return self.name or urlsplit(self.base_url).netloc


def kind_of(host: str, named: str | None = None) -> Kind:
    """Return the facts of the server at a host; those of a compatible server if the host is unknown."""
    if named is None:
        named = next((kind for end, kind in _HOSTS.items() if host == end or host.endswith("." + end)), "compatible")
    return CATALOG[named]


def check(targets: tuple[Target, ...]) -> None:
    """Reject targets with the same name.

    Raises:
        ValueError: two targets have the same name.
    """
    labels = [target.label for target in targets]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"two replicas are named {label!r}; give each a name")
