"""The address of an upstream, the settings of connections to it, and the errors of connecting; for all HTTP clients.

Units: seconds.
"""

import os
import ssl
from dataclasses import dataclass, field
from typing import Final

from ttft_gateway.apis.base import CONNECT_S
from ttft_gateway.apis.errors import ConnectError, OutOfResources
from ttft_gateway.apis.shortages import shortage

STALE_S: Final = 0.5
"""A kept-alive connection that ends within this time after a request was written, a few round trips, was already closed
by the server when the request was sent; a later end is a failure, because the server may have begun to compute."""

SWEEP_S: Final = 5.0
"""Interval of the check for idle connections that are too old."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The address of an upstream and the settings of connections to it.

    Attributes:
        host: name or address literal, without brackets; for a unix socket, the name for TLS and the `host` header.
        port: TCP port.
        tls: context for TLS, None for plain text.
        connect_s: bound on DNS, TCP and TLS together.
        idle_s: idle time after which a kept-alive connection is closed; below the 75 s of nginx and of most load
            balancers.
        idle_max: maximum of idle connections; further ones are closed.
        age_s: approximate age up to which a connection, and so the address from DNS, is used again.
        spare: open one connection more than are in use.
        connections_max: maximum of open connections; a request that needs another one fails with OutOfResources.
        socket: path of a unix socket to connect to instead of host and port.
        http2: use HTTP/2: negotiated with TLS, and always without TLS.
        proxy: URL of an HTTP proxy; it may hold a password.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    connect_s: float = CONNECT_S
    idle_s: float = 60.0
    idle_max: int = 1024
    age_s: float = 300.0
    spare: bool = False
    connections_max: int = 16384
    socket: str | None = None
    http2: bool = False
    proxy: str | None = field(default=None, repr=False)


def too_many(count: int) -> OutOfResources:
    """Make the error for a connection over the bound."""
    return OutOfResources(f"the gateway has {count} open connections to one upstream, the maximum; retry later")


def too_slow(connect_s: float) -> ConnectError:
    """Make the error for a connection that was not established in time."""
    return ConnectError(f"connecting to the upstream timed out after {connect_s:g} s")


def unreachable(error: OSError) -> ConnectError:
    """Make the error for a failure of the system or TLS, without the address that asyncio puts into its message."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectError(f"TLS with the upstream failed: {error.reason or 'certificate'} ({error.verify_message})")
    if isinstance(error, ssl.SSLError):
        return ConnectError(f"TLS with the upstream failed: {error.reason or type(error).__name__}")
    short = shortage(error)
    if short is not None:
        return OutOfResources(short)
    known = error.errno and error.errno > 0
    reason = os.strerror(error.errno or 0) if known else error.strerror or type(error).__name__
    return ConnectError(f"cannot connect to the upstream: {reason}")
