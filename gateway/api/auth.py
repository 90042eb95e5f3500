"""Authentication: API keys, and the models that each key may use. No units."""

import hashlib
from collections.abc import Callable, Collection, Mapping

from gateway.api.request_head import RequestHead
from gateway.api.web_pages import HostCheck, PageCheck
from gateway.errors import GatewayError, ModelNotAllowed, Unauthorized, UnknownModel
from ttft_gateway.apis.base import Headers


def _ignore(_name: str) -> None:
    pass


class Keyring:
    """The callers' keys, stored only as SHA-256 digests, so that a lookup takes the same time for any guess.

    Args:
        keys: names by key; if empty, every caller is "anonymous".
        allowed: usable models by key name; a key that is not in it may use all models.
        hosts: checks the hosts of callers without a key.
        pages: checks for web pages among callers without a key.
        previous: names by replaced key that is still valid.
        on_previous: called with the name for each use of such a key.

    Attributes:
        has_keys: True if callers need a key.
        has_rules: True if a key may not use all models.
    """

    def __init__(
        self,
        keys: Mapping[str, str],
        allowed: Mapping[str, Collection[str]],
        hosts: HostCheck | None = None,
        previous: Mapping[str, str] | None = None,
        on_previous: Callable[[str], object] = _ignore,
        pages: PageCheck | None = None,
    ) -> None:
        self._names = _by_digest(keys)
        self._previous = _by_digest(previous or {})
        self._on_previous = on_previous
        self._allowed = allowed
        self._hosts = HostCheck() if hosts is None else hosts
        self._pages = PageCheck() if pages is None else pages
        self.has_keys = bool(keys)
        self.has_rules = bool(allowed)

    def name(self, headers: Headers) -> str:
        """Return the name of the caller's key.

        Raises:
            Unauthorized: the request has no key or an unknown one.
            UnknownHost: no keys are configured, and the host is unknown.
        """
        if not self.has_keys:
            self._hosts.check(headers)
            return "anonymous"
        return self._name(dict(headers))

    def name_of(self, head: RequestHead) -> str:
        """Return the name of the caller's key for a request for a replica, on a connection that rejects a second host.

        Raises:
            Unauthorized: the request has no key or an unknown one.
            UnknownHost: no keys are configured, and the host is unknown.
            Forbidden: no keys are configured, and the request is from a foreign web page.
        """
        by_name = head.by_name
        if self.has_keys:
            return self._name(by_name)
        if b"host" in by_name:
            self._hosts.check_value(by_name[b"host"])
        if b"origin" in by_name or b"sec-fetch-site" in by_name or not self._pages.is_local:
            self._pages.check(by_name)
        return "anonymous"

    def _name(self, by_name: Mapping[bytes, bytes]) -> str:
        key = _key(by_name)
        if not key:
            raise Unauthorized(
                "the API key is missing; send the header `Authorization: Bearer YOUR_KEY` or `x-api-key: YOUR_KEY`"
            )
        digest = hashlib.sha256(key).digest()
        name = self._names.get(digest)
        if name is None:
            name = self._previous.get(digest)
            if name is None:
                raise Unauthorized("the API key is unknown; send one of this gateway's keys")
            self._on_previous(name)
        return name

    def may_use(self, key_name: str, model: str) -> bool:
        """Return True if a key may use a configured model."""
        allowed = self._allowed.get(key_name)
        return allowed is None or model in allowed

    def model_error(self, key_name: str, model: str, models: Collection[str]) -> GatewayError:
        """Build the error for a model that does not exist or that the key may not use; it lists the usable models.

        As OpenAI does: 404 for a model that does not exist, 403 for one that the key may not use.
        """
        usable = ", ".join(sorted(name for name in models if self.may_use(key_name, name))[:20])
        if model in models:
            message = f"key {key_name!r} is not allowed to use model {model!r}; use one of: {usable}"
            return ModelNotAllowed(message, param="model")
        return UnknownModel(f"model {model[:80]!r} does not exist; use one of: {usable}", param="model")


def _by_digest(keys: Mapping[str, str]) -> dict[bytes, str]:
    return {hashlib.sha256(key.encode()).digest(): name for key, name in keys.items()}


def _key(by_name: Mapping[bytes, bytes]) -> bytes:
    """Return the key from OpenAI's header or, without a bearer token, from Anthropic's or Azure's; empty for none."""
    scheme, _, key = by_name.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return (by_name.get(b"x-api-key") or by_name.get(b"api-key", b"")).strip()
