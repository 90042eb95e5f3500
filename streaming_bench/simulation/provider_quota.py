"""Rate limits of a simulated provider: buckets of requests and tokens, 429 responses, and rate limit headers.

The simulated truth, apart from the gateway's own ledger, which only mirrors it. Headers have OpenAI's form and are read
by the gateway's own reader. Units: seconds, tokens.
"""

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from streaming_bench.simulation.engine_scenario import Quotas
from streaming_bench.simulation.law_scenario import Pulse, SharedLimits
from ttft_gateway.apis.base import Headers, Resource
from ttft_gateway.apis.errors import BadStatus
from ttft_gateway.apis.rate_limit_headers import RateLimitFormat
from ttft_gateway.limits.bucket import Limit

REFUSED_AFTER_S: Final = 0.005  # time of a 429, or of another error without an answer
STALE_S: Final = 5.0  # time between updates of stale headers
_RETRY_S_MIN: Final = 0.1


class LimitHeaders(enum.Enum):
    """Rate limit headers of responses; the value is the one on the command line."""

    NONE = "none"  # no headers; the limits are configured in the gateway
    EXACT = "exact"  # remaining amounts after the request; no limits are configured
    STALE = "stale"  # as EXACT, but some seconds old


@dataclass(frozen=True, slots=True)
class OtherTraffic:
    """Traffic of other clients that use the same quota.

    Attributes:
        share: share of the limits.
        tokens: sample of the tokens of its requests.
        bursts: factor of its rate over time; None for a steady rate.
    """

    share: float
    tokens: Sequence[float]
    seed: str
    bursts: Pulse | None = None


class ProviderQuota:
    """One quota, as counted by its provider.

    Args:
        headers: rate limit headers of responses.
        others: traffic of other clients; None for none.

    Attributes:
        form: form of the headers; None without headers.
    """

    def __init__(
        self, limits: Sequence[Limit], headers: LimitHeaders = LimitHeaders.NONE, others: OtherTraffic | None = None
    ) -> None:
        self._limits = limits
        self._remaining = [limit.amount for limit in limits]
        self._now_s = 0.0
        window_s = limits[0].window_s
        self.form = None if headers is LimitHeaders.NONE else RateLimitFormat(window_s, window_s)
        self._stated: Headers = ()
        self._stated_s = float("-inf")
        self._stale_s = STALE_S if headers is LimitHeaders.STALE else 0.0
        self._others = others
        mean = 1.0 if others is None else sum(others.tokens) / len(others.tokens)
        self._pace = min(
            limit.amount / limit.window_s / (mean if limit.resource is Resource.TOKENS else 1.0) for limit in limits
        )
        self._rng = random.Random(others.seed if others is not None else 0)
        self._next_s = float("inf") if others is None else self._gap_s(others)

    def charge(self, tokens: float, now_s: float) -> BadStatus | None:
        """Count a request; return the 429 if a bucket is empty."""
        while self._next_s <= now_s and self._others is not None:
            self._count(self._rng.choice(self._others.tokens), self._next_s)
            self._next_s += self._gap_s(self._others)
        return self._count(tokens, now_s)

    def headers(self, now_s: float) -> Headers:
        """Return the rate limit headers of the response to the request just counted."""
        if self.form is None:
            return ()
        if now_s >= self._stated_s + self._stale_s:
            self._stated_s = now_s
            self._stated = tuple(
                header
                for limit, remaining in zip(self._limits, self._remaining, strict=True)
                for header in _headers(limit, max(0.0, remaining))
            )
        return self._stated

    def _gap_s(self, others: OtherTraffic) -> float:
        factor = 1.0 if others.bursts is None else others.bursts.at(self._now_s)
        return self._rng.expovariate(factor * others.share * self._pace)

    def _count(self, tokens: float, now_s: float) -> BadStatus | None:
        costs = [tokens if limit.resource is Resource.TOKENS else 1.0 for limit in self._limits]
        wait_s = 0.0
        for i, limit in enumerate(self._limits):
            refill = limit.amount / limit.window_s
            self._remaining[i] = min(limit.amount, self._remaining[i] + (now_s - self._now_s) * refill)
            wait_s = max(wait_s, (min(costs[i], limit.amount) - self._remaining[i]) / refill)
        self._now_s = now_s
        if wait_s > 0:
            return BadStatus("rate limit reached", status=429, retry_after_s=max(_RETRY_S_MIN, wait_s))
        self._remaining = [remaining - cost for remaining, cost in zip(self._remaining, costs, strict=True)]
        return None


def limits_of(
    quotas: Quotas | SharedLimits, requests_per_s: float, prompt_tokens: Sequence[float], others: float
) -> list[Limit]:
    """Return the limits of each quota, from the mean traffic.

    Args:
        requests_per_s: rate of all requests.
        prompt_tokens: length of each prompt.
        others: share of each limit that other clients use.
    """
    tokens = sum(prompt_tokens) / len(prompt_tokens) + quotas.answer_tokens
    requests = quotas.headroom * requests_per_s / quotas.count * quotas.window_s / (1 - others)
    return [
        Limit(Resource.REQUESTS, requests, quotas.window_s),
        Limit(Resource.TOKENS, requests * tokens, quotas.window_s),
    ]


def _headers(limit: Limit, remaining: float) -> Headers:
    what = limit.resource.value.encode()
    full_s = (limit.amount - remaining) * limit.window_s / limit.amount
    return (
        (b"x-ratelimit-limit-" + what, b"%d" % limit.amount),
        (b"x-ratelimit-remaining-" + what, b"%d" % min(remaining, int(limit.amount))),
        (b"x-ratelimit-reset-" + what, b"%dms" % (1000 * full_s)),
    )
