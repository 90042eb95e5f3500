"""Messages on stderr and stdout, coloured on terminals unless NO_COLOR is set. No units."""

import os
import sys
from typing import TextIO

_BOLD, _RED, _YELLOW = "1", "31", "33"


def coloured(stream: TextIO) -> bool:
    """Return True if a stream supports colours and NO_COLOR (https://no-color.org) is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def bold(text: str, stream: TextIO) -> str:
    """Return the text in bold if the stream supports it."""
    return _paint(text, _BOLD, stream)


def warn(text: str) -> None:
    """Print a warning; the command continues."""
    print(_paint("warning:", _YELLOW, sys.stderr), text, file=sys.stderr, flush=True)


def fail(text: str) -> None:
    """Print the error that ends the command."""
    print(_paint("error:", _RED, sys.stderr), text, file=sys.stderr, flush=True)


def _paint(text: str, code: str, stream: TextIO) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if coloured(stream) else text
