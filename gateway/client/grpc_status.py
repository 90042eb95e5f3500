"""Classifies the failed attempts of an RPC: by status code, and by the server's `grpc-retry-pushback-ms`. No I/O.

Codes are their names, such as "UNAVAILABLE".
"""

from typing import Final

from gateway.client.hedger import Failure
from gateway.hedging.outcomes import Outcome

PUSHBACK: Final = "grpc-retry-pushback-ms"
_PUSHBACK_S_MAX: Final = 3600.0
_OUTCOMES: Final = {
    "OK": Outcome.FINISHED,
    "CANCELLED": Outcome.CLIENT_GONE,
    "DEADLINE_EXCEEDED": Outcome.TTFT_TIMEOUT,
    "RESOURCE_EXHAUSTED": Outcome.RATE_LIMITED,
    "PERMISSION_DENIED": Outcome.MISCONFIGURED,
    "UNAUTHENTICATED": Outcome.MISCONFIGURED,
    "UNIMPLEMENTED": Outcome.MISCONFIGURED,
    "ABORTED": Outcome.CLIENT_ERROR,  # a conflict, and so the four that follow are results of the request
    "ALREADY_EXISTS": Outcome.CLIENT_ERROR,
    "FAILED_PRECONDITION": Outcome.CLIENT_ERROR,
    "INVALID_ARGUMENT": Outcome.CLIENT_ERROR,
    "NOT_FOUND": Outcome.CLIENT_ERROR,
    "OUT_OF_RANGE": Outcome.CLIENT_ERROR,
}
EMPTY: Final = Failure(Outcome.CLIENT_ERROR)  # a stream without a message: status OK, so no failure of the server


def failure_of(code: str, pushback: str | bytes | None) -> Failure:
    """Classify a failed attempt.

    Args:
        code: name of its status code.
        pushback: the server's value of `grpc-retry-pushback-ms`, None without one.
    """
    if pushback is not None:
        return Failure(Outcome.RATE_LIMITED, _wait_s(pushback))
    return Failure(_OUTCOMES.get(code, Outcome.FAILED))


def forbids(pushback: str | bytes | None) -> bool:
    """Return True if the server asks for no further attempt of the RPC: a value that is negative or no number."""
    return pushback is not None and _wait_s(pushback) is None


def outcome_of(code: str) -> Outcome:
    """Return the outcome of a stream that had a message, by the code of its status."""
    outcome = _OUTCOMES.get(code)
    return outcome if outcome in (Outcome.FINISHED, Outcome.CLIENT_GONE) else Outcome.CUT


def _wait_s(pushback: str | bytes) -> float | None:
    text = pushback.decode("latin-1") if isinstance(pushback, bytes) else pushback
    return min(int(text) / 1000, _PUSHBACK_S_MAX) if text.isascii() and text.isdigit() and len(text) < 20 else None
