"""A progress bar on standard error, drawn only on a terminal.

Units: shares of the work as fractions of 1.
"""

import sys
from collections.abc import Callable

_WIDTH = 30
_NEARLY = 0.999  # 1 ends the line

Progress = Callable[[str, float], None]
"""Called with the name of the current step and the share of all work that is done."""


def quiet(_step: str, _done: float) -> None:
    """Draw nothing."""


def bar() -> Progress:
    """Return a bar if standard error is a terminal, else `quiet`."""
    return _draw if sys.stderr.isatty() else quiet


def of_run(progress: Progress, name: str, index: int, runs: int, requests: int) -> Callable[[int], None]:
    """Return the progress of one of several runs, to be called with its number of finished requests."""
    return lambda done: progress(name, min(_NEARLY, (index + done / requests) / runs))


def _draw(step: str, done: float) -> None:
    filled = round(_WIDTH * done)
    end = "\n" if done >= 1 else ""
    drawn = f"[{'#' * filled}{'.' * (_WIDTH - filled)}]"
    print(f"\r{drawn} {100 * done:3.0f}% {step:40.40}", end=end, file=sys.stderr, flush=True)
