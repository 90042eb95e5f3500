"""Hedging for a client of httpx or httpx2 that exists already: `hedged(openai.DefaultAioHttpClient())`.

The client keeps its timeouts, proxies and connection limits; its transports send the attempts. Both libraries keep a
client's transports in two private attributes; where these are missing, an error is raised.
"""

import importlib
import sys
from typing import Any, TypeVar

from ttft_gateway.client.budget import Budget
from ttft_gateway.client.config import HedgeConfig
from ttft_gateway.client.hedger import check_arguments
from ttft_gateway.client.stats import Stats

_C = TypeVar("_C")


def hedged(
    client: _C,
    config: HedgeConfig | None = None,
    *,
    stats: Stats | None = None,
    budget: Budget | None = None,
    **options: Any,
) -> _C:
    """Make a client hedge its requests.

    Args:
        client: a `Client` or `AsyncClient` of httpx or httpx2, or of a class below, as SDKs have them.
        config: settings; None: the defaults.
        stats: counts; None: own ones.
        budget: limit on backups, shared with other clients; None: its own, of the settings.
        options: further arguments of the transport.

    Returns:
        The same client.

    Raises:
        TypeError: the object is no such client, or hedges already.
    """
    name, library = _kind(client)
    transports = importlib.import_module(f"ttft_gateway.client.httpx_{'async' if name.startswith('Async') else 'sync'}")
    made: type[Any] = getattr(transports, name)
    given: Any = client
    try:
        main, mounts = given._transport, given._mounts
    except AttributeError as error:
        raise TypeError(f"this version of {library} has no replaceable transports; use {name}") from error
    config, stats = config or HedgeConfig(), stats or Stats()
    check_arguments(config, stats, budget)
    budget = budget or Budget(config.budget_percent)

    def wrapped(inner: object) -> object:
        return None if inner is None else made(config, stats=stats, budget=budget, transport=inner, **options)

    mounts = {pattern: wrapped(each) for pattern, each in mounts.items()}
    given._transport, given._mounts = wrapped(main), mounts
    return client


def _kind(client: object) -> tuple[str, str]:
    """Return the names of a client's transport and library."""
    for library, end in (("httpx", ""), ("httpx2", "2")):
        module = sys.modules.get(library)
        if module is not None and isinstance(client, module.Client):
            return f"HedgingTransport{end}", library
        if module is not None and isinstance(client, module.AsyncClient):
            return f"AsyncHedgingTransport{end}", library
    given = type(client).__name__
    raise TypeError(
        f"client is {given}; use a Client or AsyncClient of httpx or httpx2, which an SDK takes as http_client"
    )
