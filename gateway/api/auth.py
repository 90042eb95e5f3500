"""Access to an address: API keys and the models that each may use, and the rules for requests of web pages.

Three rules of browsers meet here. Addresses without a key need the first two; with a key they are not needed, because
the page has no key.

DNS rebinding: a page can let its own name resolve to the gateway's address. The browser then sends the page's requests
to the gateway, as if they were for the page's server, and shows the page the answers. It also sends the page's name as
`Host`, which therefore must be an IP address, `localhost`, or a configured name.

Cross-site request forgery: any page in a browser on the operator's machine can send requests to the gateway. Without
CORS headers the page cannot read the responses, but a request without a preflight would still reach a replica and cost
money. Browsers add `Origin` to each POST of a page (Fetch standard, "HTTP extensions"), and `Sec-Fetch-Site` on
loopback addresses and HTTPS (Fetch Metadata Request Headers, W3C).

Cross-origin resource sharing (Fetch standard, "CORS protocol"): browsers show responses to the pages of listed origins
only. A page sends its key as a header, so requests with the browser's credentials (cookies) are not allowed, and `*`
exposes every response header.

Units: seconds.
"""

import hashlib
import ipaddress
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from gateway.api.request_head import RequestHead
from gateway.errors import Forbidden, GatewayError, ModelNotAllowed, Unauthorized, UnknownHost, UnknownModel
from gateway.listed_keys import ListedKeys
from ttft_gateway.apis.base import Headers

_ACCEPTED_MAX: Final = 1_000  # remembered hosts; each is an address or a configured name with a port
_OWN_SITES: Final = (b"same-origin", b"none")  # `none`: the user's own action, or an extension of the browser
_DECLARED: Final = (b"content-type", b"authorization", b"x-api-key", b"api-key")
_PREFLIGHT_S: Final = 7200  # for which browsers keep the answer of a preflight request; Chromium's maximum
_VARY: Final = (b"vary", b"origin")


