"""Results of the demo's traffic, hedging off and on, and their formatting. Pure.

Units: seconds. A failed request has no time to first token (TTFT) and counts only as failed.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

LATE_S = 0.1  # after which a request was sent too late: the machine is busy, and its queue is part of the times
_LATE_SHARE_MAX = 0.05  # of late requests, with which the times are still about the replicas
_TTFTS_MAX = 5000  # latest samples used for quantiles: 8 minutes of the demo's traffic
_ENOUGH = 500  # with fewer samples, the 99th percentile is one of the five slowest, and chance decides
_ROW = "{:<8}{:>8}{:>8}{:>8}{:>8}{:>7}{:>5}{:>7}{:>8}{:>11}"  # 78 columns: terminals have 80
_HEADER = _ROW.format("hedging", "requests", "p50 ms", "p90 ms", "p99 ms", "hedges", "won", "denied", "load", "budget")


class TtftSample(msgspec.Struct, frozen=True):
    """One successful request.

    Attributes:
        ttft_s: time from the scheduled start to the first content.
        attempts: number of upstream attempts until then.
        hedged: True if a backup was sent.
        won: True if the backup's answer was first.
        denied: True if the request was late and a backup was denied at least once.
    """

    ttft_s: float
    attempts: int
    hedged: bool
    won: bool
    denied: bool


class HedgeCount(msgspec.Struct, frozen=True):
    """Number of hedges that the budget allows together: now, and at most."""

    level: float
    cap: float


@dataclass(slots=True)
class ModeTally:
    """Results of all requests to one model; `late` counts the requests that were sent late, or not at all."""

    requests: int = 0
    failed: int = 0
    attempts: int = 0
    hedged: int = 0
    won: int = 0
    denied: int = 0
    late: int = 0
    ttfts_s: deque[float] = field(default_factory=lambda: deque(maxlen=_TTFTS_MAX))

    def add(self, sample: TtftSample | None) -> None:
        """Count a request; None for one that failed."""
        if sample is None:
            self.failed += 1
            return
        self.requests += 1
        self.attempts += sample.attempts
        self.hedged += sample.hedged
        self.won += sample.won
        self.denied += sample.denied
        self.ttfts_s.append(sample.ttft_s)

    @property
    def extra_load(self) -> float:
        """Attempts beyond one per request, as a share of the requests."""
        return self.attempts / self.requests - 1 if self.requests else 0.0

    def quantiles_s(self, *qs: float) -> list[float]:
        """Return exact quantiles by nearest rank; NaN without samples."""
        ordered = sorted(self.ttfts_s)
        return [ordered[math.ceil(q * len(ordered)) - 1] if ordered else math.nan for q in qs]


def late_share(off: ModeTally, on: ModeTally) -> float:
    """Return the share of the requests that were sent late."""
    return (off.late + on.late) / max(1, off.requests + off.failed + on.requests + on.failed)


def keeps_up(off: ModeTally, on: ModeTally) -> bool:
    """Return True if this machine sends the requests when they are due, so that the times are about the replicas."""
    return late_share(off, on) <= _LATE_SHARE_MAX


def table(off: ModeTally, on: ModeTally, budget: HedgeCount | None) -> list[str]:
    """Return the table: three lines, and a fourth if requests failed; without times that are not about the replicas."""
    fair = keeps_up(off, on)
    level = "-" if budget is None else f"{budget.level:.1f} of {budget.cap:.1f}"
    lines = [
        _HEADER,
        _ROW.format("off", off.requests, *_times(off, shown=fair), "-", "-", "-", "-", "-"),
        _ROW.format(
            "on", on.requests, *_times(on, shown=fair), on.hedged, on.won, on.denied, f"{on.extra_load:+.1%}", level
        ),
    ]
    if off.failed or on.failed:
        lines.append(f"failed: {off.failed} with hedging off, {on.failed} with it on")
    return lines


def line(elapsed_s: float, off: ModeTally, on: ModeTally, budget: HedgeCount | None) -> str:
    """Return the same results in one line, for a log."""
    fair = keeps_up(off, on)
    parts: Sequence[str] = (
        f"{elapsed_s:.0f} s",
        f"off: {off.requests} requests, TTFT p50/p90/p99 {'/'.join(_times(off, shown=fair))} ms",
        f"on: {on.requests} requests, {'/'.join(_times(on, shown=fair))} ms",
        f"hedges {on.hedged}, won {on.won}, denied {on.denied}, load {on.extra_load:+.1%}",
        f"budget {'-' if budget is None else f'{budget.level:.1f}'}",
        *([f"failed {off.failed} and {on.failed}"] if off.failed or on.failed else []),
    )
    return " | ".join(parts)


def summary(off: ModeTally, on: ModeTally) -> str:
    """Return the comparison of the 99th percentiles; the reason against one if this machine is too busy."""
    if not keeps_up(off, on):
        return (
            f"no comparison: this machine cannot keep the rate; {late_share(off, on):.0%} of the requests were sent "
            f"more than {LATE_S:g} s late, so the times are of its own queue. Run the demo on a machine with less load"
        )
    [off_p99], [on_p99] = (_times(tally)[-1:] for tally in (off, on))
    few = "" if min(off.requests, on.requests) >= _ENOUGH else " (from few requests so far)"
    return f"p99: {off_p99} ms with hedging off, {on_p99} ms with {on.extra_load:.1%} more upstream requests{few}"


def _times(tally: ModeTally, *, shown: bool = True) -> list[str]:
    if not shown:
        return ["-", "-", "-"]
    return ["-" if math.isnan(value_s) else f"{1000 * value_s:,.0f}" for value_s in tally.quantiles_s(0.5, 0.9, 0.99)]
