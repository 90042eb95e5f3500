"""`update-golden`: writes the golden tables of the tests and prints the changes. Units: as in the tables."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from streaming_bench.report.results import csv_text
from streaming_bench.research.published import threshold_lab
from streaming_bench.simulation.comparison import ComparisonPlan, compare
from streaming_bench.simulation.scenario import load, names

REQUESTS: Final = 2_000
POLICIES: Final = ("adaptive", "library", "off")
KEYS: Final = (
    *("p50", "p90", "p95", "p99", "p999", "mean"),
    *("hedges", "win_rate", "extra_requests", "extra_tokens", "wasted_s", "rate_limited"),
)


def golden_rows(workload: str) -> dict[str, dict[str, float]]:
    """Return a workload's rows by policy."""
    result = compare(load(workload, REQUESTS), ComparisonPlan(POLICIES, (1,)))
    rows = result["rows"]
    assert isinstance(rows, list)
    return {row["policy"]: {key: row[key] for key in KEYS} for row in rows}


def golden_lab() -> dict[str, str]:
    """Return the files of the deterministic lab by name: the same bytes on every version of Python."""
    return {
        f"{name}.csv": csv_text(heads, rows)
        for name, (heads, rows) in threshold_lab.tables(threshold_lab.draw(threshold_lab.SEED)).items()
    }


def write_golden(folder: Path) -> list[str]:
    """Write every workload's rows, and the lab's files into the folder `lab`; return a line for each change."""
    changes = []
    for name, text in golden_lab().items():
        file = folder / "lab" / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            changes.append(f"lab/{name} has changed")
        file.write_text(text, encoding="utf-8", newline="\n")
    for name in map(str.lower, names("W")):
        file, rows = folder / f"{name}.json", golden_rows(name)
        old = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(json.dumps(rows, indent=1) + "\n")
        changes += [
            f"{name} {policy}: {_compared(old.get(policy), rows.get(policy))}"
            for policy in dict.fromkeys((*old, *rows))
            if old.get(policy) != rows.get(policy)
        ]
    return changes


def _compared(before: Mapping[str, float] | None, after: Mapping[str, float] | None) -> str:
    if before is None or after is None:
        return "new" if before is None else "removed"
    times = (f"{key} {before[key]:.2f} -> {after[key]:.2f} ms" for key in ("p50", "p99", "mean"))
    return ", ".join((*times, f"hedges {before['hedges']:.2%} -> {after['hedges']:.2%}"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("folder", type=Path, help="folder for the tables: tests/streaming_bench/golden")


def run(args: argparse.Namespace) -> None:
    """Write the tables, and print the TTFT and the hedges of each changed row before and after."""
    print("\n".join(write_golden(args.folder)) or "all rows are unchanged")