class HostCheck:
    """Accepts requests by their `Host`.

    Args:
        names: names of the gateway, without ports.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {name.lower() for name in names}
        self._accepted: set[bytes] = set()

    def check(self, headers: Headers) -> None:
        """Check the host of a request; a request without a host, which no browser sends, is accepted.

        Raises:
            UnknownHost: the host is neither an IP address nor a name of the gateway.
        """
        for name, value in headers:
            if name == b"host":
                self.check_value(value)

    def check_value(self, value: bytes) -> None:
        """Check the value of one header; see `check`."""
        if value in self._accepted:
            return
        host = value.decode("latin-1")
        if not self._is_own(_without_port(host).lower()):
            raise UnknownHost(
                f"host {host[:80]!r} is unknown, and this address has no key; "
                "use an IP address or localhost, or add the name to `hosts` in the configuration"
            )
        if len(self._accepted) < _ACCEPTED_MAX:
            self._accepted.add(value)

    def _is_own(self, host: str) -> bool:
        if host == "localhost" or host.endswith(".localhost") or host.removesuffix(".") in self._names:
            return True
        try:
            ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True


def is_foreign(by_name: Mapping[bytes, bytes], origins: frozenset[bytes] = frozenset()) -> bool:
    """Return True for a request of a page that is neither the address's own nor one of these origins.

    `same-site` is foreign: each port of `localhost` is another page of the same site. If the browser does not send
    `Sec-Fetch-Site`, a page is the address's own if its origin has the name and the port of `Host`.

    Args:
        by_name: the headers of the request; names in lower case.
        origins: origins of pages that may send requests, in lower case.
    """
    origin = by_name.get(b"origin")
    if origin in origins:
        return False
    if b"sec-fetch-site" in by_name:
        return by_name[b"sec-fetch-site"].strip(b" \t") not in _OWN_SITES
    return origin is not None and origin.partition(b"://")[2] != by_name.get(b"host")


class PageCheck:
    """Accepts requests of other programs than foreign web pages.

    Args:
        origins: origins of pages that may send requests.
        is_local: True if only this machine reaches the address. Otherwise browsers do not send `Sec-Fetch-Site`, and a
            request needs a `content-type`, which is checked with the body, or a key: no page can send JSON's or a key
            without a preflight.

    Attributes:
        is_local: the same.
    """

    def __init__(self, origins: Iterable[str] = (), *, is_local: bool = True) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self.is_local = is_local

    def check(self, by_name: Mapping[bytes, bytes]) -> None:
        """Check a request.

        Raises:
            Forbidden: the request is, or may be, one of a foreign page.
        """
        if is_foreign(by_name, self._origins):
            page = by_name.get(b"origin", b"another site").decode("latin-1")
            raise Forbidden(
                f"requests of web pages from {page[:80]!r} are not allowed, because this address has no key; "
                "add the page's origin to `cors_origins` in the configuration, or configure `keys`"
            )
        if not self.is_local and not any(name in by_name for name in _DECLARED):
            raise Forbidden(
                "header `content-type` is missing, and this address has no key; send `content-type: application/json`"
            )


class CrossOrigin:
    """Makes the headers of CORS for responses and for preflight requests.

    Args:
        origins: origins of pages that may read responses, as browsers send them in `Origin`.
    """

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = {origin.encode() for origin in origins}

    def preflight(self, method: str, by_name: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]] | None:
        """Return the headers that answer a preflight request of a listed origin, None for any other request.

        They allow the headers that the request lists: `*` would exclude `authorization`.
        """
        if method != "OPTIONS" or b"access-control-request-method" not in by_name:
            return None
        origin = by_name.get(b"origin")
        if origin is None or origin not in self._origins:
            return None
        headers = [
            _VARY,
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-methods", b"DELETE, GET, POST"),
            (b"access-control-max-age", b"%d" % _PREFLIGHT_S),
        ]
        if b"access-control-request-headers" in by_name:
            headers.append((b"access-control-allow-headers", by_name[b"access-control-request-headers"]))
        return headers

    def added(self, by_name: Mapping[bytes, bytes]) -> Headers:
        """Return the headers of CORS for the response to a request with these headers."""
        origin = by_name.get(b"origin")
        if origin is not None and origin in self._origins:
            return (_VARY, (b"access-control-allow-origin", origin), (b"access-control-expose-headers", b"*"))
        return (_VARY,)


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
        listed: keys from a list, which changes at run time; None without a list.
        same_model: names that lead to the same model, by each name; models without aliases are not in it.
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
        listed: ListedKeys | None = None,
        same_model: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        self._names = _by_digest(keys)
        self._listed = ListedKeys() if listed is None else listed
        self._same_model = same_model
        self._previous = _by_digest(previous or {})
        self._on_previous = on_previous
        self._allowed = allowed
        self._hosts = HostCheck() if hosts is None else hosts
        self._pages = PageCheck() if pages is None else pages
        self.has_keys = bool(keys) or listed is not None
        self.has_rules = bool(allowed) or listed is not None

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
            scheme = by_name.get(b"authorization", b"").partition(b" ")[0].lower()
            found = (
                "the API key is missing" if scheme in (b"", b"bearer") else "the header `Authorization` has no `Bearer`"
            )
            raise Unauthorized(f"{found}; send the header `Authorization: Bearer YOUR_KEY` or `x-api-key: YOUR_KEY`")
        digest = hashlib.sha256(key).digest()
        name = self._names.get(digest)
        if name is None:
            name = self._listed.names.get(digest)
        if name is None:
            name = self._previous.get(digest) or self._listed.previous.get(digest)
            if name is None:
                raise Unauthorized("the API key is unknown; send one of this gateway's keys")
            self._on_previous(name)
        return name

    def may_use(self, key_name: str, model: str) -> bool:
        """Return True if a key may use a configured model."""
        allowed = self._allowed.get(key_name)
        if allowed is not None:
            return model in allowed
        rule = self._listed.rule(key_name)
        if rule is None or rule.models is None or model in rule.models:
            return True
        return any(name in rule.models for name in self._same_model.get(model, ()))

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


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and not port.endswith("]") else host
