"""A coroutine that was stepped by hand, since it mostly needs no waiting, and who waits for the rest where it does.

No units.
"""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class Begun(Generic[_T]):
    """A coroutine that was stepped by hand and now waits for something: await this for the rest of it.

    Args:
        coroutine: stepped once.
        waiting_for: what that step gave.
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
            except BaseException as error:  # cancellation, too, belongs to the coroutine
                step, value = self._coroutine.throw, error
            try:
                waiting_for = step(value)
            except StopIteration as returned:
                result: _T = returned.value
                return result
