"""The table of the cost bench, and the recorded run to compare it with.

Units: as in rows.py.
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from streaming_bench.report.grid import Grid, short
from streaming_bench.research.overhead.rows import CostRow

_COUNT = "k instr."
_HEADS = (
    *("", "unit", "gateway", "user + kernel", _COUNT, "nginx", "user + kernel", _COUNT, "of nginx"),
    *("recorded", "of recorded"),
)


def machine() -> dict[str, object]:
    """Return the facts on which the figures depend."""
    found: dict[str, object] = {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": [round(each, 1) for each in os.getloadavg()],  # before the run: other work makes caches cold
    }
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            found["cpu"] = value.strip()
            break
    return found


def write(file: Path, rows: Sequence[CostRow], machine_facts: Mapping[str, object]) -> None:
    """Record a run; rows of earlier runs that were not measured in this one remain."""
    figures = _recorded_rows(file)
    figures |= {row.name: {key: _rounded(value) for key, value in row._asdict().items()} for row in rows}
    file.write_text(json.dumps({"machine": machine_facts, "rows": figures}, indent=1) + "\n", encoding="utf-8")


def read(file: Path) -> dict[str, float]:
    """Return the gateway's figures of the recorded run; empty without a recorded run."""
    return {name: float(str(row["ours"])) for name, row in _recorded_rows(file).items()}


def _recorded_rows(file: Path) -> dict[str, dict[str, object]]:
    if not file.exists():
        return {}
    rows: dict[str, dict[str, object]] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return rows


def table(rows: Sequence[CostRow], recorded: Mapping[str, float]) -> Grid:
    """Return the table; a ratio below 1 means cheaper than nginx, or cheaper than the recorded run.

    Without hardware counters there are no columns for instructions.
    """
    counted = any(row.instructions is not None for row in rows)
    columns = [position for position, head in enumerate(_HEADS) if counted or head != _COUNT]
    lines = [_HEADS, *(_cells(row, recorded.get(row.name)) for row in rows)]
    heads, *cells = [tuple(line[position] for position in columns) for line in lines]
    return Grid(heads, cells)


def _cells(row: CostRow, before: float | None) -> tuple[str, ...]:
    return (
        row.name,
        row.unit,
        _number(row.ours),
        _split(row.ours, row.user),
        _number(row.instructions),
        _number(row.nginx),
        _split(row.nginx, row.nginx_user),
        _number(row.nginx_instructions),
        _ratio(row.ours, row.nginx),
        _number(before),
        _ratio(row.ours, before),
    )


def _number(value: float | None) -> str:
    return "" if value is None else short(value)


def _split(value: float | None, user: float | None) -> str:
    return "" if value is None or user is None else f"{short(user)} + {short(value - user)}"


def _ratio(value: float, other: float | None) -> str:
    return f"{value / other:.2f}" if other is not None and other > 0 and value > 0 else ""


def _rounded(value: object) -> object:
    return round(value, 4) if isinstance(value, float) else value
