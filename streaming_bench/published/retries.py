"""Retry with backoff, the reaction of proxies to slowness: an attempt is cancelled at a timeout and sent again. Pure.

Unlike a hedge, a retry gives up the first attempt, and waits before it sends another. Units: seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryRule:
    """When an attempt is given up.

    Attributes:
        timeout_s: time after which an attempt is cancelled; the last one is not.
        backoff_s: wait before the first retry; doubled before each further one.
        retries_max: maximum number of retries.
    """

    timeout_s: float
    backoff_s: float
    retries_max: int = 2


def retried_s(attempts_s: Sequence[float], rule: RetryRule) -> tuple[float, int]:
    """Return the time of a request, and its retries.

    Args:
        attempts_s: time of each attempt, without a timeout; at least one.
    """
    passed_s, backoff_s = 0.0, rule.backoff_s
    last = min(rule.retries_max, len(attempts_s) - 1)
    for number, attempt_s in enumerate(attempts_s[:last]):
        if attempt_s <= rule.timeout_s:
            return passed_s + attempt_s, number
        passed_s += rule.timeout_s + backoff_s
        backoff_s *= 2
    return passed_s + attempts_s[last], last
