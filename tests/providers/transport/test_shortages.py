"""Errors of the system: errors of this machine, and errors of the upstream."""

import errno
import os
import socket

import pytest

from providers.transport.origin import unreachable
from ttft_gateway.apis.errors import ConnectError, OutOfResources
from ttft_gateway.apis.shortages import causes

V6_DOWN = "Multiple exceptions: [Errno 101] Network is unreachable, "


def of(number: int) -> OSError:
    """Make an error of the system."""
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (of(errno.EMFILE), "the gateway is out of open files; retry later"),
        (of(errno.ENFILE), "the gateway is out of open files; retry later"),
        (of(errno.EADDRNOTAVAIL), "the gateway is out of local ports; retry later"),
        (of(errno.ENOMEM), "the gateway is out of memory; retry later"),
        (of(errno.ENOBUFS), "the gateway is out of network buffers; retry later"),
        (
            OSError(V6_DOWN + "[Errno 99] Cannot assign requested address"),
            "the gateway is out of local ports; retry later",
        ),
        (
            socket.gaierror(socket.EAI_MEMORY, "3 name lookups are in progress, the maximum; check DNS"),
            "the gateway cannot look names up: 3 name lookups are in progress, the maximum; check DNS",
        ),
    ],
)
def test_shortages_of_this_machine(error: OSError, message: str) -> None:
    """What this machine is out of is named, and the upstream is not."""
    found = unreachable(error)
    assert isinstance(found, OutOfResources)
    assert found.message == message


@pytest.mark.parametrize(
    "error",
    [
        of(errno.ECONNREFUSED),
        of(errno.EHOSTUNREACH),
        of(errno.ENETUNREACH),
        of(errno.ECONNRESET),
        of(errno.ETIMEDOUT),
        of(errno.EACCES),
        OSError("no number"),
        OSError(V6_DOWN + "[Errno 111] Connect call failed ('127.0.0.1', 9)"),
        # `localhost` on a machine without IPv6: the other address was refused by the upstream
        OSError("Multiple exceptions: [Errno 99] Cannot assign requested address, [Errno 111] Connection refused"),
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    ],
    ids=str,
)
def test_failures_of_the_upstream(error: OSError) -> None:
    """Everything else counts against the replica as before."""
    assert type(unreachable(error)) is ConnectError


def test_the_causes_of_an_error() -> None:
    """Causes, contexts and the last error of a group are found, the system's own one last."""
    inner = of(errno.EMFILE)
    middle = ExceptionGroup("all addresses", [of(errno.ENETUNREACH), inner])
    middle.__context__ = ValueError("not the cause")
    outer = RuntimeError("no connection")
    outer.__cause__ = middle
    assert list(causes(outer)) == [outer, middle, inner]
