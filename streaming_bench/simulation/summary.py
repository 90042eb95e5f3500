"""Figures of simulated runs, their means over seeds, and the table of policies. Pure.

A figure of a row is the mean over the seeds; a ratio is the geometric mean of the seeds' ratios to `off` on the same
samples. Quantiles interpolate, and count answered requests only. Units: milliseconds in rows, shares as fractions
of 1, seconds where a name ends in _s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streaming_bench.report.grid import Grid, percent, short
from streaming_bench.report.stats import geometric_mean
from streaming_bench.simulation.runner import SimulatedRun

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
TOTALS: Final = {"total": "T mean", "total_p95": "T p95"}
"""Times to the end of the answer; columns that are shown only if answers take longer than their first token."""

LATENCIES: Final = (*QUANTILES, "mean", *TOTALS)

_SHARES: Final = {"hedges": "hedges", "win_rate": "won", "extra_requests": "requests +", "extra_tokens": "tokens +"}
_SLO: Final = {"over_slo": "over SLO"}
_BILL: Final = {"bill": "bill", "bill_max": "highest bill", "cheap": "cheap first", "dear": "dear first"}
"""Columns of workloads with tiers: the bill as a share of the bill on the usual tier, and the first tiers."""
_COUNTS: Final = {"wasted_s": "wasted s", "rate_limited": "429s"}
_RARE: Final = {
    "late": "late",
    "rate_limited_primaries": "429s of primaries",
    "rate_limited_hedges": "429s of hedges",
    "wasted_prefill": "wasted prefill",
    "failed": "failed",
}
"""Columns that are shown only if one of their values is not 0."""

_STRETCH: Final = 1_000  # requests of which the highest bill is shown

SimulatedFigures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Subset:
    """Requests that are reported on their own.

    Attributes:
        name: title of the table.
        start_s, end_s: span of the arrivals.
        without: spans of which the arrivals are excluded.
        tokens_max: bound below which the length of the prompt lies.
        late_s: bound above which an answer counts as late.
        slo_s: TTFT above which a request is over the SLO, as is one without an answer; infinite for none.
    """

    name: str = "all"
    start_s: float = 0.0
    end_s: float = np.inf
    without: tuple[tuple[float, float], ...] = ()
    tokens_max: float = np.inf
    late_s: float = np.inf
    slo_s: float = np.inf


def chosen(run: SimulatedRun, subset: Subset) -> NDArray[np.bool_]:
    """Return for each request of a run if it belongs to a subset."""
    arrived_s = run.columns["arrived_s"]
    found = (arrived_s >= subset.start_s) & (arrived_s < subset.end_s) & (run.columns["tokens"] < subset.tokens_max)
    for start_s, end_s in subset.without:
        found &= (arrived_s < start_s) | (arrived_s >= end_s)
    return found


def figures(run: SimulatedRun, subset: Subset) -> SimulatedFigures:
    """Reduce one run to the figures of a subset of its requests."""
    is_chosen = chosen(run, subset)
    picked = {name: values[is_chosen] for name, values in run.columns.items()}
    answered = picked["ttft_s"][np.isfinite(picked["ttft_s"])]
    ended = picked["total_s"][np.isfinite(picked["total_s"])]
    count = len(picked["ttft_s"])
    hedges, tokens = float(picked["hedges"].sum()), float(picked["tokens"].sum())
    quantiles = np.quantile(answered, list(QUANTILES.values())) if len(answered) else np.full(len(QUANTILES), np.nan)
    computed, wasted = run.prefill
    return {
        **{name: 1000 * float(value) for name, value in zip(QUANTILES, quantiles, strict=True)},
        "mean": 1000 * float(answered.mean()) if len(answered) else float("nan"),
        "total": 1000 * float(ended.mean()) if len(ended) else float("nan"),
        "total_p95": 1000 * float(np.quantile(ended, 0.95)) if len(ended) else float("nan"),
        "requests": float(count),
        "late": float((answered > subset.late_s).sum()),
        "failed": float(count - len(answered)),
        "failed_share": float(count - len(answered)) / count if count else 0.0,
        "hedges": hedges / count if count else 0.0,
        "win_rate": float(picked["won"].sum()) / hedges if hedges else 0.0,
        "extra_requests": float(picked["extra"].sum()) / count if count else 0.0,
        "extra_tokens": float((picked["tokens"] * picked["hedges"]).sum()) / tokens if tokens else 0.0,
        "wasted_s": float(picked["wasted_s"].sum()),
        "rate_limited": float(picked["limited"].sum()),
        "rate_limited_primaries": float((picked["limited"] - picked["limited_backups"]).sum()),
        "rate_limited_hedges": float(picked["limited_backups"].sum()),
        "wasted_prefill": wasted / computed if computed else 0.0,
        **_bill(picked),
        **({"over_slo": float((picked["ttft_s"] > subset.slo_s).mean())} if subset.slo_s < np.inf and count else {}),
    }


def _bill(picked: Mapping[str, NDArray[np.float64]]) -> SimulatedFigures:
    """Return the figures of a workload with tiers; none without tiers."""
    usual, cost = picked["usual_cost"], picked["cost"]
    if not usual.any():
        return {}
    count = len(usual)
    stretch = min(_STRETCH, count)
    starts = range(0, count - stretch + 1, max(1, stretch // 2))
    ratios = [float(cost[at : at + stretch].sum() / usual[at : at + stretch].sum()) for at in starts]
    shares = {name: float(picked[name].mean()) for name in ("cheap", "dear")}
    return {"bill": float(cost.sum() / usual.sum()), "bill_max": max(ratios), **shares}


def row(
    policy: str,
    seeds: Mapping[str, Sequence[SimulatedFigures]],
    off: Mapping[str, Sequence[SimulatedFigures]] | None,
) -> dict[str, object]:
    """Return one policy's row.

    Args:
        seeds: the seeds' figures by the name of the subset; the first subset, which has requests, is the row itself.
        off: the same figures of `off`; None if `off` was not run.

    Returns:
        Means over the seeds; `seeds`, the figures of each; `to_off`, ratios with 95 % intervals; and `parts`, the same
        of the other subsets.
    """
    parts: dict[str, dict[str, object]] = {}
    for name, found in seeds.items():
        if any(not each["requests"] for each in found):
            continue  # the run ends before this subset begins
        parts[name] = {key: float(np.mean([each[key] for each in found])) for key in found[0]}
        parts[name]["seeds"] = found
        if off is not None:
            pairs = list(zip(found, off[name], strict=True))
            parts[name]["to_off"] = {
                key: geometric_mean([one[key] / base[key] for one, base in pairs])._asdict() for key in LATENCIES
            }
    first, *others = parts
    return {"policy": policy, **parts[first], "parts": {name: parts[name] for name in others}}


def table(rows: Sequence[Mapping[str, object]], part: str | None = None) -> Grid:
    """Return the table of all policies; the ratios to `off` are in a line below each policy.

    Args:
        rows: results of `row`.
        part: name of a subset; None for the rows themselves.
    """
    bodies = [row if part is None else _mapping(_mapping(row["parts"])[part]) for row in rows]
    rare = {key: title for key, title in _RARE.items() if any(body[key] for body in bodies)}
    slo = {key: title for key, title in (_SLO | _BILL).items() if key in bodies[0]}
    latencies = {key: TOTALS.get(key) for key in LATENCIES if key not in TOTALS or has_totals(bodies)}
    titles = {**latencies, **slo, **_SHARES, **_COUNTS, **rare}
    cells: list[list[str]] = []
    for row, body in zip(rows, bodies, strict=True):
        cells.append([str(row["policy"]), *(_cell(key, body[key]) for key in titles)])
        if row["policy"] != "off" and "to_off" in body:
            ratios = _mapping(body["to_off"])
            cells.append(["", *(f"{_mapping(ratios[key])['value']:.2f}x" if key in ratios else "" for key in titles)])
    return Grid(["policy", *(title or key for key, title in titles.items())], cells)


def has_totals(rows: Sequence[Mapping[str, object]]) -> bool:
    """Return True if the answers of a table take longer than their first tokens."""
    return any(row["total"] != row["mean"] for row in rows)


def _mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, Mapping)
    return value


def _cell(key: str, value: object) -> str:
    assert isinstance(value, float)
    return (
        percent(value, 2) if key in _SHARES or key in _SLO or key in _BILL or key == "wasted_prefill" else short(value)
    )
