"""Who calls: API keys, and the models that each may use.

No units.
"""

import hashlib
from collections.abc import Collection, Mapping

from gateway.errors import GatewayError, ModelNotAllowed, Unauthorized, UnknownModel
from providers.base import Headers


class Keyring:
    """The callers' keys, kept only as SHA-256 digests, so that looking one up takes the same time for any guess.

    Args:
        keys: key -> name. Empty: everybody is "anonymous".
        allowed: key's name -> the models it may use, where it may not use all.
    """

    def __init__(self, keys: Mapping[str, str], allowed: Mapping[str, Collection[str]]) -> None:
        self._names = {hashlib.sha256(key.encode()).digest(): name for key, name in keys.items()}
        self._allowed = allowed

    def name(self, headers: Headers) -> str:
        """Name of the caller's key.

        Raises:
            Unauthorized: no key, or one that is not known.
        """
        if not self._names:
            return "anonymous"
        key = _key(headers)
        if not key:
            raise Unauthorized(
                "no API key was given; send it as the header `Authorization: Bearer YOUR_KEY` or `x-api-key: YOUR_KEY`"
            )
        name = self._names.get(hashlib.sha256(key).digest())
        if name is None:
            raise Unauthorized("the API key is not one of this gateway's keys")
        return name

    def may_use(self, key_name: str, model: str) -> bool:
        """Whether a key may use a model that there is."""
        allowed = self._allowed.get(key_name)
        return allowed is None or model in allowed

    def refusal(self, key_name: str, model: str, models: Collection[str]) -> GatewayError:
        """The error for a model that there is not, or that a key may not use; names those it may.

        As OpenAI does: 404 for what is not there, 403 for what is there for others.
        """
        usable = ", ".join(sorted(name for name in models if self.may_use(key_name, name))[:20])
        if model in models:
            message = f"the key {key_name!r} may not use the model {model!r}; it may use: {usable}"
            return ModelNotAllowed(message, param="model")
        return UnknownModel(f"there is no model {model[:80]!r} here; there are: {usable}", param="model")


def _key(headers: Headers) -> bytes:
    """The key a caller sent, in OpenAI's header or, without that, in Anthropic's; empty when there is none."""
    given = dict(headers)
    scheme, _, key = given.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else given.get(b"x-api-key", b"").strip()
