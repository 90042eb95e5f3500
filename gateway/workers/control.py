"""The supervisor's end of its socket to the top process: messages, and the sockets of new workers.

One message is one packet, so nothing has to be framed. The end of the top process is seen as the end of the socket.
No units.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.workers.messages import ToSupervisor, ToTop

PACKET_BYTES_MAX: Final = 4096
SOCKETS_MAX: Final = 2  # of a worker

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ToSupervisor).decode


class Control:
    """The supervisor's end.

    Args:
        sock: connected to the top process.
        on_message: receives each message, with the sockets that came with it.
        on_end: called when the top process has ended.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[ToSupervisor, list[socket.socket]], object],
        on_end: Callable[[], object],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._on_message = on_message
        self._on_end = on_end
        sock.setblocking(False)

    def start(self) -> None:
        """Receive messages from now on."""
        self._loop.add_reader(self._sock.fileno(), self._read)

    def send(self, message: ToTop) -> None:
        """Send a message; nothing if the top process has ended."""
        try:
            self._sock.send(_encode(message))
        except OSError:
            return

    def close(self) -> None:
        """Receive nothing more."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()

    def _read(self) -> None:
        try:
            content, descriptors, _, _ = socket.recv_fds(self._sock, PACKET_BYTES_MAX, SOCKETS_MAX)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            content, descriptors = b"", []
        if not content:
            self._loop.remove_reader(self._sock.fileno())
            self._on_end()
            return
        self._on_message(_decode(content), [socket.socket(fileno=descriptor) for descriptor in descriptors])
