"""The transport for httpx: `httpx.Client(transport=HedgingTransport())`."""

from collections.abc import Iterable

import httpx

from gateway.client.config import HedgeConfig
from gateway.client.first import First
from gateway.client.stats import Stats
from gateway.client.sync_transport import RacedBody, SyncTransport
from gateway.client.targets import Target


class _Body(RacedBody, httpx.SyncByteStream):
    """A response body of httpx."""


class HedgingTransport(SyncTransport, httpx.BaseTransport):
    """Hedges the requests of an `httpx.Client`.

    Args:
        config: settings; None: the defaults.
        replicas: addresses, or targets with keys and model names. Requests below the base URL of one of them go to any
            of them; all others are sent without a race. Empty: a request and its backups go to its own address.
        stats: counts; None: own ones, at `stats`.
        first: event that ends a race.
        transport: transport that sends; None: an `httpx.HTTPTransport`.

    Raises:
        TypeError: the transport that sends is no `httpx.HTTPTransport` with HTTP/1.1.
    """

    def __init__(
        self,
        config: HedgeConfig | None = None,
        *,
        replicas: Iterable[Target | str] = (),
        stats: Stats | None = None,
        first: First = "content",
        transport: httpx.HTTPTransport | None = None,
    ) -> None:
        super().__init__(transport or httpx.HTTPTransport(), "httpcore", _Body, config, replicas, stats, first)
        self.stats = self.hedger.stats
