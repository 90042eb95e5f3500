"""A progress bar on standard error, drawn where a person watches and nowhere else.

Units: shares of the work as fractions of 1.
"""

import sys
from collections.abc import Callable

_WIDTH = 30

Progress = Callable[[str, float], None]
"""Hears what is running, and the share of all that is done."""


def quiet(_what: str, _done: float) -> None:
    """Draw nothing."""


def bar() -> Progress:
    """A bar if standard error is a terminal."""
    return _draw if sys.stderr.isatty() else quiet


def _draw(what: str, done: float) -> None:
    filled = round(_WIDTH * done)
    end = "\n" if done >= 1 else ""
    drawn = f"[{'#' * filled}{'.' * (_WIDTH - filled)}]"
    print(f"\r{drawn} {100 * done:3.0f}% {what:40.40}", end=end, file=sys.stderr, flush=True)
