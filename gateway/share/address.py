"""Reads the URL of a Redis or Valkey server. Pure."""

import re
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
_SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
_HOST = re.compile(r"(?:\[(?P<ip6>[0-9a-fA-F:.]+)\]|(?P<host>[^\[\]:/?#@,\s]+))(?::(?P<port>\d{1,5}))?")


class EngineAddress(NamedTuple):
    """Place of a server.

    Attributes:
        hosts: host and port of the server, of each Sentinel, or of some nodes of a Redis Cluster; empty with a path.
        path: path of a unix socket; "" with hosts.
        database: number of the database.
        service: name under which the Sentinels know the server; "" without Sentinels.
        is_tls: True if connections use TLS.
    """

    hosts: tuple[tuple[str, int], ...]
    path: str = ""
    database: int = 0
    service: str = ""
    is_tls: bool = False

    def __str__(self) -> str:
        """Return the place for logs."""
        return self.path or ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts
        )


class AddressFault(ValueError):
    """A URL is unusable; the text is the reason, without the URL."""


def read_address(url: str) -> EngineAddress:
    """Return the place that a URL names.

    Raises:
        AddressFault: the URL is unusable.
    """
    scheme, found, rest = url.partition("://")
    if not found or scheme not in _SCHEMES:
        raise AddressFault(
            "it is not the URL of a Redis or Valkey server; write redis://HOST:6379, rediss://HOST:6379 (TLS), "
            "unix:///PATH or redis+sentinel://HOST:26379,HOST:26379/SERVICE"
        )
    if "@" in rest:
        raise AddressFault("a URL must not contain a user or a password; write them in `user` and `password`")
    if "?" in rest or "#" in rest:
        raise AddressFault("the URL has parameters; remove them")
    if scheme == "unix":
        if not rest.startswith("/"):
            raise AddressFault("the path of a unix socket is absolute; write unix:///PATH")
        return EngineAddress((), unquote(urlsplit(url).path))
    is_sentinel = scheme.endswith("+sentinel")
    places, _, path = rest.partition("/")
    service, database = path.rstrip("/"), ""
    if is_sentinel:
        service, _, database = service.partition("/")
        if not service:
            raise AddressFault("the name of the service is missing; write redis+sentinel://HOST:26379/SERVICE")
    else:
        service, database = "", service
    if not re.fullmatch(r"\d{0,4}", database):
        raise AddressFault("the database is not a number; write redis://HOST:6379/0")
    hosts = tuple(_host(each, SENTINEL_PORT if is_sentinel else PORT) for each in places.split(","))
    if len(hosts) > 1 and int(database or 0) and not is_sentinel:
        raise AddressFault("the URL has several nodes, and a Redis Cluster has database 0 only; remove the database")
    return EngineAddress(hosts, "", int(database or 0), unquote(service), scheme.startswith("rediss"))


def _host(text: str, port: int) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    if match is None or not 0 < int(match["port"] or port) < 65536:
        raise AddressFault("the host or port is invalid; write redis://HOST:6379")
    return match["ip6"] or match["host"], int(match["port"] or port)
