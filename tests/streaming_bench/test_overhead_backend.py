"""The back end of the cost bench."""

import asyncio

from running import run_virtual
from streaming_bench.research.overhead.backend import TokenPacer, _Connection

_REQUEST = b'POST / HTTP/1.1\r\ncontent-length: 18\r\n\r\n{"max_tokens": 20}'


class _Transport(asyncio.Transport):
    """Fails at the second write, as a socket that its peer has reset."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def write(self, _data: bytes | bytearray | memoryview) -> None:
        self.writes += 1

    def is_closing(self) -> bool:
        return self.writes > 1


def test_nothing_is_written_after_the_peer_has_gone() -> None:
    """An answer ends with the write that fails: asyncio warns of every later one, on the bench's output."""

    async def scenario() -> int:
        connection, transport = _Connection(TokenPacer()), _Transport()
        connection.connection_made(transport)
        connection.data_received(_REQUEST)
        return transport.writes

    assert run_virtual(scenario()) == 2
