"""Parsers of option values and the format of help texts, shared by all commands of the bench.

Owns how a value is read and the message for a wrong one. Pure. Units: on the command line shares are in per cent and
durations carry their unit; inside they are fractions of 1 and seconds.
"""

import argparse
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from gateway.simulated import quantities
from gateway.simulated.quantities import UnitError

_T = TypeVar("_T")


class DefaultsFormatter(argparse.HelpFormatter):
    """Appends the default to the help of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_default = action.default and action.default != argparse.SUPPRESS
        return f"{action.help}; default %(default)s" if has_default else action.help


def checked(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Return a parser with an error message that argparse shows."""

    @wraps(parse)
    def parsed(value: str) -> _T:
        try:
            return parse(value)
        except UnitError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


duration = checked(quantities.duration)
distribution = checked(quantities.distribution)


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


@checked
def count(value: str) -> int:
    """Read a whole number, at least 1."""
    if not value.isascii() or not value.isdecimal() or int(value) < 1:
        raise UnitError(f"{value!r} is not valid; write a whole number, at least 1")
    return int(value)


@checked
def positive(value: str) -> float:
    """Read a number above 0."""
    number = _number(value)
    if not 0 < number < float("inf"):
        raise UnitError(f"{value!r} is not valid; write a number above 0")
    return number


@checked
def percent(value: str) -> float:
    """Read per cents from 0 to 100 as a fraction of 1."""
    number = _number(value.removesuffix("%"))
    if not 0 <= number <= 100:
        raise UnitError(f"{value!r} is not valid; write a number from 0 to 100")
    return number / 100


@checked
def share(value: str) -> float:
    """Read a fraction from 0 to 1."""
    number = _number(value)
    if not 0 <= number <= 1:
        raise UnitError(f"{value!r} is not valid; write a number from 0 to 1")
    return number


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return -1.0
