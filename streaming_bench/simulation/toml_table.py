"""One table of a TOML file, read key by key: what is missing, wrong or unknown is named with what to write instead.

Owns the messages; it must not know what the keys mean. Units: values are what the parser of each key makes of them.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from providers.simulated.quantities import UnitError

_T = TypeVar("_T")


class ScenarioError(ValueError):
    """A scenario cannot be read; the message says where, what was found and what to write instead."""


class Table:
    """A table whose keys are taken one after the other; `close` refuses those nobody took.

    Args:
        where: the file and the table, for messages.
        values: its content.
    """

    def __init__(self, where: str, values: Mapping[str, object]) -> None:
        self._where = where
        self._values = dict(values)
        self._taken: list[str] = []

    def take(self, key: str, parse: Callable[[object], _T], default: _T | None = None) -> _T:
        """Read one key.

        Args:
            key: its name.
            parse: makes a value of it, or raises UnitError.
            default: when it is missing; None: it is required.

        Raises:
            ScenarioError: It is missing, or `parse` refused it.
        """
        self._taken.append(key)
        if key not in self._values:
            if default is None:
                raise ScenarioError(f"{self._where}: {key} is missing; add it")
            return default
        try:
            return parse(self._values.pop(key))
        except UnitError as error:
            raise ScenarioError(f"{self._where}: {key}: {error}") from error

    def optional(self, key: str, parse: Callable[[object], _T]) -> _T | None:
        """Read one key that may be missing; None if it is."""
        if key in self._values:
            return self.take(key, parse)
        self._taken.append(key)
        return None

    def table(self, key: str, read: Callable[["Table"], _T]) -> _T:
        """Read a whole table below this one; a missing one is read as empty."""
        below = Table(f"{self._where} [{key}]", self.take(key, _mapping, {}))
        value = read(below)
        below.close()
        return value

    def optional_table(self, key: str, read: Callable[["Table"], _T]) -> _T | None:
        """Read a whole table that may be missing; None if it is."""
        if key in self._values:
            return self.table(key, read)
        self._taken.append(key)
        return None

    def close(self) -> None:
        """Nothing may be left.

        Raises:
            ScenarioError: There is a key nobody took.
        """
        if self._values:
            known = ", ".join(self._taken)
            raise ScenarioError(f"{self._where}: there is no key {min(self._values)!r}; known here: {known}")


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise UnitError(f"found {value!r}; write a table")
    return value


def text(value: object) -> str:
    """Read a string."""
    if not isinstance(value, str):
        raise UnitError(f"found {value!r}; write a text in quotes")
    return value


def count(value: object) -> int:
    """Read a whole number, at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnitError(f"found {value!r}; write a whole number, at least 1")
    return value


def number(value: object) -> float:
    """Read a number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise UnitError(f"found {value!r}; write a number above 0")
    return float(value)
