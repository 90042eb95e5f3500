"""The pools with replicas found at run time, and settings with the replicas that were found. Pure.

`discover` of a model or a fallback is a source. Its replicas are added to the replicas in the file. A model that
has not changed is the same object in new settings, by which a reload recognizes it. No units.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gateway.config.settings import (
    DiscoverSettings,
    FallbackSettings,
    ModelSettings,
    ReplicaOptions,
    Replicas,
    ReplicaSettings,
    Settings,
)

ROWS_MAX = 1000  # replicas of one source


class PoolPlace(NamedTuple):
    """A pool of the settings.

    Attributes:
        model: name of its model.
        number: 0 for the model's own replicas, n for the replicas of its n-th fallback.
    """

    model: str
    number: int


def sources(settings: Settings) -> dict[PoolPlace, DiscoverSettings]:
    """Return the sources of replicas by pool."""
    return {
        PoolPlace(model.name, number): pool.discover
        for model in settings.models
        for number, pool in enumerate(pools(model))
        if pool.discover is not None
    }


def pools(model: ModelSettings) -> Iterator[ModelSettings | FallbackSettings]:
    """Yield the settings that list replicas: the model itself, then its fallbacks."""
    yield model
    yield from model.fallbacks


def pool_name(model: str, number: int) -> str:
    """Return the name of a pool for display."""
    return f"{model}/fallback-{number}" if number else model


def identity_of(source: DiscoverSettings) -> tuple[str | int | None, ...]:
    """Return what a source is, without the settings of its replicas."""
    return source.dns, source.endpointslices, source.pods, source.port, source.file


def name_of(source: DiscoverSettings) -> str:
    """Return a source's name for messages."""
    if source.dns is not None:
        return f"dns {source.dns}:{source.port}"
    return f"file {source.file}" if source.endpointslices is None else f"endpointslices {source.endpointslices}"


def address_rows(source: DiscoverSettings, addresses: Iterable[str], old: Replicas) -> Replicas:
    """Return a replica for each address of a name, named after it: its IPv4 addresses if it has any, else IPv6.

    A pod with addresses of both kinds is one replica. Unchanged replicas of `old` stay the same objects.
    """
    found = {ipaddress.ip_address(address) for address in addresses}
    version = min((address.version for address in found), default=4)
    known = {row.name: row for row in old}
    hosts = sorted(address for address in found if address.version == version)
    names = (f"[{host}]:{source.port}" if version == 6 else f"{host}:{source.port}" for host in hosts)
    return tuple(
        known.get(name)
        or completed(ReplicaSettings(name=name, kind=source.kind or "", base_url=f"http://{name}/v1"), source)
        for name in names
    )


def completed(row: ReplicaSettings, source: DiscoverSettings) -> ReplicaSettings:
    """Return a replica with its source's settings where it has none of its own."""
    shared = (ReplicaOptions.model_fields.keys() & source.model_fields_set) - row.model_fields_set
    return row.model_copy(update={name: getattr(source, name) for name in shared})


def expected(settings: Settings, listed: Mapping[PoolPlace, Replicas]) -> Settings:
    """Return settings for a description: two stand-ins for the replicas of each source, unless they are `listed`."""
    stand_ins = {place: (_stand_in(each),) * 2 for place, each in sources(settings).items() if each.kind is not None}
    models = tuple(_with_rows(model, {**stand_ins, **listed}, unique=False) for model in settings.models)
    return settings.model_copy(update={"models": models})


def _stand_in(source: DiscoverSettings) -> ReplicaSettings:
    named = ReplicaSettings.model_construct(name=name_of(source).partition(" ")[2], kind=source.kind or "", base_url="")
    return completed(named, source)


def with_rows(settings: Settings, found: Mapping[PoolPlace, Replicas]) -> Settings:
    """Return settings with these replicas added to the pools; a replica with a name that is taken is omitted."""
    changed = {place.model for place, rows in found.items() if rows}
    models = tuple(_with_rows(model, found) if model.name in changed else model for model in settings.models)
    return settings.model_copy(update={"models": models})


def with_model(settings: Settings, base: Settings, name: str, found: Mapping[PoolPlace, Replicas]) -> Settings:
    """Return settings in which only one model has other replicas; `base` has no replicas found at run time."""
    bare = next(model for model in base.models if model.name == name)
    models = tuple(_with_rows(bare, found) if model.name == name else model for model in settings.models)
    return settings.model_copy(update={"models": models})


def found_rows(base: Settings, settings: Settings, place: PoolPlace) -> Replicas:
    """Return the replicas of a pool in `settings` that `base` does not have: found at run time."""
    pool, bare = (_pool_at(each, place) for each in (settings, base))
    if pool is None or bare is None:
        return ()
    return pool.replicas[len(bare.replicas) :]  # `with_rows` appends them


def _pool_at(settings: Settings, place: PoolPlace) -> ModelSettings | FallbackSettings | None:
    found = next((list(pools(model)) for model in settings.models if model.name == place.model), [])
    return found[place.number] if place.number < len(found) else None


def _with_rows(model: ModelSettings, found: Mapping[PoolPlace, Replicas], *, unique: bool = True) -> ModelSettings:
    taken = {row.name for pool in pools(model) for row in pool.replicas}
    groups = []
    for number, pool in enumerate(pools(model)):
        rows = [row for row in found.get(PoolPlace(model.name, number), ()) if row.name not in taken or not unique]
        taken.update(row.name for row in rows)
        groups.append((*pool.replicas, *rows))
    fallbacks = tuple(
        fallback.model_copy(update={"replicas": rows})
        for fallback, rows in zip(model.fallbacks, groups[1:], strict=True)
    )
    return model.model_copy(update={"replicas": groups[0], "fallbacks": fallbacks})
