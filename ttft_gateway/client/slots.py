"""Frees the slots of a connection pool of httpcore that a cancelled attempt would take for ever.

httpcore 1.0.9 and httpcore2 2.16.2 keep a connection that no request uses if a task is cancelled between the choice of
its connection and its first byte, or while it closes a response. A race cancels the task of a loser, and its caller may
cancel it, too. A pool that has lost all its slots fails every request with `PoolTimeout`.
"""

import asyncio
import contextlib
from typing import Any


class _Requests(list[Any]):
    """The requests of a pool; those that are removed twice are no error.

    A request may be left because its closing was cancelled, or because another task is still closing it, such as the
    one of the event loop for a generator that a program has dropped. The two look the same, and httpcore then removes
    the request itself.
    """

    def remove(self, request: Any) -> None:
        with contextlib.suppress(ValueError):
            super().remove(request)


async def free(pool: Any, ended: object = None) -> None:
    """Close the connections of a pool that no request uses and that are not idle, and reuse their slots.

    Args:
        pool: pool of httpcore or httpcore2; any other object is left alone.
        ended: request of the pool with a closed response; None: the request has no response.
    """
    try:
        connections, requests, assign = pool._connections, pool._requests, pool._assign_requests_to_connections
    except AttributeError:
        return
    is_left = ended in requests
    if is_left:
        pool._requests = requests = _Requests(requests)
        requests.remove(ended)
    used = {id(each.connection) for each in requests}
    lost = [each for each in connections if id(each) not in used and not (each.is_idle() or each.is_closed())]
    if not lost and not is_left:
        return
    for each in lost:
        connections.remove(each)
    cancelled: asyncio.CancelledError | None = None
    for each in (*lost, *assign()):
        try:
            with contextlib.suppress(Exception):  # of a broken connection
                await each.aclose()  # which closes its socket before it waits
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def free_after(body: Any) -> None:
    """Free the slot of a response of httpx or httpx2 with a closed body."""
    stream = getattr(body, "_httpcore_stream", None)
    await free(getattr(stream, "_pool", None), getattr(stream, "_pool_request", None))
