"""Estimates the share of one replica's answers that break after their first content, and their cost in waiting time.

A first token is no evidence for the rest: a replica that is quick to begin and then breaks would attract traffic by
its TTFT. The cost is added to its predicted TTFT where replicas are compared, never where delays are made. Pure.

Units: seconds.
"""

import math
from typing import Final

_WEIGHT: Final = 0.1  # of one answer: about the last ten count
_HALF_LIFE_S: Final = 180.0  # a share fades, so that the replica is tried again
_SAME_S: Final = 0.02  # breaks less than this apart are one event: a restart cuts all streams of a replica at once
_TOLERATED: Final = 0.12  # one break among ten answers is weather
_BREAK_COST_S: Final = 20.0  # a client's loss by one break: the default of timeouts.stall


class BreakShare:
    """Exponentially weighted share of broken answers."""

    __slots__ = ("_at_s", "_broken_s", "_share")

    def __init__(self) -> None:
        self._share = 0.0
        self._at_s = -math.inf
        self._broken_s = -math.inf

    def add(self, now_s: float, *, broken: bool) -> None:
        """Add an answer that was complete, or broke after its first content."""
        if broken:
            is_counted, self._broken_s = now_s < self._broken_s + _SAME_S, now_s
            if is_counted:
                return
        share = self._faded(now_s)
        self._share = share + _WEIGHT * (broken - share)
        self._at_s = now_s

    def cost_s(self, now_s: float) -> float:
        """Return the expected loss by one more request here; 0 below the tolerated share."""
        return max(0.0, self._faded(now_s) - _TOLERATED) * _BREAK_COST_S

    def _faded(self, now_s: float) -> float:
        return self._share * 0.5 ** ((now_s - self._at_s) / _HALF_LIFE_S) if self._share else 0.0
