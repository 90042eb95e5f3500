"""From records to rows: percentiles, shares and their ratios to `off`. Pure.

Every figure of a row is the mean of the seeds' figures; a ratio is the geometric mean of the seeds' ratios to `off` on
the same samples. Units: milliseconds in rows, shares as fractions of 1, seconds where a name says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming_bench.simulation.runner import SimulatedRequest, SimulatedRun

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
LATENCIES: Final = (*QUANTILES, "mean")

Figures = dict[str, float]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Subset:
    """A part of the requests that is reported by itself.

    Attributes:
        name: for people.
        start_s, end_s: those that arrive in between;
        without: but not those that arrive in one of these spans;
        tokens_max: and only those with shorter prompts.
        late_s: answers later than this are counted.
    """

    name: str
    start_s: float = 0.0
    end_s: float = np.inf
    without: tuple[tuple[float, float], ...] = ()
    tokens_max: float = np.inf
    late_s: float = np.inf


def figures(run: SimulatedRun, part: Subset) -> Figures:
    """What one run came to, for a part of its requests."""
    columns = np.array(run.records, dtype=float).T
    column = dict(zip(SimulatedRequest._fields, columns, strict=True))
    chosen = _chosen(column["arrived_s"], column["tokens"], part)
    picked = {name: values[chosen] for name, values in column.items()}
    answered = picked["ttft_s"][np.isfinite(picked["ttft_s"])]
    count = len(picked["ttft_s"])
    hedges, tokens = float(picked["hedges"].sum()), float(picked["tokens"].sum())
    quantiles = np.quantile(answered, list(QUANTILES.values())) if len(answered) else np.full(len(QUANTILES), np.nan)
    row = {name: 1000 * float(value) for name, value in zip(QUANTILES, quantiles, strict=True)}
    row["mean"] = 1000 * float(answered.mean()) if len(answered) else float("nan")
    row["requests"] = float(count)
    row["late"] = float((answered > part.late_s).sum())
    row["failed"] = float(count - len(answered))
    row["hedges"] = hedges / count if count else 0.0
    row["win_rate"] = float(picked["won"].sum()) / hedges if hedges else 0.0
    row["extra_requests"] = float(picked["extra"].sum()) / count if count else 0.0
    row["extra_tokens"] = float((picked["tokens"] * picked["hedges"]).sum()) / tokens if tokens else 0.0
    row["wasted_s"] = float(picked["wasted_s"].sum())
    row["rate_limited"] = float(picked["limited"].sum())
    row["rate_limited_hedges"] = float(picked["limited_backups"].sum())
    computed, wasted = run.prefill
    row["wasted_prefill"] = wasted / computed if computed else 0.0
    return row


def _chosen(arrived_s: NDArray[np.float64], tokens: NDArray[np.float64], part: Subset) -> Mask:
    chosen: Mask = (arrived_s >= part.start_s) & (arrived_s < part.end_s) & (tokens < part.tokens_max)
    for start_s, end_s in part.without:
        chosen &= (arrived_s < start_s) | (arrived_s >= end_s)
    return chosen


def mean(seeds: Sequence[Figures]) -> Figures:
    """The mean of each figure over the seeds."""
    return {name: float(np.mean([figures_[name] for figures_ in seeds])) for name in seeds[0]}


def ratios(seeds: Sequence[Figures], off: Sequence[Figures]) -> Figures:
    """Each latency as a ratio to `off`: geometric mean over the seeds, pair by pair."""
    return {name: _geometric([s[name] / o[name] for s, o in zip(seeds, off, strict=True)]) for name in LATENCIES}


def _geometric(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def row(
    policy: str, seeds: Mapping[str, Sequence[Figures]], off: Mapping[str, Sequence[Figures]] | None
) -> dict[str, object]:
    """One policy's row.

    Args:
        policy: its name.
        seeds: for each part of the requests, each seed's figures; the first part is the row itself.
        off: the same of `off`, None if that was not run.
    """
    parts: dict[str, dict[str, object]] = {}
    for name, figures_ in seeds.items():
        if any(not figure["requests"] for figure in figures_):
            continue  # a short run that ends before it
        part: dict[str, object] = {**mean(figures_)}
        if off is not None:
            part["to_off"] = ratios(figures_, off[name])
        parts[name] = part
    first, *others = parts
    return {"policy": policy, **parts[first], "parts": {name: parts[name] for name in others}}
