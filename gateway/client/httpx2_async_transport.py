"""The asynchronous transport for httpx2: `httpx2.AsyncClient(transport=AsyncHedgingTransport2())`."""

from collections.abc import Iterable

import httpx2

from gateway.client.async_transport import AsyncRacedBody, AsyncTransport
from gateway.client.config import HedgeConfig
from gateway.client.first import First
from gateway.client.stats import Stats
from gateway.client.targets import Target


class _AsyncBody(AsyncRacedBody, httpx2.AsyncByteStream):
    """A response body of httpx2."""


class AsyncHedgingTransport2(AsyncTransport, httpx2.AsyncBaseTransport):
    """Hedges the requests of an `httpx2.AsyncClient`.

    Args:
        config: settings; None: the defaults.
        replicas: addresses, or targets with keys and model names. Requests below the base URL of one of them go to any
            of them; all others are sent without a race. Empty: a request and its backups go to its own address.
        stats: counts; None: own ones, at `stats`.
        first: event that ends a race.
        transport: transport that sends; None: an `httpx2.AsyncHTTPTransport`.
    """

    def __init__(
        self,
        config: HedgeConfig | None = None,
        *,
        replicas: Iterable[Target | str] = (),
        stats: Stats | None = None,
        first: First = "content",
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(transport or httpx2.AsyncHTTPTransport(), _AsyncBody, config, replicas, stats, first)
        self.stats = self.hedger.stats
