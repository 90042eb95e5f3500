"""The replicas of a hedging client: their addresses, keys and model names, and the pools built of them. No I/O.

Facts about providers are the gateway's (`ttft_gateway.apis.catalog`), found by host name.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from urllib.parse import urlsplit

import msgspec

from ttft_gateway.apis.base import Endpoint
from ttft_gateway.apis.catalog import CATALOG, Kind
from ttft_gateway.client.asked import Asked
from ttft_gateway.client.config import HedgeConfig
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

if TYPE_CHECKING:
    from ttft_gateway.client.tokens import TargetToken

_VISIBLE: Final = r"[!-~]+"
_KINDS_MAX: Final = 256  # URLs that are remembered
PORTS: Final = {"http": 80, "https": 443}
_NO_ENDPOINT: Final = cast(Endpoint, None)  # a transport sends, not the replica

Origin = tuple[str, str, int]
"""Scheme, host and port."""


class Credential(msgspec.Struct, frozen=True):
    """A source of tokens that end, which are fetched off the loop and renewed before their end.

    Attributes:
        source: "aws", "google" or "azure", the login of this process there; "command", a program that prints an
            ExecCredential of Kubernetes; "file", a file with a token or an ExecCredential, which is read every 5 s.
        command: program and arguments, of "command".
        file: path, of "file".
        profile: profile of the AWS configuration, of "aws"; None: the default one.
        region: region of Bedrock, of "aws"; None: the region in the base URL.
    """

    source: Literal["aws", "google", "azure", "command", "file"]
    command: Sequence[str] = ()
    file: str | None = None
    profile: str | None = None
    region: str | None = None

    def __repr__(self) -> str:
        """Return its fields without the command, which may have a secret."""
        given = {name: getattr(self, name) for name in ("source", "file", "profile", "region")}
        return f"Credential({', '.join(f'{name}={value!r}' for name, value in given.items())})"


class Target(msgspec.Struct, frozen=True, eq=False):
    """One replica.

    Attributes:
        base_url: address as an SDK is given it, such as "https://api.openai.com/v1".
        api_key: key, sent to this address only; None: no key is sent, except the request's own to its own host.
        model: name of the model there; None: the request's.
        name: name in the statistics; empty: the host.
        headers: further headers, sent to this address only; they replace the request's.
        kind: kind of the server (docs/providers.md); None: found by the host, else a compatible server.
        credential: source of tokens that are sent instead of a key; "aws", "google" and "azure" need no other options.
        token: the token of the credential, which sets it; None if there is no credential.

    Raises:
        ValueError: an argument has no meaning, or contradicts another one.
        TypeError: an argument has the wrong type, or the token is set without a credential.
        ModuleNotFoundError: the package of the credential is not installed.
    """

    base_url: str
    api_key: str | None = None
    model: str | None = None
    name: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    kind: str | None = None
    credential: Credential | Literal["aws", "google", "azure"] | None = None
    token: "TargetToken | None" = None

    def __post_init__(self) -> None:
        self._check_values()
        parts = urlsplit(self.base_url)
        if parts.scheme not in PORTS or not parts.hostname:
            raise ValueError(f"base_url is {self.base_url!r}; use an address such as 'https://api.openai.com/v1'")
        if parts.query or parts.fragment or parts.username or parts.password:
            raise ValueError("base_url has a query, fragment or password; remove it")
        if self.kind is not None and self.kind not in CATALOG:
            raise ValueError(f"kind is {self.kind!r}; use one of {', '.join(sorted(CATALOG))}")
        if self.credential is not None:
            self._use(Credential(self.credential) if isinstance(self.credential, str) else self.credential)
        elif self.token is not None:
            raise TypeError("token is set without a credential; use api_key, or credential for tokens that end")

    def _check_values(self) -> None:
        """Reject values that no request can be made of: each backup there would fail."""
        for name in ("base_url", "api_key", "model", "name"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name in ("base_url", "name")):
                raise TypeError(f"{name} is {type(value).__name__}; use a string")
        if self.api_key is not None and not re.fullmatch(_VISIBLE, self.api_key):
            raise ValueError("api_key is empty or has a space or line break; remove it, or use None for no key")
        headers: Any = self.headers
        given = chain(*headers.items()) if isinstance(headers, Mapping) else (None,)
        if not all(isinstance(each, str) for each in given):
            raise TypeError("headers is no mapping of strings; use {'name': 'value'}")

    def _use(self, credential: Credential) -> None:
        """Check a credential and set its token, with modules that a client with keys does not load."""
        from ttft_gateway.client.tokens import token_of

        if self.api_key is not None:
            raise ValueError("api_key and credential are set; remove one of the two")
        msgspec.structs.force_setattr(self, "credential", credential)
        msgspec.structs.force_setattr(
            self, "token", token_of(credential, self.base_url, self.kind or kind_name(self.base_url))
        )

    def __repr__(self) -> str:
        """Return its fields without secrets."""
        given = {name: getattr(self, name) for name in ("base_url", "model", "name", "kind", "credential")}
        return f"Target({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def __reduce__(self) -> Any:
        """Pickle the arguments: a token stays in its process."""
        given = (self.base_url, self.api_key, self.model, self.name, self.headers, self.kind, self.credential)
        return type(self), given

    @property
    def origin(self) -> Origin:
        """Scheme, host and port."""
        parts = urlsplit(self.base_url)
        return parts.scheme, parts.hostname or "", parts.port or PORTS[parts.scheme]

    @property
    def path(self) -> str:
        """Path of the base URL, without a slash at its end."""
        return urlsplit(self.base_url).path.rstrip("/")

    @property
    def facts(self) -> Kind:
        """Facts of the server."""
        return kind_of(self.base_url, self.kind, self.model)

    @property
    def label(self) -> str:
        """Name in the statistics."""
        return self.name or urlsplit(self.base_url).netloc


@cache
def _hosts() -> Mapping[str, str]:
    """Return the kinds of servers by the ends of their hosts' names."""
    return {
        host: name
        for name, kind in CATALOG.items()
        for host in (*kind.hosts, urlsplit(kind.base_url or "").hostname)
        if host is not None
    }


