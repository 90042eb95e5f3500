"""The data of a configuration file before it is validated: its models and replicas with their paths. Pure."""

from gateway.config.document import Loc

Finding = tuple[Loc, str]
"""Path and message of a problem."""

RawMapping = dict[str, object]
"""A mapping of the file, not validated."""


def entries(parent: RawMapping, loc: Loc, key: str) -> list[tuple[Loc, RawMapping]]:
    """Return the mappings in the list `parent[key]`, each with its path."""
    items = parent.get(key)
    found = enumerate(items) if isinstance(items, list) else ()
    return [((*loc, key, index), item) for index, item in found if isinstance(item, dict)]


def replicas(model: RawMapping, loc: Loc) -> list[tuple[Loc, RawMapping]]:
    """Return every replica of a model with its path, those of its fallbacks last."""
    return [replica for pool_loc, pool in pools(model, loc) for replica in entries(pool, pool_loc, "replicas")]


def pools(model: RawMapping, loc: Loc) -> list[tuple[Loc, RawMapping]]:
    """Return every list of replicas of a model with its path: the model itself, then its fallbacks."""
    return [(loc, model), *entries(model, loc, "fallbacks")]


def templates(model: RawMapping, loc: Loc) -> list[tuple[Loc, RawMapping]]:
    """Return the settings of every source of a model's replicas with their path."""
    found = (((*pool_loc, "discover"), pool.get("discover")) for pool_loc, pool in pools(model, loc))
    return [(at, source) for at, source in found if isinstance(source, dict)]


def path(loc: Loc) -> str:
    """Format a path as `models[0].replicas[1].base_url`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")
