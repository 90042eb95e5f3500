"""Errors of connecting that this machine causes: it is out of files, ports, memory or buffers. Pure.

They differ from failures of the upstream, because a healthy upstream must not be taken out for them.
"""

import errno
import re
import socket
from collections.abc import Iterator
from typing import Final

_RESOURCES: Final = {
    errno.EMFILE: "open files",
    errno.ENFILE: "open files",  # of the whole system
    errno.EADDRNOTAVAIL: "local ports",  # to this address
    errno.ENOMEM: "memory",
    errno.ENOBUFS: "network buffers",
}
_NO_NETWORK: Final = frozenset({errno.ENETUNREACH, errno.EAFNOSUPPORT})  # IPv6 addresses of a name, without IPv6 here
_NUMBER: Final = re.compile(r"\[Errno (\d+)\]")


def shortage(error: BaseException) -> str | None:
    """Return the client's message for an error that a shortage of this machine caused; None for any other error.

    If the addresses of a name fail in different ways, asyncio and uvloop raise one error without a number: it is a
    shortage if no address got as far as the upstream.
    """
    if not isinstance(error, OSError):
        return None
    if isinstance(error, socket.gaierror):
        is_short = error.errno == socket.EAI_MEMORY
        return f"the gateway cannot look names up: {error.strerror}" if is_short else None
    numbers = [error.errno] if error.errno is not None else [int(number) for number in _NUMBER.findall(str(error))]
    short = [_RESOURCES[number] for number in numbers if number in _RESOURCES]
    if not short or any(number not in _RESOURCES and number not in _NO_NETWORK for number in numbers):
        return None
    return f"the gateway is out of {short[0]}; retry later"


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those below it, the system's own one last; of a group, the last one."""
    below: BaseException | None = error
    while below is not None:
        yield below
        group = below.exceptions if isinstance(below, BaseExceptionGroup) else ()
        below = group[-1] if group else below.__cause__ or below.__context__
