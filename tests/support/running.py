"""Runs a coroutine as a test, on a fresh loop that must be clean afterwards.

Owns the rule that nothing is left behind: no task still alive, no exception that only the loop saw (a callback of a
transport or a timer that raised, a task nobody awaited). Both would be a mere log line in production.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from gateway.cli.event_loop import new_loop
from streaming_bench.simulation.virtual_loop import VirtualLoop

T = TypeVar("T")


def run_virtual(main: Coroutine[object, object, T]) -> T:
    """Run `main` in virtual time: no sockets, no threads, no waiting."""
    return _run(main, VirtualLoop)


def run_real(main: Coroutine[object, object, T]) -> T:
    """Run `main` in real time with sockets, on the gateway's own loop; for tests/wire and little else."""
    return _run(main, new_loop)


def run_on(new_loop: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[object, object, T]) -> T:
    """Run `main` in real time with sockets, on a loop of any kind."""
    return _run(main, new_loop)


def _run(main: Coroutine[object, object, T], new_loop: Callable[[], asyncio.AbstractEventLoop]) -> T:
    unhandled: list[dict[str, object]] = []
    with asyncio.Runner(loop_factory=new_loop, debug=False) as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        result = runner.run(main)
        left = [str(task) for task in asyncio.all_tasks(loop)]
    if left:
        raise AssertionError("tasks left behind:\n  " + "\n  ".join(left))
    for context in unhandled:
        cause = context.get("exception")
        message = f"raised where only the event loop saw it: {context}"
        raise AssertionError(message) from (cause if isinstance(cause, BaseException) else None)
    return result
