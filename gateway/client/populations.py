"""Builds the pool of a population: one replica for each target, or several for one address. No I/O."""

from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from gateway.client.asked import Asked
from gateway.client.config import HedgeConfig
from gateway.client.targets import Target, kind_of
from gateway.hedging.parameters import HedgeParameters
from gateway.pool.pool import Pool
from gateway.routing.replicas import Replica
from providers.base import Endpoint
from providers.catalog import Kind

_GAIN_MIN_PROVIDER: Final = 0.25  # minimum saving of a backup, as a multiple of its own TTFT
_GAIN_MIN_ENGINE: Final = 5.0  # more on own engines, where a backup slows others down
_NO_ENDPOINT: Final = cast(Endpoint, None)  # a transport sends, not the replica


class Population(NamedTuple):
    """A pool, and by the names of its replicas the target and its label; None is the request's own address."""

    pool: Pool
    targets: dict[str, tuple[Target | None, str]]


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
        gain_min=_GAIN_MIN_ENGINE if kind.own_engine else _GAIN_MIN_PROVIDER,
        hedgeable=not bills or config.allow_billed_hedges,
        bills_cancelled=bills,
        read_limits=None if kind.limits is None or not is_llm else kind.limits.read,
        counts_max_tokens=kind.counts_max_tokens,
        batches=kind.own_engine,
    )


def _host(origin: str) -> str:
    return origin.partition("://")[2].rpartition(":")[0]
