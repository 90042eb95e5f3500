"""Readers of the values of options on the command line: ports, whole numbers, times. Pure. Units: seconds."""

import argparse
import re
from collections.abc import Callable

_SECONDS_MAX = 86400.0
_BLOCK_S_MAX = 7200.0
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def port(text: str) -> int:
    """Read a port; 0 is any free one."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port; write a number from 0 (any free port) to 65535")
    return int(text)


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a function that reads a whole number between two bounds."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} is out of range; write a whole number from {least} to {most}")
        return int(text)

    return read


def seconds(text: str) -> float:
    """Read a time in seconds, at most a day."""
    try:
        time_s = float(text)
    except ValueError:
        time_s = 0.0
    if not 0 < time_s <= _SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not a duration; write seconds, such as 20")
    return time_s


def duration(text: str) -> float:
    """Read a time with its unit, at most two hours."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text, re.ASCII)
    time_s = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < time_s <= _BLOCK_S_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not a duration of at most 2h; write for example 90s or 10m")
    return time_s
