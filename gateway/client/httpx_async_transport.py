"""The asynchronous transport for httpx: `httpx.AsyncClient(transport=AsyncHedgingTransport())`."""

from collections.abc import Iterable

import httpx

from gateway.client.async_transport import AsyncRacedBody, AsyncTransport
from gateway.client.config import HedgeConfig
from gateway.client.first import First
from gateway.client.stats import Stats
from gateway.client.targets import Target


class _AsyncBody(AsyncRacedBody, httpx.AsyncByteStream):
    """A response body of httpx."""


class AsyncHedgingTransport(AsyncTransport, httpx.AsyncBaseTransport):
    """Hedges the requests of an `httpx.AsyncClient`.

    Args:
        config: settings; None: the defaults.
        replicas: addresses, or targets with keys and model names. Requests below the base URL of one of them go to any
            of them; all others are sent without a race. Empty: a request and its backups go to its own address.
        stats: counts; None: own ones, at `stats`.
        first: event that ends a race.
        transport: transport that sends; None: an `httpx.AsyncHTTPTransport`.
    """

    def __init__(
        self,
        config: HedgeConfig | None = None,
        *,
        replicas: Iterable[Target | str] = (),
        stats: Stats | None = None,
        first: First = "content",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(transport or httpx.AsyncHTTPTransport(), _AsyncBody, config, replicas, stats, first)
        self.stats = self.hedger.stats
