"""Reports the effect that hedging would have had on the requests of a model with the policy `shadow`. Pure.

The TTFTs without hedging are observed. The TTFTs with hedging are predicted twice: with the backup's wait drawn from
the pool's learned curve, independent of the late attempt's wait; and with a backup as many times slower than predicted
as the late attempt was. The truth is between them, unless hedges change the waits of other requests. No sampling is
involved, so there are no intervals.

Units: milliseconds, hours, tokens, money in the configuration's currency.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from gateway.proof.report import report
from gateway.proof.tally import HOUR_S, Group, GroupTimes, ShadowTimes, Tally, upper_s


class Predicted(msgspec.Struct, frozen=True):
    """One figure.

    Attributes:
        observed: without hedging; None above the TTFT timeout.
        independent: with hedging, if waits of replicas are independent.
        correlated: with hedging, if a request is as slow at one replica as at another.
    """

    observed: float | None
    independent: float | None
    correlated: float | None


class ShadowReport(msgspec.Struct, frozen=True):
    """Effect that hedging would have had on the requests of one model.

    Attributes:
        model: public model name.
        hours: length of the counted time.
        requests: counted requests.
        hedges: requests for which a hedge would have been sent.
        reasons: these by reason (`ShadowReason`).
        unpredicted: these without a curve: they count as if the hedge had saved nothing.
        late_ms: mean time from the hedge to the first token.
        slo_ms: TTFT above which a request is a miss.
        limit_ms: TTFT timeout; a longer TTFT, or none, counts as this.
        misses: requests above the SLO.
        p95_ms, p99_ms: quantiles of the TTFT.
        mean_ms: mean of the TTFTs, restricted at `limit_ms`.
        tokens, cost: tokens and money that the hedges would have cost; the money is None without prices.
    """

    model: str
    hours: float
    requests: int
    hedges: int
    reasons: dict[str, int]
    unpredicted: int
    late_ms: float | None
    slo_ms: float
    limit_ms: float
    misses: Predicted
    p95_ms: Predicted
    p99_ms: Predicted
    mean_ms: Predicted
    tokens: int
    cost: float | None
    effect: str = "shadow"


def shadow_report(model: str, tally: Tally) -> ShadowReport:
    """Describe the counts of one model."""
    shadow = tally.shadow or ShadowTimes()
    seen = tally.times(Group.SAME)
    three = [seen, _with(seen, shadow, shadow.independent), _with(seen, shadow, shadow.correlated)]

    def each(read: Callable[[GroupTimes], float | None], unit: float = 1.0) -> Predicted:
        found = [read(times) for times in three]
        return Predicted(*(None if value is None else float(f"{unit * value:.4g}") for value in found))

    return ShadowReport(
        model,
        round(tally.span_s / HOUR_S, 2),
        seen.count,
        shadow.late.count,
        shadow.reasons,
        shadow.unpredicted,
        round(1000 * shadow.waited_s / shadow.late.count, 1) if shadow.late.count else None,
        round(1000 * tally.slo_s, 3),
        round(1000 * tally.limit_s, 3),
        Predicted(*(times.misses for times in three)),
        each(lambda times: quantile_s(times, 0.95, tally.limit_s), 1000.0),
        each(lambda times: quantile_s(times, 0.99, tally.limit_s), 1000.0),
        each(lambda times: times.sum_s / times.count if times.count else None, 1000.0),
        shadow.tokens,
        None if shadow.cost is None else round(shadow.cost, 6),
    )


def proof_document(tallies: Mapping[str, Tally]) -> dict[str, object]:
    """Return the reports of all measured models, and of all models with the policy `shadow`, as a document."""
    return {
        "models": [report(name, tally) for name, tally in tallies.items() if tally.shadow is None],
        "shadow": [shadow_report(name, tally) for name, tally in tallies.items() if tally.shadow is not None],
    }


def _with(seen: GroupTimes, shadow: ShadowTimes, predicted: GroupTimes) -> GroupTimes:
    """Return the observed times, with predicted times in place of the times of the late requests."""
    late = shadow.late
    bins = Counter(seen.bins)
    bins.subtract(late.bins)
    bins.update(predicted.bins)
    return GroupTimes(
        seen.count,
        seen.misses - late.misses + predicted.misses,
        seen.sum_s - late.sum_s + predicted.sum_s,
        seen.squares - late.squares + predicted.squares,
        dict(bins),
    )


def quantile_s(times: GroupTimes, q: float, limit_s: float = math.inf) -> float | None:
    """Return a quantile of the times, between the ends of its bin; None without times, or at the limit."""
    allowed = (1 - q) * times.count
    above = times.count
    for index in sorted(index for index, count in times.bins.items() if count > 0):
        before, above = above, above - times.bins[index]
        if above <= allowed:
            low_s, high_s = upper_s(index - 1), upper_s(index)
            return None if high_s >= limit_s else low_s + (before - allowed) / (before - above) * (high_s - low_s)
    return None
