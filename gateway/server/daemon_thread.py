"""Runs a call that may hang, such as one of a disk, on a daemon thread of its own. Units: seconds."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar, cast

_T = TypeVar("_T")


def on_thread(call: Callable[[], _T], name: str) -> "asyncio.Future[_T]":
    """Return the result of a call; one that hangs delays no name look-up and not the end of the process."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_T] = loop.create_future()

    def finish(result: _T | None, error: Exception | None) -> None:
        if answer.done():  # given up
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(cast("_T", result))

    def run() -> None:
        result: _T | None = None
        error: Exception | None = None
        try:
            result = call()
        except Exception as fault:
            error = fault
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer


async def uncancelled(work: "asyncio.Future[_T]") -> _T:
    """Return the result of work that goes on when its caller is cancelled.

    An exception after that is dropped; `asyncio.shield` reports it as an error of the loop, from Python 3.14 on.
    """
    work.add_done_callback(_retrieve)
    await asyncio.wait({work})
    return work.result()


def _retrieve(work: "asyncio.Future[_T]") -> None:
    if not work.cancelled():
        work.exception()


class Hanging(Exception):
    """A call does not return; the text is for a person."""


class SlowCalls:
    """Runs calls on threads, one at a time: while one hangs, no further thread is started.

    Args:
        name: name of the threads.
        s_max: maximum time of a call.
    """

    def __init__(self, name: str, s_max: float) -> None:
        self._name = name
        self._s_max = s_max
        self._is_hanging = False  # True while a call has not returned in time

    async def run(self, call: Callable[[], _T]) -> _T:
        """Run a call.

        Raises:
            Hanging: it, or the last call, does not return.
            Exception: the exception of the call.
        """
        if not self._is_hanging:
            running = on_thread(call, self._name)
            done, _ = await asyncio.wait({running}, timeout=self._s_max)
            if done:
                return running.result()
            self._is_hanging = True
            running.add_done_callback(self._returned)
        raise Hanging(f"the disk does not answer within {self._s_max:g} s")

    def _returned(self, late: "asyncio.Future[_T]") -> None:
        self._is_hanging = False
        _retrieve(late)  # nothing else takes it
