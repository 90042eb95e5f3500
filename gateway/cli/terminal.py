"""What a person reads on stderr or stdout, in colour where that helps: on terminals, unless NO_COLOR says otherwise.

Knows nothing of what is said. No units.
"""

import os
import sys
from typing import TextIO

_BOLD, _RED, _YELLOW = "1", "31", "33"


def coloured(stream: TextIO) -> bool:
    """Whether a stream shows colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def bold(text: str, stream: TextIO) -> str:
    """The text as it stands out there."""
    return _paint(text, _BOLD, stream)


def warn(text: str) -> None:
    """Say something that is not right and does not stop anything."""
    print(_paint("warning:", _YELLOW, sys.stderr), text, file=sys.stderr, flush=True)


def fail(text: str) -> None:
    """Say why nothing is done."""
    print(_paint("error:", _RED, sys.stderr), text, file=sys.stderr, flush=True)


def _paint(text: str, code: str, stream: TextIO) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if coloured(stream) else text
