"""Figures of measured runs, computed from their records. Pure.

Units: milliseconds where a name ends in _ms, tokens a second, shares as fractions of 1. A failed request counts as one
that was never answered: quantiles may be infinite, and failures are also counted by class.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from streaming_bench.report.records import Record, Run
from streaming_bench.report.stats import QUANTILES, Blocks, Estimate, in_blocks, quantile, ratio

NEVER: Final = 0.005  # highest extra load of a policy that never hedges
ALWAYS: Final = 0.9  # lowest extra load of a policy that always hedges
BLOCK: Final = 50  # requests resampled together in a run without blocks
LAG_MS_MAX: Final = 5.0  # p99 of the loop's delay above which a client measures itself

WAITS: Final[dict[str, tuple[str, Callable[[Record], float]]]] = {
    "ttfb": ("TTFB", lambda record: record.ttfb_s),
    "ttft": ("TTFT", lambda record: record.ttft_s),
    "whole": ("end to end", lambda record: record.whole_s),
}
"""Waits by their key in figures: title, and function that reads the wait from a record."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a run.

    Attributes:
        name: name of the run.
        requests: number of requests.
        waits: milliseconds by key of WAITS and name of a quantile.
        gap_ms: p99 over the answers' longest gaps.
        tokens_per_s: median over the answers.
        tokens: tokens generated in all answers.
        errors: failures by class.
        hedged: requests with a backup, by their response headers.
        won: requests that the backup answered.
        extra_load: upstream requests per request minus 1, counted by the replicas; NaN without counts.
        wasted_tokens: tokens sent by replicas and received by no client; NaN without counts.
        learned_ms: hedge delay at the end of the run; NaN without a delay.
        lag_ms: p99 of the delay of the client's event loop.
    """

    name: str
    requests: int
    waits: dict[str, dict[str, Estimate]]
    gap_ms: float
    tokens_per_s: float
    tokens: int
    errors: dict[str, int]
    hedged: int
    won: int
    extra_load: float
    wasted_tokens: float
    learned_ms: float
    lag_ms: float

    def json(self) -> dict[str, object]:
        """Return the figures as JSON values."""
        waits = {
            key: {share: {"ms": e.value, "low_ms": e.low, "high_ms": e.high} for share, e in quantiles.items()}
            for key, quantiles in self.waits.items()
        }
        rest = {name: getattr(self, name) for name in self.__slots__ if name != "waits"}
        return {**rest, "waits": waits}


def figures(run: Run) -> Figures:
    """Compute the figures of a run."""
    records = run.records
    rates = [record.tokens_per_s for record in records if not math.isnan(record.tokens_per_s)]
    gaps = [1000 * record.gap_s_max for record in records if not record.error and record.events > 1]
    tokens = sum(record.tokens for record in records)
    upstream, generated = _number(run, "upstream_requests"), _number(run, "upstream_tokens")
    return Figures(
        name=run.name,
        requests=len(records),
        waits={
            key: {
                name: quantile([1000 * read(record) for record in records], share) for name, share in QUANTILES.items()
            }
            for key, (_, read) in WAITS.items()
        },
        gap_ms=quantile(gaps, 0.99).value,
        tokens_per_s=float(np.median(rates)) if rates else math.nan,
        tokens=tokens,
        errors=dict(sorted(Counter(record.error for record in records if record.error).items())),
        hedged=sum(record.result.startswith("backup_") for record in records),
        won=sum(record.result == "backup_won" for record in records),
        extra_load=upstream / len(records) - 1 if records else math.nan,
        wasted_tokens=generated - tokens,
        learned_ms=_number(run, "learned_delay_ms"),
        lag_ms=_number(run, "lag_p99_ms"),
    )


def _number(run: Run, name: str) -> float:
    value = run.facts.get(name)
    return float(value) if isinstance(value, (int, float)) else math.nan


def extra_load(run: Run) -> Estimate:
    """Return the extra load of a run, as the replicas counted it; the interval comes from the clients' counts."""
    records = sorted(run.records, key=lambda record: record.number)
    attempts = in_blocks([float(record.attempts) for record in records], BLOCK)
    counted = ratio(Blocks(attempts, None), Blocks([[1.0] * len(block) for block in attempts], None), 0, paired=True)
    value = figures(run).extra_load
    return Estimate(value, value + counted.low - counted.value, value + counted.high - counted.value)


def compare_runs(above: Run, below: Run, key: str, share: float | None) -> Estimate:
    """Return the ratio of a wait between two runs.

    Args:
        above, below: numerator and denominator; runs that took turns by blocks are compared block by block.
        key: key of WAITS.
        share: quantile; None for the mean.
    """
    one, other = _blocks(above, key, share), _blocks(below, key, share)
    return ratio(one, other, 0, paired=len(one.blocks) == len(other.blocks))


def _blocks(run: Run, key: str, share: float | None) -> Blocks:
    read = WAITS[key][1]
    ordered = sorted(run.records, key=lambda record: record.number)
    if len({record.block for record in ordered}) > 1:
        blocks: dict[int, list[float]] = {}
        for record in ordered:
            blocks.setdefault(record.block, []).append(read(record))
        return Blocks(list(blocks.values()), share)
    values: Sequence[float] = [read(record) for record in ordered]
    return Blocks(in_blocks(values, BLOCK), share)


def answered(records: Sequence[Record]) -> list[Record]:
    """Return the records with a first content."""
    return [record for record in records if math.isfinite(record.ttft_s)]
