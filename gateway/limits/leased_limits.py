"""Makes the limits of keys, models and quotas as leases from the fleet. Pure."""

import math

from gateway.limits.bucket import Bucket, Limit, QuotaBucket
from gateway.limits.leased_slots import LeasedSlots
from gateway.limits.leases import LeasedBucket, LeasedRate, Leases
from gateway.limits.rates import Rate, Slots


class LeasedLimits:
    """Makes limits that the fleet shares.

    Args:
        leases: the leases of the process.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def rate(self, name: str, limit: int) -> Rate:
        """Return a limit per minute."""
        return LeasedRate(self._leases, name, limit)

    def slots(self, name: str, limit: float) -> Slots:
        """Return a limit on concurrency."""
        return Slots(limit) if limit == math.inf else LeasedSlots(self._leases, name, limit)

    def bucket(self, name: str, limit: Limit) -> QuotaBucket:
        """Return one configured limit of a quota; one that is not enforced is not leased."""
        return LeasedBucket(self._leases, name, limit) if limit.enforce else Bucket(limit)
