"""Counts of requests with and without hedging, from which `direct_effect` estimates what hedging saved. Pure.

Counts of gateways, or of spans of time, add up. A time to first token (TTFT) is counted in bins 0.25 % wide, and it is
restricted: a longer one, or none at all, counts as the limit. Each request is in one group:

    SAME         hedging has not changed its TTFT: no hedge was granted, or its first attempt was not beaten
    BEATEN       a backup won, and the beaten attempt was a candidate for being read
    GRANTED      a hedge was granted and sent, and it was a candidate for being withheld
    WITHHELD     a hedge was granted and withheld: its TTFT is a TTFT without hedging
    UNMEASURED   a backup won, and its saving is unknown: it counts as none

Of the `BEATEN` some are read: READ_WITH has what their clients saw, READ_WITHOUT the TTFT of the beaten attempt.

Units: seconds, tokens, money in the configuration's currency.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gateway.proof.bill import BillSums
from ttft_gateway.apis.base import FastEnum

BIN_WIDTH: Final = math.log(1.0025)
HOUR_S: Final = 3600.0
_MIN_S: Final = 1e-4


class Group(FastEnum):
    """Group of a request; the value is the metric label."""

    SAME = "same"
    BEATEN = "beaten"
    READ_WITH = "read_with"
    READ_WITHOUT = "read_without"
    GRANTED = "granted"
    WITHHELD = "withheld"
    UNMEASURED = "unmeasured"


REQUESTS: Final = (Group.SAME, Group.BEATEN, Group.GRANTED, Group.WITHHELD, Group.UNMEASURED)
"""Groups of which each request is in one."""


class GroupTimes(msgspec.Struct, gc=False):
    """Restricted TTFTs of one group.

    Attributes:
        count: number of requests.
        misses: number above the TTFT of the SLO.
        sum_s, squares: sum of the TTFTs and of their squares.
        bins: number of TTFTs by bin.
    """

    count: int = 0
    misses: int = 0
    sum_s: float = 0.0
    squares: float = 0.0
    bins: dict[int, int] = {}

    def add(self, ttft_s: float, slo_s: float) -> None:
        """Add a TTFT."""
        self.count += 1
        self.misses += ttft_s > slo_s
        self.sum_s += ttft_s
        self.squares += ttft_s * ttft_s
        index = int(math.log(ttft_s / _MIN_S) / BIN_WIDTH) if ttft_s > _MIN_S else 0
        try:
            self.bins[index] += 1
        except KeyError:
            self.bins[index] = 1

    def merge(self, other: "GroupTimes") -> None:
        """Add the counts of another span or gateway."""
        self.count += other.count
        self.misses += other.misses
        self.sum_s += other.sum_s
        self.squares += other.squares
        for index, count in other.bins.items():
            self.bins[index] = self.bins.get(index, 0) + count


class ShadowTimes(msgspec.Struct, gc=False):
    """The requests for which the policy `shadow` would have sent a hedge.

    Attributes:
        late: their TTFTs.
        independent, correlated: their TTFTs with the hedge, as predicted in two ways (`gateway.proof.shadow`).
        reasons: their number by reason.
        unpredicted: number of requests without a prediction of the backup.
        waited_s: sum of the times from the hedge to the first token.
        tokens: tokens that the hedges would have cost.
        cost: money for them; None if no replica has prices.
    """

    late: GroupTimes = msgspec.field(default_factory=GroupTimes)
    independent: GroupTimes = msgspec.field(default_factory=GroupTimes)
    correlated: GroupTimes = msgspec.field(default_factory=GroupTimes)
    reasons: dict[str, int] = {}
    unpredicted: int = 0
    waited_s: float = 0.0
    tokens: int = 0
    cost: float | None = None

    def merge(self, other: "ShadowTimes") -> None:
        """Add the counts of another span or gateway."""
        self.late.merge(other.late)
        self.independent.merge(other.independent)
        self.correlated.merge(other.correlated)
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        self.unpredicted += other.unpredicted
        self.waited_s += other.waited_s
        self.tokens += other.tokens
        if other.cost is not None:
            self.cost = (self.cost or 0.0) + other.cost


class Tally(msgspec.Struct, gc=False):
    """Counts of one model.

    Attributes:
        slo_s: TTFT above which a request is a miss.
        limit_s: limit of the restricted TTFTs.
        span_s: length of the counted time.
        groups: TTFTs by group; a group without requests may be missing.
        saved_s, saved_squares: sum of the savings of the requests that were read, and of their squares.
        hedges: number of backups.
        tokens: tokens billed for attempts that lost.
        cost: money for them; None if no replica has prices.
        shadow: requests that would have been hedged; None if the policy is not `shadow`.
        bill: bills of the requests, where the model has tiers; None without tiers.
    """

    slo_s: float
    limit_s: float
    span_s: float = 0.0
    groups: dict[Group, GroupTimes] = {}
    saved_s: float = 0.0
    saved_squares: float = 0.0
    hedges: int = 0
    tokens: int = 0
    cost: float | None = None
    shadow: ShadowTimes | None = None
    bill: BillSums | None = None

    def times(self, group: Group) -> GroupTimes:
        """Return the TTFTs of a group."""
        found = self.groups.get(group)
        if found is None:
            found = self.groups[group] = GroupTimes()
        return found

    def add(self, group: Group, ttft_s: float) -> None:
        """Add a request."""
        times = self.groups[group] if group in self.groups else self.times(group)
        times.add(min(self.limit_s, ttft_s), self.slo_s)

    def add_read(self, with_s: float, without_s: float) -> None:
        """Add what was read of a request that is in BEATEN."""
        without_s, with_s = min(without_s, self.limit_s), min(with_s, self.limit_s)
        self.times(Group.READ_WITH).add(with_s, self.slo_s)
        self.times(Group.READ_WITHOUT).add(without_s, self.slo_s)
        saved_s = max(0.0, without_s - with_s)
        self.saved_s += saved_s
        self.saved_squares += saved_s * saved_s

    def add_cost(self, tokens: int, cost: float | None) -> None:
        """Add the bill of an attempt that lost."""
        self.tokens += tokens
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost

    def add_bill(self, cost: float, usual: float) -> None:
        """Add the bill of a request, and of its answer on the usual tier."""
        if self.bill is None:
            self.bill = BillSums()
        self.bill.add(cost, usual)

    def merge(self, other: "Tally") -> None:
        """Add the counts of another span or gateway with the same `slo_s` and `limit_s`; the longer `span_s` stays."""
        self.span_s = max(self.span_s, other.span_s)
        for group, times in other.groups.items():
            self.times(group).merge(times)
        self.saved_s += other.saved_s
        self.saved_squares += other.saved_squares
        self.hedges += other.hedges
        self.add_cost(other.tokens, other.cost)
        if other.shadow is not None:
            self.shadow = self.shadow or ShadowTimes()
            self.shadow.merge(other.shadow)
        if other.bill is not None:
            self.bill = self.bill or BillSums()
            self.bill.merge(other.bill)

    @property
    def requests(self) -> int:
        """Number of requests."""
        return sum(self.groups[group].count for group in REQUESTS if group in self.groups)


def merged_tallies(processes: Iterable[Mapping[str, Tally]]) -> dict[str, Tally]:
    """Return the counts of each model; where an SLO differs, the counts of the first process are used."""
    total: dict[str, Tally] = {}
    for tallies in processes:
        for model, tally in tallies.items():
            sum_ = total.setdefault(model, Tally(tally.slo_s, tally.limit_s))
            if (sum_.slo_s, sum_.limit_s) == (tally.slo_s, tally.limit_s):
                sum_.merge(tally)
    return total


def upper_s(index: int) -> float:
    """Return the upper end of a bin."""
    return _MIN_S * math.exp((index + 1) * BIN_WIDTH)
