"""Parsers of option values, shared by all commands of the bench.

Owns how a value is read and the message for a wrong one. Pure. Units: on the command line shares are in per cent and
durations carry their unit; inside they are fractions of 1 and seconds.
"""

import argparse
from collections.abc import Callable
from typing import TypeVar

from providers.simulated.quantities import UnitError

_T = TypeVar("_T")


def checked(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Return a parser whose error message is shown by argparse."""

    def parsed(value: str) -> _T:
        try:
            return parse(value)
        except UnitError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def names(kind: str, *known: str) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of names with commas in between.

    Args:
        kind: noun for the names, for messages.
        known: permitted names.
    """

    def parsed(value: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
        unknown = [name for name in found if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"there is no {kind} {unknown[0]!r}; write one or more of {','.join(known)}"
            )
        return found

    return parsed


def count(value: str) -> int:
    """Read a whole number, at least 1."""
    if not value.isascii() or not value.isdecimal() or int(value) < 1:
        raise UnitError(f"{value!r} is not valid; write a whole number, at least 1")
    return int(value)


def positive(value: str) -> float:
    """Read a number above 0."""
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise UnitError(f"{value!r} is not valid; write a number above 0")
    return found


def percent(value: str) -> float:
    """Read per cents from 0 to 100 as a fraction of 1."""
    return share(value.removesuffix("%"), top=100.0)


def share(value: str, top: float = 1.0) -> float:
    """Read a number from 0 to `top` as a fraction of it."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= top:
        raise UnitError(f"{value!r} is not valid; write a number from 0 to {top:g}")
    return number / top
