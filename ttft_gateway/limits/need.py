"""The part of a rate limit that primaries will need until it refills: of this gateway, and of other clients. Pure.

Both usages are measured over about a window: of this gateway by counting, of other clients from the limits in
responses. So the need is known for limits that responses state, and only for them.

Units: the unit of the limit; seconds.
"""

import math
from typing import Final

from ttft_gateway.limits.bucket import QuotaBucket

_GROWTH: Final = 1.3  # the usage of the next window as a multiple of the usage measured, at most,
_GROWTH_AFTER_429: Final = 2.0  # and after a 429: it was more, once
_SIGMAS: Final = 3.0  # of the number of requests in a window
_SHARE_MIN: Final = 0.1  # of the limit, always reserved: responses are seconds old
_FULL: Final = 1.0  # of the refill: such a usage, on average, sooner or later empties the limit, hedges or not,
_FULL_MEMORY: Final = 20  # over this number of measurements
_MEASURED: Final = 0.25  # of a window: shortest time over which a usage is measured,
_MEASURED_S_MAX: Final = 15.0  # and its maximum
_WEIGHT: Final = 0.5  # of a new measurement


class Need:
    """The need of primaries in one limit.

    Args:
        own: usage by this gateway until now.
        now_s: time of the first response with the limit.
    """

    __slots__ = ("_at_s", "_count", "_mean", "_others", "_own", "_rate")

    def __init__(self, own: float, now_s: float) -> None:
        self._at_s, self._own, self._others = now_s, own, 0.0
        self._rate: float | None = None  # usage a second
        self._mean, self._count = 0.0, 0  # of the measurements of it, and their number

    def reserved(self, bucket: QuotaBucket, own: float, cost: float, now_s: float, *, limited: bool) -> float:
        """Return the amount that a hedge has to leave; infinite if each hedge would sooner or later cost a primary.

        Args:
            own: usage by this gateway since its start.
            cost: usage by one request.
            limited: True if there was a 429 in the last minutes.
        """
        amount, window_s = bucket.amount, bucket.window_s
        rate = self._measured(own, bucket.state(now_s).others_s * amount / window_s, window_s, now_s)
        growth = _GROWTH_AFTER_429 if limited else _GROWTH
        if self._mean >= _FULL * amount / window_s:
            return math.inf
        needed = max(0.0, growth * rate * window_s - amount) + _SIGMAS * math.sqrt(rate * window_s * cost)
        return min(amount, max(_SHARE_MIN * amount, needed))

    def _measured(self, own: float, others: float, window_s: float, now_s: float) -> float:
        """Return the usage a second; the usage of others falls where a response contradicts an earlier one."""
        elapsed_s = now_s - self._at_s
        is_first, measured_s = self._rate is None, min(_MEASURED * window_s, _MEASURED_S_MAX)
        if not is_first and elapsed_s < measured_s:
            return self._rate or 0.0
        by_own, by_others = own - self._own, others - self._others
        # Others may have used the first difference at any time in a window.
        seen = by_own / max(1.0, elapsed_s) + by_others / max(window_s if is_first else 1.0, elapsed_s)
        last = seen if self._rate is None else self._rate
        rate = max(0.0, last + _WEIGHT * (seen - last))
        if elapsed_s >= measured_s:
            self._rate, self._at_s, self._own, self._others = rate, now_s, own, others
            self._count = min(self._count + 1, _FULL_MEMORY)
            self._mean += (seen - self._mean) / self._count
        return rate
