"""Runs a call that may hang, such as one of a disk, on a daemon thread of its own. No units."""

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
