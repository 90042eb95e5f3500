"""Builds the client, the endpoint and the headers for a replica of the settings, and keeps a pool's clients connected.

Part of the composition root, used by topology.py and the probe.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from gateway.config import settings as config
from gateway.config.tls import TlsFiles, tls_context
from gateway.version import VERSION
from providers.openai.edits import BodyEdits
from providers.response_stream import Bounds
from providers.transport.http1 import WireClient
from providers.transport.origin import Origin
from providers.upstream import HttpEndpoint
from ttft_gateway.apis.base import Api, Burst, Headers, HttpClient, WireProtocol
from ttft_gateway.apis.catalog import Auth, Kind
from ttft_gateway.apis.clouds import kind_at
from ttft_gateway.apis.tolerant_json import dumps
from ttft_gateway.credentials.sources import CLOUDS, Source, source_at
from ttft_gateway.limits.prices import Prices, TierPrices

_SECRET_CHARS_MIN = 8


class UpstreamClient(HttpClient, Protocol):
    """A client that reuses its connections.

    Attributes:
        sent: number of requests so far.
    """

    sent: int

    def warm(self) -> None:
        """Open a connection if none is idle."""

    def close(self) -> None:
        """Close idle connections."""


class WarmPool:
    """The clients of one pool, kept connected while the pool is in use."""

    def __init__(self, clients: Sequence[UpstreamClient]) -> None:
        self._clients = clients
        self._sent = 0

    def keep_warm(self) -> None:
        """Open missing connections if a request was sent since the last call: a backup may go to any replica."""
        sent = sum(client.sent for client in self._clients)
        if sent != self._sent:
            self._sent = sent
            for client in self._clients:
                client.warm()


def endpoint_at(
    client: HttpClient,
    replica: config.ReplicaSettings,
    supported: dict[Api, WireProtocol],
    model: str,
    event_bytes_max: int,
    burst: Burst | None = None,
) -> HttpEndpoint:
    """Return the endpoint of a replica.

    Args:
        client: client of its origin.
        replica: settings of the replica.
        supported: protocol of each API that the replica supports.
        model: public name of the model.
        event_bytes_max: maximum size of an event in its streams, in bytes.
        burst: marked open while a piece of a body is read; None if not needed.
    """
    query = f"?api-version={replica.api_version}" if replica.api_version is not None else ""
    path, bounds = urlsplit(replica.base_url).path, Bounds(event_bytes_max=event_bytes_max)
    headers = upstream_headers(replica, model)
    return HttpEndpoint(client, supported, path, headers, replica.model or model, bounds, query, burst)


def origin_of(replica: config.ReplicaSettings, connect_s: float, *, spare: bool = False) -> Origin:
    """Return the origin of a replica: address and connection options.

    Raises:
        TlsFault: a certificate file has become unusable since the settings were read.
    """
    url, connection = urlsplit(replica.base_url), replica.connection
    tls = None
    if url.scheme == "https":
        files = TlsFiles(connection.ca_file, connection.cert_file, connection.key_file)
        tls = tls_context(files, http2=connection.http2 or connection.proxy is not None)
    host, socket = url.hostname or "", None
    if url.scheme == "http+unix":
        host, socket = "localhost", unquote(url.netloc)
    port = (None if socket else url.port) or (443 if tls else 80)
    proxy = None if connection.proxy is None else connection.proxy.get_secret_value()
    return Origin(host, port, tls, connect_s, spare=spare, socket=socket, http2=connection.http2, proxy=proxy)


def client_to(origin: Origin, tasks: asyncio.TaskGroup) -> UpstreamClient:
    """Return the client for an origin: `WireClient` where possible."""
    if not needs_httpx(origin):
        return WireClient(origin, tasks)
    from providers.transport.httpx_client import HttpxClient

    return HttpxClient(origin, tasks)


def needs_httpx(origin: Origin) -> bool:
    """Return True for an origin with HTTP/2 or a proxy, which `WireClient` does not support."""
    return origin.http2 or origin.proxy is not None


def facts_of(replica: config.ReplicaSettings, model: str) -> Kind:
    """Return the facts of a replica's kind, as they hold at its address.

    Args:
        replica: settings of the replica.
        model: public name of the model.
    """
    return kind_at(replica.kind, replica.base_url, replica.model or model)


def native_apis(replica: config.ReplicaSettings, model: str) -> frozenset[Api]:
    """Return the APIs that a replica of a model supports without translation."""
    if replica.apis is not None:
        return frozenset(map(Api, replica.apis))
    return facts_of(replica, model).apis


def edits_of(replica: config.ReplicaSettings) -> BodyEdits | None:
    """Return the changes to the bodies sent to a replica, None for none."""
    settings = replica.body
    if not settings.set and not settings.max:
        return None
    return BodyEdits({key: dumps(value) for key, value in settings.set.items()}, settings.max)


def prices_of(settings: config.PriceSettings | None) -> Prices | None:
    """Convert settings of prices."""
    if settings is None:
        return None
    cached = settings.prompt if settings.cached_prompt is None else settings.cached_prompt
    return Prices(settings.prompt, cached, settings.completion)


def tier_prices_of(replica: config.ReplicaSettings, usual: Prices | None) -> TierPrices | None:
    """Return the prices of all tiers of a replica, from its usual ones; None if it is no tier."""
    if replica.tier is None or usual is None:
        return None
    return TierPrices(replica.tier, usual, {tier.name: usual.times(tier.factor) for tier in replica.tiers or ()})


def quota_model(replica: config.ReplicaSettings, model: str) -> str:
    """Return the model by which a quota is known that the replica does not name.

    Each tier has a quota of its own: a cheap one without capacity is no reason to spare the usual one.
    """
    name = replica.model or model
    return name if replica.tier is None else f"{name} {replica.tier}"


def secrets_of(replica: config.ReplicaSettings) -> tuple[str, ...]:
    """Return secrets to remove from texts of a replica; a short value would also match unrelated text."""
    values = [*([] if replica.api_key is None else [replica.api_key]), *replica.headers.values()]
    return tuple(text for value in values if len(text := value.get_secret_value()) >= _SECRET_CHARS_MIN)


def source_of(replica: config.ReplicaSettings) -> Source | None:
    """Return the source of a replica's token; None if it sends a key, or nothing."""
    given = replica.credential
    if given is None:
        return None
    return source_at(
        given.source,
        replica.kind,
        command=given.command or (),
        file=given.file,
        profile=given.profile,
        region=replica.region,
    )


