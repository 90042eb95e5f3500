"""Gives each free connection of a pool of httpcore to one request.

httpcore 1.0.9, below httpx, gives one free connection to all requests that ask for one before the first of them sends.
The others ask again, four times a request with 20 at a time, and each time the sockets of all free connections are
polled. And once more than `max_keepalive_connections` are open, it closes each after its response. The late answers are
then the client's: with 20 requests at a time to a server that takes 5 ms, the 99th percentile was 400 ms. httpcore2,
below httpx2, has neither fault.

The pool stays httpcore's, and its order, too: requests by their arrival, connections by their age.
"""

import functools
import sys
import time
from collections.abc import Hashable
from typing import Any, Final, cast

_SWEEP_S: Final = 1.0  # time between two looks for free connections that the server has closed
_VERSION: Final = "1.0."  # of httpcore, with the attributes that `_assign` reads


def reuse(pool: Any) -> None:
    """Give each free connection of a pool to one request from now on.

    Args:
        pool: pool of httpcore 1 for HTTP/1.1; any other object is left alone.
    """
    core: Any = sys.modules.get("httpcore")
    if core is None or not isinstance(pool, core.AsyncConnectionPool | core.ConnectionPool):
        return
    if core.__version__.startswith(_VERSION) and not pool._http2:
        pool.__class__ = _reusing(cast(Hashable, type(pool)))


@functools.cache
def _reusing(pool: Hashable) -> Any:
    """Return a class of pools that differs from another one in the choice of connections."""
    base: Any = pool
    members = {"_assign_requests_to_connections": _assign, "_swept_s": 0.0, "__module__": base.__module__}
    return base if hasattr(base, "_swept_s") else type(base.__name__, (base,), members)


def _assign(pool: Any) -> list[Any]:
    """Give connections to the requests that wait for one, and return those to close.

    A connection is taken from its choice on, when it still looks idle, until the response is closed. A free one that is
    not idle was lost by a cancelled request. The sockets of free ones are looked at when they are chosen, because only
    then must they be alive, and all once in `_SWEEP_S`, or in the time for which they are kept if that is shorter.
    """
    connections, taken, waiting = pool._connections, set(), []
    for request in pool._requests:
        if request.connection is None:
            waiting.append(request)
        else:
            taken.add(request.connection)
    gone: list[Any] = []
    idle: list[Any] = []
    closing: list[Any] = []
    for each in connections:
        if each not in taken:
            (gone if each.is_closed() else idle if each.is_idle() else closing).append(each)
    for request in waiting:
        origin = request.request.url.origin
        found = _alive(idle, origin, closing)
        if found is None:
            if len(connections) - len(gone) - len(closing) >= pool._max_connections:
                if not idle:
                    break
                closing.append(idle.pop(0))
            found = pool.create_connection(origin)
            connections.append(found)
        request.assign_to_connection(found)
    now_s = time.monotonic()
    if now_s - pool._swept_s > (_SWEEP_S if pool._keepalive_expiry is None else min(_SWEEP_S, pool._keepalive_expiry)):
        pool._swept_s = now_s
        expired = {each for each in idle if each.has_expired()}
        closing += expired
        idle = [each for each in idle if each not in expired]
    closing += idle[: max(0, len(idle) - pool._max_keepalive_connections)]
    if gone or closing:
        ended = {*gone, *closing}
        connections[:] = [each for each in connections if each not in ended]
    return closing


def _alive(idle: list[Any], origin: object, closing: list[Any]) -> Any:
    """Take the first connection to an origin that the server has not closed from the idle ones; None: there is none."""
    for connection in list(idle):
        if connection.can_handle_request(origin):
            idle.remove(connection)
            if not connection.has_expired():
                return connection
            closing.append(connection)
    return None