def kind_name(url: str) -> str:
    """Return the name of the kind of the server at a URL; if its host is unknown, of a compatible server."""
    host = urlsplit(url).hostname or ""
    found = (kind for end, kind in _hosts().items() if fnmatchcase(host, end) or fnmatchcase(host, f"*.{end}"))
    return next(found, "compatible")


@lru_cache(_KINDS_MAX)
def kind_of(url: str, named: str | None = None, model: str | None = None) -> Kind:
    """Return the facts of the server at a URL, as they hold for its route.

    Args:
        named: name of its kind; None: found by the host.
        model: name of the model there; None: unknown.
    """
    named = named or kind_name(url)
    if not CATALOG[named].place:
        return CATALOG[named]
    from ttft_gateway.apis.clouds import kind_at

    return kind_at(named, url, model or "")


def targets_of(replicas: Iterable[Target | str]) -> list[Target]:
    """Return the targets of an argument.

    Raises:
        TypeError: it is no list of addresses and targets.
    """
    if isinstance(replicas, str | Target | Mapping) or not isinstance(replicas, Iterable):
        raise TypeError(
            f"replicas is {type(replicas).__name__}; use a list, such as [Target('https://api.openai.com/v1')]"
        )
    targets = [Target(each) if isinstance(each, str) else each for each in replicas]
    for each in targets:
        if not isinstance(each, Target):
            raise TypeError(f"a replica is {type(each).__name__}; use an address or a Target")
    return targets


def check(targets: tuple[Target, ...]) -> None:
    """Reject targets with the same name.

    Raises:
        ValueError: two targets have the same name.
    """
    labels = [target.label for target in targets]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"two replicas are named {label!r}; give each a name")


class YoungEndpoint:
    """The times of an endpoint that has too few of them for a population of its own.

    Attributes:
        asked: its first request.
        times: name of the replica, time to the first event, and the moment of the event.
    """

    __slots__ = ("asked", "times")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.times: list[tuple[str, float, float]] = []


class Population(msgspec.Struct, frozen=True):
    """A set of requests with comparable times.

    Attributes:
        pool: its pool.
        targets: by the names of the pool's replicas, the target and its label; None is the request's own address.
        young: times of its own, of an endpoint that uses the pool of its parent; None: the pool is its own.
    """

    pool: Pool
    targets: dict[str, tuple[Target | None, str]]
    young: YoungEndpoint | None = None


def populate(asked: Asked, config: HedgeConfig, parameters: HedgeParameters, targets: Sequence[Target]) -> Population:
    """Build the pool of a request's population.

    Args:
        targets: none: the request's own address is each of its replicas.
    """
    origin, name = asked.population
    is_llm = asked.api is not None
    replicas: list[Replica] = []
    found: dict[str, tuple[Target | None, str]] = {}
    for target in targets:
        quota = f"{target.origin} {target.api_key or id(target.token)} {target.model}"
        replicas.append(_replica(target.label, target.facts, quota, config, is_llm=is_llm))
        found[target.label] = target, target.label
    if not targets:
        label = origin.partition("://")[2].rstrip(":")
        for number in range(config.max_hedges + 1):
            unique = f"{label} #{number}"
            replicas.append(_replica(unique, kind_of(origin), origin, config, is_llm=is_llm))
            found[unique] = None, label
    pool = Pool(name, replicas, parameters)
    pool.sees_crowds = len(targets) > 1  # one address has one load
    for load in pool.loads.of.values():  # a first answer waits for a connection, and for code that runs first
        load.cold_until_s = math.inf
    return Population(pool, found)


def teach(pool: Pool, times: Sequence[tuple[str, float, float]]) -> None:
    """Teach a new pool times that were measured before; see `YoungEndpoint.times`."""
    learning = pool.learning
    for name, first_s, now_s in times:
        predicted_s = learning.predictor.predict(name, 0.0, 0.0, now_s)
        learning.predictor.add(name, first_s, 0.0, 0.0, now_s)
        learning.add_content(name, first_s, predicted_s, now_s)


def stores_answers(asked: Asked, targets: Sequence[Target]) -> bool:
    """Return True if a server that may get the request stores answers by default."""
    if not targets:
        return kind_of(asked.population[0]).stores_responses
    return any(target.facts.stores_responses for target in targets)


def _replica(name: str, kind: Kind, quota: str, config: HedgeConfig, *, is_llm: bool) -> Replica:
    bills = kind.cancel_stops_billing is False and is_llm
    return Replica(
        name,
        _NO_ENDPOINT,
        quota,
        hedgeable=not bills or config.allow_billed_hedges,
        bills_cancelled=bills,
        read_limits=None if kind.limits is None or not is_llm else kind.limits.read,
        counts_max_tokens=kind.counts_max_tokens,
        batches=kind.own_engine,
    )