def auth_of(replica: config.ReplicaSettings, model: str) -> Auth:
    """Return the header that carries the key or token of a replica: of a cloud's token always the usual one."""
    if replica.auth is not None:
        return config.AUTHS[replica.auth]
    is_cloud = replica.credential is not None and replica.credential.source in CLOUDS
    return Auth.BEARER if is_cloud else facts_of(replica, model).auth


def with_token(replica: config.ReplicaSettings, model: str, value: str) -> config.ReplicaSettings:
    """Return a replica that sends a token as a key, for requests that end before the token does."""
    auth = next(name for name, auth in config.AUTHS.items() if auth is auth_of(replica, model))
    return replica.model_copy(update={"credential": None, "api_key": SecretStr(value), "auth": auth})


def upstream_headers(replica: config.ReplicaSettings, model: str) -> Headers:
    """Return the headers of every request to a replica of a model."""
    kind, url = facts_of(replica, model), urlsplit(replica.base_url)
    host = "localhost" if url.scheme == "http+unix" else url.netloc
    headers = [(b"host", host.encode()), (b"user-agent", f"ttft-gateway/{VERSION}".encode())]
    if replica.api_key is not None:
        headers.append(auth_of(replica, model).header(replica.api_key.get_secret_value()))
    headers += (header for header in kind.headers if header[0].decode() not in map(str.lower, replica.headers))
    headers += [(name.lower().encode(), value.get_secret_value().encode()) for name, value in replica.headers.items()]
    return headers
