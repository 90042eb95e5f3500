"""The replicas of a hedging client: their addresses, keys and model names, and the pools built of them. No I/O.

Facts about providers are the gateway's (`ttft_gateway.apis.catalog`), found by host name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

from ttft_gateway.apis.base import Endpoint
from ttft_gateway.apis.catalog import CATALOG, Kind
from ttft_gateway.client.asked import Asked
from ttft_gateway.client.config import HedgeConfig
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

_HOSTS: Final[Mapping[str, str]] = {
    host: name
    for name, kind in CATALOG.items()
    for host in (*kind.hosts, urlsplit(kind.base_url or "").hostname)
    if host is not None
}
PORTS: Final = {"http": 80, "https": 443}
_NO_ENDPOINT: Final = cast(Endpoint, None)  # a transport sends, not the replica

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
        headers: further headers, sent to this address only; they replace the request's.
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
        if parts.scheme not in PORTS or not parts.hostname:
            raise ValueError(f"base_url is {self.base_url!r}; use an address such as 'https://api.openai.com/v1'")
        if parts.query or parts.fragment or parts.username or parts.password:
            raise ValueError("base_url has a query, fragment or password; remove it")
        if self.kind is not None and self.kind not in CATALOG:
            raise ValueError(f"kind is {self.kind!r}; use one of {', '.join(sorted(CATALOG))}")

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
    def label(self) -> str:
        """Name in the statistics."""
        return self.name or urlsplit(self.base_url).netloc


def kind_of(host: str, named: str | None = None) -> Kind:
    """Return the facts of the server at a host; if the host is unknown, of a compatible server."""
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


class Population(NamedTuple):
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
    is_llm = asked.call is not None
    replicas: list[Replica] = []
    found: dict[str, tuple[Target | None, str]] = {}
    for target in targets:
        kind = kind_of(target.origin[1], target.kind)
        quota = f"{target.origin} {target.api_key} {target.model}"
        replicas.append(_replica(target.label, kind, quota, config, is_llm=is_llm))
        found[target.label] = target, target.label
    if not targets:
        label = origin.partition("://")[2].rstrip(":")
        for number in range(config.max_hedges + 1):
            unique = f"{label} #{number}"
            replicas.append(_replica(unique, kind_of(_host(origin)), origin, config, is_llm=is_llm))
            found[unique] = None, label
    return Population(Pool(name, replicas, parameters), found)


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
        return kind_of(_host(asked.population[0])).stores_responses
    return any(kind_of(each.origin[1], each.kind).stores_responses for each in targets)


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


def _host(origin: str) -> str:
    return origin.partition("://")[2].rpartition(":")[0]
