"""Finds out if a transport or session has a connection for a backup, from its connection pools. No I/O.

A backup that waited for a connection would delay other requests, and if its primary failed, each would wait for the
other. The pools of httpcore and of aiohttp are found, also inside of transports that retry, cache, trace or translate.
"""

from typing import Any, Final

_DEPTH_MAX: Final = 4  # transports inside of each other
_SENDING: Final = ("handle_request", "handle_async_request", "connector")  # of transports, and of sessions of aiohttp


def has_room(sender: Any, depth: int = _DEPTH_MAX) -> bool:
    """Return True if each pool of a transport or session has a connection for one more request; no pool: True.

    Args:
        sender: a transport of httpx or httpx2, or a session of aiohttp.
        depth: transports inside of each other that are looked into.
    """
    for name, pool_has_room in (("_pool", _httpcore_has_room), ("connector", _aiohttp_has_room)):
        pool = getattr(sender, name, None)
        if pool is not None:
            try:
                return pool_has_room(pool)
            except (AttributeError, TypeError):
                return True
    inside = list(getattr(sender, "__dict__", {}).values()) if depth else ()
    return all(has_room(each, depth - 1) for each in inside if any(hasattr(each, name) for name in _SENDING))


def _httpcore_has_room(pool: Any) -> bool:
    if len(pool._connections) < pool._max_connections:
        return True
    return not any(each.is_queued() for each in list(pool._requests)) and any(
        each.is_available() or each.is_idle() or each.is_closed() for each in list(pool._connections)
    )


def _aiohttp_has_room(connector: Any) -> bool:
    """Return True if a connector has a connection for one more request to any host."""
    acquired, hosts = getattr(connector, "_acquired", ()), getattr(connector, "_acquired_per_host", {})
    if connector.limit and len(acquired) >= connector.limit:
        return False
    return not connector.limit_per_host or all(len(each) < connector.limit_per_host for each in hosts.values())
