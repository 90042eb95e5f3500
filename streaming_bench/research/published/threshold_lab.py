"""The cost table of the deterministic lab: gain and cost of a threshold at p90, p95 or p99. Pure.

The lab's sampler by its description: 99 % normal(20, 5) ms within 1 to 100, 1 % exponential(500) ms within 200 to
3,000, whole milliseconds, 1,000 requests a second for 5 s. A second attempt starts at the threshold with a new draw;
the loser is cancelled immediately, and its time so far is wasted. The published wasted work follows from that rule: 31
hedges at 200 ms that all win waste 31 * (200 + 20) ms.

The same bytes on every version of Python and every machine: only `random.Random`, sorting and whole numbers are used.
Units: whole milliseconds, shares in per cent as in the published table.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

SEED: Final = 1
PER_SECOND: Final = 1000
SECONDS: Final = 5
THRESHOLDS: Final = {"p90": 0.90, "p95": 0.95, "p99": 0.99}
COST_HEADS: Final = (
    *("threshold", "threshold_ms", "baseline_p99_ms", "hedged_p99_ms", "p99_improvement_pct", "extra_load_pct"),
    *("hedged_requests", "total_requests", "wasted_work_ms", "wasted_completions"),
)
SECOND_HEADS: Final = ("elapsed_s", "p50_ms", "p95_ms", "p99_ms", "p999_ms", "throughput_rps")

_STRAGGLERS: Final = 0.01


@dataclass(frozen=True, slots=True)
class LabOptions:
    """The options of the lab's command.

    Attributes:
        seconds: duration in whole seconds.
        per_second: requests a second: the lab takes 100 for each unit of its concurrency.
        interval_s: length in seconds of the intervals of the table over time.
        threshold: the one of THRESHOLDS that is written over time; None for all.
    """

    seconds: int = SECONDS
    per_second: int = PER_SECOND
    interval_s: int = 1
    threshold: str | None = None

    @property
    def thresholds(self) -> Sequence[str]:
        """Thresholds of the tables over time."""
        return tuple(THRESHOLDS) if self.threshold is None else (self.threshold,)


PUBLISHED: Final = LabOptions()


@dataclass(frozen=True, slots=True)
class LabDraws:
    """Draws of a run: the time of each request's first attempt, and of a possible second one."""

    primaries_ms: Sequence[int]
    backups_ms: Sequence[int]


@dataclass(frozen=True, slots=True)
class ThresholdCost:
    """One row of the cost table."""

    threshold: str
    threshold_ms: int
    baseline_p99_ms: int
    hedged_p99_ms: int
    hedged_requests: int
    total_requests: int
    wasted_work_ms: int
    wasted_completions: int

    @property
    def cells(self) -> tuple[str | int, ...]:
        """Cells in the order of `COST_HEADS`; per cents have one digit, computed in whole numbers."""
        gained = self.baseline_p99_ms - self.hedged_p99_ms
        return (
            *(self.threshold, self.threshold_ms, self.baseline_p99_ms, self.hedged_p99_ms),
            *(_percent(gained, self.baseline_p99_ms), _percent(self.hedged_requests, self.total_requests)),
            *(self.hedged_requests, self.total_requests, self.wasted_work_ms, self.wasted_completions),
        )


def draw(seed: int, options: LabOptions = PUBLISHED) -> LabDraws:
    """Draw a run."""
    rng = random.Random(seed)
    count = options.per_second * options.seconds
    return LabDraws([_sample_ms(rng) for _ in range(count)], [_sample_ms(rng) for _ in range(count)])


def threshold_cost(lab: LabDraws, threshold: str) -> ThresholdCost:
    """Return a row; the threshold is that quantile of the same run without hedging."""
    baseline = sorted(lab.primaries_ms)
    threshold_ms = quantile(baseline, THRESHOLDS[threshold])
    wasted_ms = completed = 0
    for primary_ms, backup_ms in _late(lab, threshold_ms):
        done_ms = threshold_ms + backup_ms
        wasted_ms += done_ms if done_ms < primary_ms else primary_ms - threshold_ms
        completed += done_ms == primary_ms  # in the same millisecond: too late to be cancelled
    return ThresholdCost(
        threshold=threshold,
        threshold_ms=threshold_ms,
        baseline_p99_ms=quantile(baseline, 0.99),
        hedged_p99_ms=quantile(sorted(hedged_ms(lab, threshold_ms)), 0.99),
        hedged_requests=sum(1 for _ in _late(lab, threshold_ms)),
        total_requests=len(lab.primaries_ms),
        wasted_work_ms=wasted_ms,
        wasted_completions=completed,
    )


def hedged_ms(lab: LabDraws, threshold_ms: int) -> list[int]:
    """Return the time of each request with a second attempt at the threshold."""
    return [
        min(primary_ms, threshold_ms + backup_ms) if primary_ms > threshold_ms else primary_ms
        for primary_ms, backup_ms in zip(lab.primaries_ms, lab.backups_ms, strict=True)
    ]


def by_interval(latencies_ms: Sequence[int], options: LabOptions = PUBLISHED) -> Iterator[Sequence[str | int]]:
    """Yield a row for each interval, in the order of `SECOND_HEADS`."""
    length = options.interval_s * options.per_second
    for begin in range(0, len(latencies_ms), length):
        part = sorted(latencies_ms[begin : begin + length])
        elapsed_s = (begin + len(part)) // options.per_second
        yield (elapsed_s, *(quantile(part, q) for q in (0.5, 0.95, 0.99, 0.999)), options.per_second)


def tables(
    lab: LabDraws, options: LabOptions = PUBLISHED
) -> dict[str, tuple[Sequence[str], list[Sequence[str | int]]]]:
    """Return the heads and rows of every table by the name of its file."""
    rows = {threshold: threshold_cost(lab, threshold) for threshold in THRESHOLDS}
    late = {f"hedged-{name}": hedged_ms(lab, rows[name].threshold_ms) for name in options.thresholds}
    seconds = {
        name: (SECOND_HEADS, list(by_interval(latencies_ms, options)))
        for name, latencies_ms in ({"baseline": lab.primaries_ms} | late).items()
    }
    return {"cost-table": (COST_HEADS, [row.cells for row in rows.values()]), **seconds}


def quantile(ascending: Sequence[int], q: float) -> int:
    """Return the nearest rank: the smallest value that at most a share 1 - q exceeds."""
    return ascending[max(0, math.ceil(q * len(ascending)) - 1)]


def _sample_ms(rng: random.Random) -> int:
    if rng.random() < _STRAGGLERS:
        return round(min(3000.0, max(200.0, rng.expovariate(1 / 500))))
    return round(min(100.0, max(1.0, rng.gauss(20.0, 5.0))))


def _late(lab: LabDraws, threshold_ms: int) -> Iterator[tuple[int, int]]:
    """Return the pairs with a late first attempt."""
    return (pair for pair in zip(lab.primaries_ms, lab.backups_ms, strict=True) if pair[0] > threshold_ms)


def _percent(part: int, whole: int) -> str:
    """Return a share with one digit, halves rounded up, in whole numbers."""
    tenths = (2000 * part + whole) // (2 * whole)
    return f"{tenths // 10}.{tenths % 10}"
