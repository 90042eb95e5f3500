"""What a provider counts: buckets of requests and tokens, and the 429 when one is empty.

The simulated truth, apart from the gateway's own ledger, which only mirrors it. Units: seconds, tokens.
"""

from collections.abc import Sequence
from typing import Final

from gateway.limits.bucket import Limit
from providers.base import Resource
from providers.errors import BadStatus

_RETRY_S_MIN: Final = 0.1


class Provider:
    """One quota as its provider counts it.

    Args:
        limits: on requests and on tokens.
    """

    def __init__(self, limits: Sequence[Limit]) -> None:
        self._limits = limits
        self._left = [limit.amount for limit in limits]
        self._now_s = 0.0

    def refuses(self, tokens: float, now_s: float) -> BadStatus | None:
        """Count a request, or refuse it."""
        costs = [tokens if limit.resource is Resource.TOKENS else 1.0 for limit in self._limits]
        wait_s = 0.0
        for i, limit in enumerate(self._limits):
            refill = limit.amount / limit.window_s
            self._left[i] = min(limit.amount, self._left[i] + (now_s - self._now_s) * refill)
            wait_s = max(wait_s, (min(costs[i], limit.amount) - self._left[i]) / refill)
        self._now_s = now_s
        if wait_s > 0:
            return BadStatus("rate limit reached", status=429, retry_after_s=max(_RETRY_S_MIN, wait_s))
        self._left = [left - cost for left, cost in zip(self._left, costs, strict=True)]
        return None
