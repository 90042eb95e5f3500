"""Where an upstream is and how to get there, and what it means when there is no way; shared by the HTTP clients.

Units: seconds.
"""

import os
import ssl
from dataclasses import dataclass, field
from typing import Final

from providers.errors import ConnectError

STALE_S: Final = 2.0
"""A kept-alive connection that ends so soon after a request was written had been closed before: some round trips."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where to connect.

    Attributes:
        host: name or address literal, without brackets; of a unix socket, what TLS and `host` headers would say.
        port: TCP port.
        tls: context for TLS, None for plain text.
        connect_s: bound on DNS, TCP and TLS together.
        idle_s: a kept-alive connection unused for longer is closed; below the 75 s of nginx and of most load balancers.
        idle_max: idle connections kept; more are closed.
        age_s: a connection is used again for about so long; so are the addresses that DNS gave.
        spare: keep a connection ready beyond those in use.
        connections_max: open connections; a request beyond fails with ConnectError.
        socket: path of a unix socket to connect to instead of host and port.
        http2: speak HTTP/2: where TLS agrees to it, and always without TLS.
        proxy: URL of an HTTP proxy; it may hold a password.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    connect_s: float = 3.0
    idle_s: float = 60.0
    idle_max: int = 1024
    age_s: float = 300.0
    spare: bool = False
    connections_max: int = 16384
    socket: str | None = None
    http2: bool = False
    proxy: str | None = field(default=None, repr=False)


def too_many(count: int) -> ConnectError:
    """Another connection would be over the bound."""
    return ConnectError(f"{count} connections to this upstream are open already")


def too_slow(connect_s: float) -> ConnectError:
    """There was no connection in time."""
    return ConnectError(f"no connection to the upstream within {connect_s:g} s")


def unreachable(error: OSError) -> ConnectError:
    """There is no connection, for a reason that the system or TLS gives; without the address that asyncio tells."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectError(f"TLS with the upstream failed: {error.reason or 'certificate'} ({error.verify_message})")
    if isinstance(error, ssl.SSLError):
        return ConnectError(f"TLS with the upstream failed: {error.reason or type(error).__name__}")
    known = error.errno and error.errno > 0
    said = os.strerror(error.errno or 0) if known else error.strerror or type(error).__name__
    return ConnectError(f"cannot connect to the upstream: {said}")
