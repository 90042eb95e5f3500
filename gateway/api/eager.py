"""Wraps a coroutine that has been run up to its first suspension, so that its remainder can be awaited.

Most such coroutines never suspend, so that stepping them by hand saves a task. No units.
"""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class Begun(Generic[_T]):
    """A suspended coroutine; await it for the rest.

    Args:
        coroutine: the coroutine, stepped once.
        waiting_for: the object that this step yielded.
    """

    __slots__ = ("_coroutine", "_waiting_for")

    def __init__(self, coroutine: Coroutine[Any, Any, _T], waiting_for: object) -> None:
        self._coroutine = coroutine
        self._waiting_for = waiting_for

    def __await__(self) -> Generator[Any, Any, _T]:
        waiting_for = self._waiting_for
        while True:
            step: Callable[[Any], object] = self._coroutine.send
            try:
                value = yield waiting_for
            except BaseException as error:  # the coroutine gets a cancellation, too
                step, value = self._coroutine.throw, error
            try:
                waiting_for = step(value)
            except StopIteration as returned:
                result: _T = returned.value
                return result
