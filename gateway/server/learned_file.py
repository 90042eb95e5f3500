"""Keeps the learned state in a file over restarts: read once at the start, written every 30 s and at the end.

The file is replaced atomically, by a daemon thread, so that neither a slow nor a hanging disk delays a request or the
end of the process. No fault of the file fails a request: it costs one line of the log, and a cold start. A file that
the gateway has not written itself is never overwritten. The document belongs to ttft_gateway/pool/learned.py.

Several processes may name the same file: the last to write wins, and no reader sees a part.

Units: seconds, bytes.
"""

import asyncio
import contextlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from gateway.events import Event
from gateway.observe.process import ProcessValue
from gateway.process_events import LearnedFileFailed, LearnedRestored
from gateway.server.daemon_thread import on_thread, uncancelled
from gateway.server.learned_state import LearnedState, Restored
from ttft_gateway.pool.learned import FORMAT, VERSION, Drop, Learned, decoded, encoded

_SAVE_EVERY_S: Final = 30.0  # what a kill loses; a file of 5 models with 3 replicas has about 30 kB
_WRITE_S_MAX: Final = 10.0
_LAST_WRITE_S_MAX: Final = 1.0  # a hanging disk must not delay the end of the process
_READ_S_MAX: Final = 3.0  # nor its start
_FILE_BYTES_MAX: Final = 32_000_000
_AHEAD_S_MAX: Final = 3600.0  # of a file's time before the clock, which may have been corrected
_BEGINNING: Final = f'{{"format":"{FORMAT}"'.encode()


class _Header(msgspec.Struct):
    version: int


class LearnedFile:
    """The file of one gateway.

    Args:
        file: path; None to keep nothing.
        state: the state to keep.
        emit: receives events.
        drop: receives the name of each damaged part of the file, and the reason.
    """

    def __init__(self, file: str | None, state: LearnedState, emit: Callable[[Event], object], drop: Drop) -> None:
        self._file = None if file is None else Path(file)
        self._state = state
        self._emit = emit
        self._drop = drop
        self._loop = asyncio.get_running_loop()
        self._writing: asyncio.Future[None] | None = None  # a write that may still be under way
        self._saved_s: float | None = None
        self._fault: str | None = None
        self._is_closed = False
        self._is_failing = False

    def describe(self) -> dict[str, object] | None:
        """Return the state of the file for the admin address; None if nothing is kept."""
        if self._file is None:
            return None
        age_s = None if self._saved_s is None else round(self._loop.time() - self._saved_s, 3)
        return {"file": str(self._file), "saved_age_s": age_s, "fault": self._fault}

    def values(self) -> Iterator[ProcessValue]:
        """Return the values for a scrape; none if nothing is kept."""
        return iter(()) if self._file is None else file_values(self._fault)

    async def restore(self) -> None:
        """Give the pools the state of the file, once, before the first request."""
        if self._file is None:
            return
        file, damages = self._file, list[tuple[str, str]]()
        reading = on_thread(lambda: _read(file, lambda *damage: damages.append(damage)), "read learned state")
        try:
            learned = await asyncio.wait_for(reading, _READ_S_MAX)
            for damage in damages:
                self._drop(*damage)
            if learned is not None:
                self._restore(learned, _wall_s() - learned.saved_s)
        except _Foreign as error:
            self._is_closed = True
            self._failed(str(error))
        except _Unusable as error:
            self._failed(f"{error}; the gateway starts without it")
        except OSError as error:  # also a timeout
            self._is_closed = True
            self._failed(f"the file cannot be read: {_reason(error)}; the gateway starts without it, and keeps nothing")
        except Exception:  # a bug must not stop the gateway
            logging.getLogger(__name__).exception("the learned state could not be restored")

    def stop(self) -> None:
        """Write the file no more: another process does."""
        self._is_closed = True

    async def keep(self) -> None:
        """Write the file every 30 s."""
        if self._file is None:
            return
        while True:
            await asyncio.sleep(_SAVE_EVERY_S)
            await self.save(_WRITE_S_MAX)

    async def save(self, timeout_s: float = _LAST_WRITE_S_MAX) -> None:
        """Write the file now; raises nothing."""
        if self._file is None or self._is_closed:
            return
        try:
            models = await self._state.collect()
            if any(model.pools for model in models.values()):  # else there may be an earlier state, which is better
                async with asyncio.timeout(timeout_s):
                    await self._write(self._file, Learned(FORMAT, VERSION, _wall_s(), models))
        except Exception as error:
            if not isinstance(error, OSError):  # a bug must not stop the gateway
                logging.getLogger(__name__).exception("the learned state could not be written")
                self._is_closed = True
                return
            if not self._is_failing:
                self._is_failing = True
                reason = _reason(error)
                self._failed(f"the file cannot be written: {reason}; give it a writable folder with room for it")
        else:
            self._saved_s, self._fault, self._is_failing = self._loop.time(), None, False

    async def _write(self, file: Path, learned: Learned) -> None:
        """Write on a thread, after the end of the previous write."""
        if self._writing is not None:
            await asyncio.wait({self._writing})
        self._writing = on_thread(lambda: _replace(file, encoded(learned)), "write learned state")
        await uncancelled(self._writing)

    def _restore(self, learned: Learned, elapsed_s: float) -> None:
        """Begin with a state.

        Raises:
            _Unusable: the time of the state is in the future.
        """
        if elapsed_s < -_AHEAD_S_MAX:
            raise _Unusable("the time in the file is in the future")
        elapsed_s = max(0.0, elapsed_s)
        restored = self._state.restore(learned.models, elapsed_s)
        if restored is not None:
            self.report(restored, elapsed_s)

    def report(self, restored: Restored, elapsed_s: float) -> None:
        """Report the pools that have begun with the state of the file."""
        self._emit(
            LearnedRestored(self._loop.time(), str(self._file), round(elapsed_s, 3), restored.pools, restored.cold)
        )

    def _failed(self, error: str) -> None:
        self._fault = error
        self._emit(LearnedFileFailed(self._loop.time(), str(self._file), error))


class _Unusable(Exception):
    """The file has no usable state; the text is the reason."""


class _Foreign(Exception):
    """The file is not one of learned state; the text is the reason and the action."""


def file_values(fault: str | None) -> Iterator[ProcessValue]:
    """Yield the values for a scrape."""
    text = "1 if the file of learned state can be used"
    yield ProcessValue("ttft_gateway_learned_file_up", text, "gauge", float(fault is None))


def _read(file: Path, drop: Drop) -> Learned | None:
    """Return the content of the file without its damaged parts, None if there is none.

    Raises:
        OSError: it cannot be read.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would block
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _Foreign("the path is not a regular file; name another file in `learned_file`")
    with os.fdopen(descriptor, "rb") as stream:
        content = stream.read(_FILE_BYTES_MAX + 1)
    if not content:  # created by hand, or by a file system that lost its content
        return None
    if not content.startswith(_BEGINNING):
        raise _Foreign("the file has other content and is not overwritten; name another file in `learned_file`")
    if len(content) > _FILE_BYTES_MAX:
        raise _Unusable(f"the file is larger than {_FILE_BYTES_MAX} bytes")
    try:
        version = msgspec.json.decode(content, type=_Header).version
        if version != VERSION:
            raise _Unusable(f"the file has version {version} instead of {VERSION}")
        return decoded(content, drop)
    except (ValueError, RecursionError) as error:
        raise _Unusable(f"the file is damaged ({error})") from None


def _replace(file: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    if len(content) > _FILE_BYTES_MAX:
        raise OSError(f"{len(content)} bytes are more than {_FILE_BYTES_MAX}")
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        Path(name).replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _wall_s() -> float:
    return datetime.now(UTC).timestamp()


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "the disk does not answer in time"
    return error.strerror or str(error)
