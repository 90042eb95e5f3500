"""The listening sockets of a process: those that it inherits, or new ones.

A service manager passes sockets as sd_listen_fds(3) describes (socket activation). A process that is replaced passes
its sockets to the next one (hot_restart.py). An inherited socket is used for the address that it has.

Every process with a socket of a service manager sees the owner of the socket, fcntl(2) F_SETOWN: the gateway that was
ready last. Processes that have lost their main process accept until there is another owner. No units.
"""

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final

from gateway.config.values import Address
from gateway.server.http_server import listening, name_of, set_options

_FIRST_DESCRIPTOR: Final = 3  # SD_LISTEN_FDS_START


class InheritError(Exception):
    """An inherited socket cannot be used; the message contains the action."""


class Inherited:
    """The listening sockets that a process inherits.

    Args:
        sockets: the sockets; those that are not used are closed.
        is_strict: True if a socket that no address uses is an error: its connections would wait for ever.
        are_held: True if a service manager holds the sockets, too.

    Attributes:
        are_held: as above.
    """

    def __init__(
        self, sockets: Sequence[socket.socket] = (), *, is_strict: bool = False, are_held: bool = False
    ) -> None:
        self._sockets = list(sockets)
        self._used: list[socket.socket] = []
        self._is_strict = is_strict
        self.are_held = are_held

    def bound(self, address: Address, found: Sequence[Any]) -> socket.socket:
        """Return the inherited socket of an address, or a new one.

        Args:
            found: the results of `getaddrinfo` for the address.

        Raises:
            ListenError: the address is in use or not local.
        """
        host, port = found[0][4][:2]
        for sock in self._sockets:
            own = sock.getsockname()
            if own[0] == host and port in (0, own[1]):
                self._sockets.remove(sock)
                self._used.append(sock)
                set_options(sock)
                return sock
        return listening(address, found)

    def own(self) -> None:
        """Become the owner of the sockets in use; this process is ready."""
        for sock in self._used:
            if sock.fileno() >= 0:  # else the process has begun to stop
                with contextlib.suppress(OSError):  # a sandbox may forbid it: the old processes then wait for longer
                    fcntl.fcntl(sock, fcntl.F_SETOWN, os.getpid())

    def close_rest(self) -> None:
        """Close the sockets that no address uses.

        Raises:
            InheritError: there is one, and it came from a service manager.
        """
        rest, self._sockets = self._sockets, []
        names = [_shown(sock) for sock in rest]
        for sock in rest:
            sock.close()
        if names and self._is_strict:
            text = f"the service manager passes a socket at {names[0]}, which is neither `listen` nor `admin_listen`"
            raise InheritError(f"{text}; write the same address in both")


def next_owner(sock: socket.socket) -> Callable[[], bool]:
    """Return a function that returns True once a socket has another owner than this process."""
    own = os.getpid()
    return lambda: fcntl.fcntl(sock, fcntl.F_GETOWN) not in (0, own)  # 0: the owner has ended, or there was none


def from_manager(environ: MutableMapping[str, str]) -> Inherited:
    """Return the sockets of a service manager, and remove their variables from the environment.

    Raises:
        InheritError: the variables are invalid.
    """
    process, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if process != str(os.getpid()):  # meant for a parent
        return Inherited()
    if not count.isdecimal():
        raise InheritError(f"LISTEN_FDS is {count!r}; set it to the number of sockets, or remove it")
    sockets = opened(range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count)))
    return Inherited(sockets, is_strict=True, are_held=bool(sockets))


def opened(descriptors: Sequence[int]) -> list[socket.socket]:
    """Return sockets for inherited descriptors, which programs started from here do not inherit.

    Raises:
        InheritError: a descriptor is no listening TCP socket.
    """
    sockets = []
    for descriptor in descriptors:
        try:
            sock = socket.socket(fileno=descriptor)
            is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            text = f"the inherited descriptor {descriptor} is no socket ({error.strerror}); pass listening sockets only"
            raise InheritError(text) from error
        if not is_listening or sock.family not in (socket.AF_INET, socket.AF_INET6):
            text = f"the inherited socket {descriptor} ({_shown(sock)}) does not listen on a TCP address"
            sock.close()
            raise InheritError(f"{text}; set ListenStream= to an address with a port")
        os.set_inheritable(descriptor, False)
        sockets.append(sock)
    return sockets


def _shown(sock: socket.socket) -> str:
    return str(name_of(sock)) if sock.family in (socket.AF_INET, socket.AF_INET6) else str(sock.getsockname())
