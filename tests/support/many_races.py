"""Sends many requests at the same time, from tasks or from threads, and counts how they end."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable

AT_ONCE = 16


async def in_tasks(
    one: Callable[[float], Awaitable[str]], races: int, rand: random.Random, errors: tuple[type[Exception], ...]
) -> "Counter[str]":
    """Send requests in tasks; a third is cancelled at a random time.

    Args:
        one: sends one and returns its outcome; it closes a third of them in the middle, those with a draw below 0.33.
        errors: exceptions of a client library, which count under their names.
    """
    counts: Counter[str] = Counter()
    left = iter(range(races))
    caught: tuple[type[Exception], ...] = (*errors, TimeoutError)

    async def work() -> None:
        for _ in left:
            draw = rand.random()
            try:
                async with asyncio.timeout(None if draw < 0.66 else 0.04 * rand.random()):
                    outcome = await one(draw)
            except caught as error:
                outcome = type(error).__name__
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            counts[outcome] += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(work())
    return counts


def in_threads(
    one: Callable[[float], str], races: int, rand: random.Random, errors: tuple[type[Exception], ...]
) -> "Counter[str]":
    """Send requests in threads.

    Args:
        one: sends one and returns its outcome; it gives up a third and closes another third in the middle, by its draw.
        errors: exceptions of a client library, which count under their names.
    """
    counts: Counter[str] = Counter()
    left = iter(range(races))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if next(left, None) is None:
                    return
                draw = rand.random()
            try:
                outcome = one(draw)
            except errors as error:
                outcome = type(error).__name__
            with lock:
                counts[outcome] += 1

    threads = [threading.Thread(target=work) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts
