"""The content of a raced response of aiohttp: the pieces that were read in its race, then its `StreamReader`.

A `StreamReader` takes no piece back, so this object stands for it in `ClientResponse.content`. Other attributes
are the reader's.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from aiohttp import StreamReader
from aiohttp.http_exceptions import LineTooLong

from ttft_gateway.client.racing import Ending
from ttft_gateway.hedging.outcomes import Outcome

_T = TypeVar("_T")
_ALL: Final = -1
_BYTES: Final = itemgetter(0)  # of a held piece


class RacedContent:
    """The content of a winner.

    Args:
        inner: the reader of the response.
        held: pieces that were read, each with True at the end of a chunk of HTTP.
    """

    def __init__(self, inner: StreamReader, held: list[tuple[bytes, bool]], ending: Ending) -> None:
        self._inner = inner
        self._held = deque(held)
        self._ending = ending
        ending.last = held[-1][0] if held else b""
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        inner.on_eof(lambda: ending.report(Outcome.FINISHED))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __del__(self) -> None:
        if not self._ending.is_reported and not self._loop.is_closed():  # dropped; a finalizer may take no lock
            self._loop.call_soon_threadsafe(self._ending.report, Outcome.CLIENT_GONE)

    def set_exception(self, error: BaseException, *cause: BaseException) -> None:
        """Close the content; called by the response when it is closed or released."""
        if not self._ending.is_reported:
            self._ending.report_close()
        self._is_closed = True
        self._inner.set_exception(error, *cause)

    def at_eof(self) -> bool:
        return not self._has_held() and self._inner.at_eof()

    async def read(self, n: int = _ALL) -> bytes:
        if not self._has_held():
            return await self._rest(self._inner.read(n))
        if n == _ALL:
            return self._take() + await self._rest(self._inner.read())
        return self._take(n)

    async def readany(self) -> bytes:
        return self._take() if self._has_held() else await self._rest(self._inner.readany())

    async def readexactly(self, n: int) -> bytes:
        blocks: list[bytes] = []
        while n > 0:
            block = await self.read(n)
            if not block:
                partial = b"".join(blocks)
                raise asyncio.IncompleteReadError(partial, len(partial) + n)
            blocks.append(block)
            n -= len(block)
        return b"".join(blocks)

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        if not self._has_held():
            return await self._rest(self._inner.readline(max_line_length=max_line_length))
        return await self.readuntil(max_size=max_line_length)

    async def readuntil(self, separator: bytes = b"\n", *, max_size: int | None = None) -> bytes:
        if not separator:
            raise ValueError("Separator should be at least one-byte string")
        if not self._has_held():
            return await self._rest(self._inner.readuntil(separator, max_size=max_size))
        limit = max_size or self._inner.get_read_buffer_limits()[1]
        found = b"".join(map(_BYTES, self._held))
        while (place := found.find(separator)) < 0 and not self._inner.at_eof():
            if len(found) > limit:
                raise LineTooLong(found[:100] + b"...", limit)
            piece = await self._rest(self._inner.readchunk())
            self._held.append(piece)
            found += piece[0]
        return self._take(_ALL if place < 0 else place + len(separator))

    async def readchunk(self) -> tuple[bytes, bool]:
        if self._has_held(empty=True):
            return self._held.popleft()
        return await self._rest(self._inner.readchunk())

    def read_nowait(self, n: int = _ALL) -> bytes:
        if not self._has_held():
            return self._inner.read_nowait(n)
        return self._take() + self._inner.read_nowait() if n == _ALL else self._take(n)

    def unread_data(self, data: bytes) -> None:
        self._held.appendleft((data, False))

    def __aiter__(self) -> "_Pieces[bytes]":
        return _Pieces(self.readline, b"")

    def iter_any(self) -> "_Pieces[bytes]":
        return _Pieces(self.readany, b"")

    def iter_chunked(self, n: int) -> "_Pieces[bytes]":
        self._inner.set_read_chunk_size(n)
        return _Pieces(lambda: self.read(n), b"")

    def iter_chunks(self) -> "_Pieces[tuple[bytes, bool]]":
        return _Pieces(self.readchunk, (b"", False))

    # inside

    def _has_held(self, *, empty: bool = False) -> bool:
        """Return True if held pieces are to be read first; after a close, the reader raises its error.

        Args:
            empty: a piece without bytes counts.
        """
        if self._is_closed:
            self._held.clear()
        return bool(self._held) and (empty or any(map(_BYTES, self._held)))

    def _take(self, n: int = _ALL) -> bytes:
        """Return at most n bytes of the held pieces."""
        if n == _ALL:
            whole = b"".join(map(_BYTES, self._held))
            self._held.clear()
            return whole
        taken: list[bytes] = []
        while self._held and n:
            piece, is_end = self._held.popleft()
            if 0 < n < len(piece):
                self._held.appendleft((piece[n:], is_end))
                piece = piece[:n]
            taken.append(piece)
            n -= len(piece)
        return b"".join(taken)

    async def _rest(self, read: Awaitable[_T]) -> _T:
        try:
            data = await read
        except Exception:
            self._ending.report(Outcome.CUT)
            raise
        piece = data[0] if isinstance(data, tuple) else data
        if isinstance(piece, bytes) and piece:
            self._ending.last = piece
            self._ending.pieces += 1
        return data


class _Pieces(Generic[_T]):
    """Iterates over pieces until one means the end."""

    __slots__ = ("_end", "_read")

    def __init__(self, read: Callable[[], Awaitable[_T]], end: _T) -> None:
        self._read = read
        self._end = end

    def __aiter__(self) -> "_Pieces[_T]":
        return self

    async def __anext__(self) -> _T:
        piece = await self._read()
        if piece == self._end:
            raise StopAsyncIteration
        return piece
