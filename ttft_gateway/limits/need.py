"""The part of a rate limit that primaries will need until it refills: of this gateway, and of other clients. Pure.

Both usages are measured: of this gateway's primaries by counting, of other clients from the limits in responses. So the
need is known for limits that responses state, and only for them. It has two parts. Within a window, primaries may use
more than on average (`_GROWTH`). In the long run, a limit is a queue with random usage: what a hedge takes is missing
until the limit is full again, and costs a primary if the limit is empty before that.

Units: the unit of the limit; seconds.
"""

import math
from typing import Final

from ttft_gateway.limits.bucket import QuotaBucket

_GROWTH: Final = 1.3  # the usage of the next window as a multiple of the usage measured, at most,
_GROWTH_AFTER_429: Final = 2.0  # and after a 429: it was more, once
_SIGMAS: Final = 3.0  # of the number of requests in a window
_SHARE_MIN: Final = 0.1  # of the limit, always reserved: responses are seconds old,
_SHARE_MAX: Final = 0.95  # and reserved while it is not certain that the limit will be full again
_FULL_SIGMAS: Final = 2.0  # of the mean usage: if all of the refill is used beyond them, no hedges
_FREE_SHARE: Final = 0.5  # of the refill: with less usage, a limit is full after a pause
_OLD_S: Final = 60.0  # shortest time after which a response no longer shows what is left; longer windows last longer
_LOSS: Final = 0.1  # largest probability that the limit is empty before it is full again
_MEASURED: Final = 0.25  # of a window: shortest time over which a usage is measured,
_MEASURED_S_MAX: Final = 15.0  # and its maximum
_MEMORY_S: Final = 600.0  # time of which the mean and the noise are known: long enough to see 5% of a busy limit
_WEIGHT: Final = 0.5  # of a new measurement in the usage of the next window


class Need:
    """The need of primaries in one limit.

    Args:
        own: usage by this gateway's primaries until now.
        now_s: time of the first response with the limit.
    """

    __slots__ = ("_at_s", "_mean", "_noise", "_others", "_own", "_rate", "_time_s")

    def __init__(self, own: float, now_s: float) -> None:
        self._at_s, self._own, self._others = now_s, own, 0.0
        self._rate: float | None = None  # usage a second, now
        self._mean = self._noise = 0.0  # of the usage a second; its variance in the time of a second
        self._time_s = 0.0  # over which both were measured

    def reserved(self, bucket: QuotaBucket, own: float, cost: float, now_s: float, *, limited: bool) -> float:
        """Return the amount that a hedge has to leave; infinite if each hedge would sooner or later cost a primary.

        Args:
            own: usage by this gateway's primaries since its start.
            cost: usage by one request.
            limited: True if there was a 429 in the last minutes.
        """
        amount, window_s, state = bucket.amount, bucket.window_s, bucket.state(now_s)
        read_s = now_s if state.age_s is None else now_s - state.age_s
        rate = self._measured(own, state.others_s * amount / window_s, window_s, read_s, now_s)
        if now_s - read_s > max(window_s, _OLD_S) and not self._is_mostly_free(amount / window_s, cost):
            return math.inf
        growth = _GROWTH_AFTER_429 if limited else _GROWTH
        needed = max(0.0, growth * rate * window_s - amount) + _SIGMAS * math.sqrt(rate * window_s * cost)
        in_long_run = self._in_long_run(amount, amount / window_s, cost)
        return min(amount, max(_SHARE_MIN * amount, needed)) if needed > in_long_run else in_long_run

    def _in_long_run(self, amount: float, refill: float, cost: float) -> float:
        """Return the amount from which usage as measured rarely empties the limit before it is full again.

        A walk with drift m and variance v a second falls by L before it rises with a probability of exp(-2 m L / v).
        """
        noise, error = self._noise_and_error(cost)
        if self._mean - _FULL_SIGMAS * error >= refill:
            return math.inf
        drift = refill - self._mean - error
        if drift <= 0.0:
            return _SHARE_MAX * amount
        return min(_SHARE_MAX * amount, math.log(1.0 / _LOSS) * noise / (2.0 * drift))

    def _is_mostly_free(self, refill: float, cost: float) -> bool:
        """Return True if the limit is certainly full after a pause: less than half of its refill was used."""
        return self._mean + self._noise_and_error(cost)[1] < _FREE_SHARE * refill

    def _noise_and_error(self, cost: float) -> tuple[float, float]:
        """Return the noise of the usage, and the error of its mean."""
        noise = max(self._noise, self._mean * cost)  # at least as if requests were independent and equal
        return noise, math.sqrt(noise / self._time_s) if self._time_s else math.inf

    def _measured(self, own: float, others: float, window_s: float, read_s: float, now_s: float) -> float:
        """Return the usage a second; the usage of others falls where a response contradicts an earlier one.

        Without a response nothing is measured: it is unknown what others use.

        Args:
            read_s: time of the last response.
        """
        elapsed_s = read_s - self._at_s
        is_first, measured_s = self._rate is None, min(_MEASURED * window_s, _MEASURED_S_MAX)
        if not is_first and elapsed_s < measured_s:
            return self._rate or 0.0
        by_own, by_others = own - self._own, others - self._others
        # Others may have used the first difference at any time in a window.
        seen = by_own / max(1.0, now_s - self._at_s) + by_others / max(window_s if is_first else 1.0, elapsed_s)
        last = seen if self._rate is None else self._rate
        rate = max(0.0, last + _WEIGHT * (seen - last))
        if elapsed_s >= measured_s:
            self._rate, self._at_s, self._own, self._others = rate, read_s, own, others
            self._remember(seen, elapsed_s)
        return rate

    def _remember(self, seen: float, elapsed_s: float) -> None:
        """Add a measurement to the mean and the noise."""
        distance = seen - self._mean if self._time_s else 0.0
        self._time_s = min(self._time_s + elapsed_s, _MEMORY_S)
        weight = min(1.0, elapsed_s / self._time_s)
        self._mean = self._mean + weight * distance if distance else self._mean or seen
        self._noise += weight * (elapsed_s * distance * distance - self._noise)
