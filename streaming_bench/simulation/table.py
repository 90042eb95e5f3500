"""Rows as a table for a terminal or a Markdown page. Pure: returns lines.

Units: as in the rows: milliseconds, shares as fractions of 1 (shown as per cent).
"""

from collections.abc import Mapping, Sequence

from streaming_bench.report.grid import Grid
from streaming_bench.simulation.summary import LATENCIES

_SHARES = {"hedges": "hedges", "win_rate": "won", "extra_requests": "requests +", "extra_tokens": "tokens +"}
_COUNTS = {"wasted_s": "wasted s", "rate_limited": "429s"}
_RARE = {
    "late": "late",
    "rate_limited_hedges": "429s of hedges",
    "wasted_prefill": "wasted prefill",
    "failed": "failed",
}


def lines(rows: Sequence[Mapping[str, object]], part: str | None = None) -> list[str]:
    """The table of all policies; a latency's ratio to `off` stands in the line below it.

    Args:
        rows: as `summary.row` makes them.
        part: of the requests, None for the rows themselves.
    """
    bodies = [row if part is None else _part(row, part) for row in rows]
    rare = {key: title for key, title in _RARE.items() if any(body[key] for body in bodies)}
    heads = ["policy", *LATENCIES, *_SHARES.values(), *_COUNTS.values(), *rare.values()]
    cells: list[list[str]] = []
    for row, body in zip(rows, bodies, strict=True):
        latencies = [_short(body[name]) for name in LATENCIES]
        shares = [_percent(body[name]) for name in _SHARES]
        counts = [_short(body[name]) for name in _COUNTS]
        rarities = [_percent(body[key]) if key == "wasted_prefill" else _short(body[key]) for key in rare]
        cells.append([str(row["policy"]), *latencies, *shares, *counts, *rarities])
        ratios = body.get("to_off")
        if isinstance(ratios, Mapping) and row["policy"] != "off":
            cells.append(
                ["", *(f"{ratios[name]:.2f}x" for name in LATENCIES), *[""] * (len(heads) - 1 - len(LATENCIES))]
            )
    return Grid(heads, cells).lines()


def _part(row: Mapping[str, object], name: str) -> Mapping[str, object]:
    parts = row["parts"]
    assert isinstance(parts, Mapping)
    part = parts[name]
    assert isinstance(part, Mapping)
    return part


def _short(value: object) -> str:
    """Three digits that matter, whole numbers from 100 on."""
    assert isinstance(value, float)
    return f"{value:.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def _percent(value: object) -> str:
    assert isinstance(value, float)
    return f"{100 * value:.2f}%"
