"""The estimate of what hedging saved as plain values, for the admin address, the log and `ttft-gateway prove`. Pure.

Units: milliseconds, hours, tokens, money in the configuration's currency.
"""

import math

import msgspec

from gateway.proof.bill import BillSums
from gateway.proof.effect import DirectEffect, Effect, direct_effect
from gateway.proof.intervals import Interval
from gateway.proof.tally import HOUR_S, Group, Tally

_NEVER_HOURS = 24 * 365 * 10  # a longer time is not stated


class Range(msgspec.Struct, frozen=True):
    """An estimate with its 95 % interval; without sampling both ends are the value."""

    value: float
    low: float
    high: float


class Figure(msgspec.Struct, frozen=True, rename={"with_": "with"}):
    """One figure.

    Attributes:
        without: without hedging; None while there is too little data.
        with_: with hedging; None above the TTFT timeout.
        saved: the difference; None while there is too little data, or if it is below 1 % of the figure.
    """

    without: Range | None
    with_: Range | None
    saved: Range | None


class BillReport(msgspec.Struct, frozen=True):
    """The bill of a model with tiers.

    Attributes:
        cost: bill of all attempts.
        usual: bill of the same answers on the usual tier.
        saved: the difference; the interval is for as many further requests.
        saved_share: the difference as a share of `usual`.
    """

    cost: float
    usual: float
    saved: Range
    saved_share: float


class ProofReport(msgspec.Struct, frozen=True):
    """The direct effect of hedging on the requests of one model.

    Attributes:
        model: public model name.
        hours: length of the counted time.
        requests: counted requests.
        hedges: backups that were sent.
        slo_ms: TTFT above which a request is a miss.
        limit_ms: TTFT timeout; a longer TTFT, or none, counts as this.
        losers_read, losers: beaten primaries that were read, and that could have been.
        withheld, granted: hedges that were withheld, and hedges that were sent, where primaries are not read.
        unmeasured: requests of which the backup won without a measurement; they count as if nothing was saved.
        enough: True if the figures are shown.
        missing: sentence on the data that is missing; None if the interval of the misses is within 25 %.
        misses: requests above the SLO.
        p95_ms, p99_ms: quantiles of the TTFT.
        mean_ms: mean of the TTFTs, restricted at `limit_ms`.
        tokens, cost: tokens and money billed for attempts that lost; the money is None without prices.
        cost_per_avoided_miss: money for each avoided miss; None without prices or without an avoided miss.
        bill: bill of all requests, where the model has tiers; None without tiers.
    """

    model: str
    hours: float
    requests: int
    hedges: int
    slo_ms: float
    limit_ms: float
    losers_read: int
    losers: int
    withheld: int
    granted: int
    unmeasured: int
    enough: bool
    missing: str | None
    misses: Figure
    p95_ms: Figure
    p99_ms: Figure
    mean_ms: Figure
    tokens: int
    cost: float | None
    cost_per_avoided_miss: float | None
    effect: str = "direct"
    bill: BillReport | None = None


def report(model: str, tally: Tally) -> ProofReport:
    """Estimate and describe the effect on one model."""
    effect = direct_effect(tally)
    avoided = effect.misses.saved
    per_miss = None
    if tally.cost is not None and avoided is not None and avoided.value >= 1:
        per_miss = float(f"{tally.cost / avoided.value:.3g}")
    return ProofReport(
        model,
        round(tally.span_s / HOUR_S, 2),
        tally.requests,
        tally.hedges,
        round(1000 * tally.slo_s, 3),
        round(1000 * tally.limit_s, 3),
        tally.times(Group.READ_WITHOUT).count,
        tally.times(Group.BEATEN).count,
        tally.times(Group.WITHHELD).count,
        tally.times(Group.GRANTED).count,
        tally.times(Group.UNMEASURED).count,
        avoided is not None,
        _missing(effect, tally.span_s),
        _figure(effect.misses, 1.0),
        _figure(effect.p95, 1000.0),
        _figure(effect.p99, 1000.0),
        _figure(effect.mean, 1000.0),
        tally.tokens,
        None if tally.cost is None else round(tally.cost, 6),
        per_miss,
        bill=None if tally.bill is None or tally.bill.usual <= 0.0 else _bill(tally.bill),
    )


def _bill(sums: BillSums) -> BillReport:
    cost, usual, saved = (float(f"{each:.4g}") for each in (sums.cost, sums.usual, sums.usual - sums.cost))
    found = _range(sums.saved, 1.0) or Range(saved, saved, saved)
    return BillReport(cost, usual, found, round(1.0 - sums.cost / sums.usual, 4))


def _figure(effect: Effect, unit: float) -> Figure:
    return Figure(*(_range(each, unit) for each in (effect.without, effect.with_, effect.saved)))


def _range(interval: Interval | None, unit: float) -> Range | None:
    """Return an interval to 4 digits; None for one that is unknown or infinite."""
    if interval is None or not all(map(math.isfinite, interval)):
        return None
    return Range(*(float(f"{unit * each:.4g}") for each in interval))


def _missing(effect: DirectEffect, span_s: float) -> str | None:
    """Describe the data that is missing for intervals of 25 %, and the time that it takes at the present rate."""
    needed = effect.observed_needed
    if needed is None:
        return "no saving is visible yet"
    if needed <= effect.observed:
        return None
    goal = "figures" if effect.misses.saved is None else "an interval of 25% for the saved misses"
    counted = f"{effect.observed} of {needed} measured requests for {goal}"
    if not effect.observed or span_s <= 0:
        return counted
    hours = (needed - effect.observed) * span_s / effect.observed / HOUR_S
    return f"{counted}; at this rate {_duration(hours)} more" if hours < _NEVER_HOURS else counted


def _duration(hours: float) -> str:
    return f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.0f} h" if hours >= 1 else f"{60 * hours:.0f} min"
