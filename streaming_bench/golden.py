"""Golden rows: small comparisons with recorded figures, so that no change of a figure goes unnoticed.

Units: as in simulation/summary.py.
"""

import json
from pathlib import Path
from typing import Final

from streaming_bench.published import threshold_lab
from streaming_bench.report.results import csv_text
from streaming_bench.simulation.comparison import ComparisonPlan, compare
from streaming_bench.simulation.scenario import FOLDER, load, with_requests

REQUESTS: Final = 2_000
POLICIES: Final = ("adaptive", "library", "off")
KEYS: Final = (
    *("p50", "p90", "p95", "p99", "p999", "mean"),
    *("hedges", "win_rate", "extra_requests", "extra_tokens", "wasted_s", "rate_limited"),
)


def golden_rows(workload: str) -> dict[str, dict[str, object]]:
    """Return a workload's rows by policy."""
    result = compare(with_requests(load(workload), REQUESTS), ComparisonPlan(POLICIES, (1,)))
    rows = result["rows"]
    assert isinstance(rows, list)
    return {row["policy"]: {key: row[key] for key in KEYS} for row in rows}


def golden_lab() -> dict[str, str]:
    """Return the files of the deterministic lab by name: the same bytes on every version of Python."""
    return {
        f"{name}.csv": csv_text(heads, rows)
        for name, (heads, rows) in threshold_lab.tables(threshold_lab.draw(threshold_lab.SEED)).items()
    }


def write_golden(folder: Path) -> None:
    """Write every workload's rows, and the lab's files into the folder `lab`."""
    for name, text in golden_lab().items():
        (folder / "lab" / name).write_text(text, encoding="utf-8", newline="\n")
    for path in sorted(FOLDER.glob("*.toml")):
        rows = golden_rows(path.stem)
        (folder / f"{path.stem}.json").write_text(json.dumps(rows, indent=1) + "\n")
