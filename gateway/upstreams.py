"""A replica of the settings as the address, the path and the headers of its requests.

Part of the composition root: site.py and the probe ask it. Opens nothing.
"""

import asyncio
from urllib.parse import unquote, urlsplit

from gateway.config import settings as config
from gateway.config.tls import TlsFiles, tls_context
from gateway.version import gateway_version
from providers.base import Api, Burst, Headers, HttpClient, WireProtocol
from providers.catalog import CATALOG, Auth
from providers.transport.http1 import WireClient
from providers.transport.httpx_client import HttpxClient
from providers.transport.origin import Origin
from providers.upstream import Bounds, HttpEndpoint

_VERSION = gateway_version()  # reads a file, so not on the loop
_SECRET_CHARS_MIN = 8

UpstreamClient = WireClient | HttpxClient


def endpoint_at(
    client: HttpClient,
    row: config.ReplicaSettings,
    able: dict[Api, WireProtocol],
    model: str,
    event_bytes_max: int,
    burst: Burst | None = None,
) -> HttpEndpoint:
    """A replica as something that can be asked.

    Args:
        client: to its origin.
        row: what the settings say of it.
        able: in which APIs it can be asked.
        model: its public name.
        event_bytes_max: of its streams.
        burst: open while it is read.
    """
    query = f"?api-version={row.api_version}" if row.api_version is not None else ""
    path, bounds = urlsplit(row.base_url).path, Bounds(event_bytes_max=event_bytes_max)
    return HttpEndpoint(client, able, path, upstream_headers(row), row.model or model, bounds, query, burst)


def origin_of(row: config.ReplicaSettings, connect_s: float, *, spare: bool = False) -> Origin:
    """Where a replica is, and how to get there.

    Raises:
        TlsFault: a file cannot be used any more that could be when the settings were read.
    """
    url, way = urlsplit(row.base_url), row.connection
    tls = None
    if url.scheme == "https":
        tls = tls_context(TlsFiles(way.ca_file, way.cert_file, way.key_file), http2=way.http2 or way.proxy is not None)
    host, socket = url.hostname or "", None
    if url.scheme == "http+unix":
        host, socket = "localhost", unquote(url.netloc)
    port = (None if socket else url.port) or (443 if tls else 80)
    proxy = None if way.proxy is None else way.proxy.get_secret_value()
    return Origin(host, port, tls, connect_s, spare=spare, socket=socket, http2=way.http2, proxy=proxy)


def client_to(origin: Origin, tasks: asyncio.TaskGroup) -> UpstreamClient:
    """The client for an origin: the wire client wherever it will do."""
    return HttpxClient(origin, tasks) if needs_httpx(origin) else WireClient(origin, tasks)


def needs_httpx(origin: Origin) -> bool:
    """The wire client knows neither HTTP/2 nor proxies."""
    return origin.http2 or origin.proxy is not None


def native_apis(row: config.ReplicaSettings) -> frozenset[Api]:
    """What a replica speaks itself."""
    if row.apis is not None:
        return frozenset(map(Api, row.apis))
    apis = CATALOG[row.kind].apis
    # Azure serves the Responses API below /openai/v1 only.
    return apis - {Api.RESPONSES} if row.kind == "azure" and "/deployments/" in row.base_url else apis


def secrets_of(row: config.ReplicaSettings) -> tuple[str, ...]:
    """What a replica must not quote; a short value would be found in words that have nothing to do with it."""
    values = [*([] if row.api_key is None else [row.api_key]), *row.headers.values()]
    return tuple(text for value in values if len(text := value.get_secret_value()) >= _SECRET_CHARS_MIN)


def upstream_headers(row: config.ReplicaSettings) -> Headers:
    """What every request to a replica carries."""
    kind, url = CATALOG[row.kind], urlsplit(row.base_url)
    host = "localhost" if url.scheme == "http+unix" else url.netloc
    headers = [(b"host", host.encode()), (b"user-agent", f"ttft-gateway/{_VERSION}".encode())]
    if row.api_key is not None:
        key = row.api_key.get_secret_value().encode()
        auth = kind.auth if row.auth is None else config.AUTHS[row.auth]
        headers.append((auth.value.encode(), b"Bearer " + key if auth is Auth.BEARER else key))
    headers += (header for header in kind.headers if header[0].decode() not in map(str.lower, row.headers))
    headers += [(name.lower().encode(), value.get_secret_value().encode()) for name, value in row.headers.items()]
    return headers
