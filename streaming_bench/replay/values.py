"""Values of a log: times, durations, counts and names in the forms in which logs have them. Pure.

Units: seconds since 1970 for times of day; seconds for durations; results are finite.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from streaming_bench.replay.logged import LineError

_NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_WITH_UNIT: Final = re.compile(r"(\d+\.?\d*|\.\d+)\s*(us|ms|s)")
_UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_TTFT_MAX_S: Final = 86_400.0
_SHOWN_CHARS: Final = 40
# Unix times in milliseconds, microseconds and nanoseconds begin here: the largest of seconds is in the year 5138
_TIME_SCALES: Final = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))


def shown(value: object) -> str:
    """Return a value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def time_s(name: str, value: object) -> float:
    """Read a time: seconds, milliseconds, microseconds or nanoseconds since 1970, any other seconds, or ISO 8601.

    Raises:
        LineError: The value is no time.
    """
    number = _number(value)
    if number is not None:
        for least, scale in _TIME_SCALES:
            if abs(number) >= least:
                return number * scale
        return number
    try:
        moment = datetime.fromisoformat(str(value).strip().removesuffix(" UTC"))
    except ValueError:
        raise LineError(
            f"{name} is {shown(value)}, which is no time; write seconds or ISO 8601, such as 2026-03-01T12:30:15.25Z"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def ttft_s(name: str, value: object, unit_s: float | None) -> float:
    """Read a time to the first token.

    Args:
        unit_s: unit of a plain number; None if the name of the field has none.

    Raises:
        LineError: The value is no positive duration.
    """
    found = _WITH_UNIT.fullmatch(value.strip()) if isinstance(value, str) else None
    number = _number(value)
    if found is not None:
        seconds = float(found[1]) * _UNITS_S[found[2]]
    elif number is None:
        raise LineError(f"{name} is {shown(value)}, which is no duration; write a number above 0")
    elif unit_s is None:
        raise LineError(f"{name} has no unit; name it {name}_s or {name}_ms, or write values such as 250ms")
    else:
        seconds = number * unit_s
    return checked_ttft(name, seconds)


def checked_ttft(name: str, seconds: float) -> float:
    """Return a TTFT that is possible.

    Raises:
        LineError: It is not above 0, or is longer than a day.
    """
    if not 0.0 < seconds <= _TTFT_MAX_S:
        raise LineError(f"{name} is {seconds:g} s; a time to the first token is above 0 and at most a day")
    return seconds


def tokens(name: str, value: object) -> float:
    """Read a number of tokens; 0 for an empty value.

    Raises:
        LineError: The value is no count.
    """
    if value in (None, ""):
        return 0.0
    number = _number(value)
    if number is None or number < 0:
        raise LineError(f"{name} is {shown(value)}, which is no number of tokens; write a whole number or nothing")
    return number


def text(value: object) -> str:
    """Return a name; empty for no value."""
    return "" if value is None else str(value).strip()


def found_at(row: Mapping[str, object], path: str) -> object:
    """Return the value at a path of names with dots; None if there is none."""
    value: object = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = float(value) if _NUMBER.fullmatch(value.strip()) else None
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
