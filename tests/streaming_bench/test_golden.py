"""`ttft-bench update-golden`: the files that it writes and the changes that it prints."""

import json
import shutil
from pathlib import Path

import pytest

from streaming_bench.__main__ import main
from streaming_bench.research.commands import update_golden as golden

RECORDED = Path(__file__).parent / "golden"
Rows = dict[str, dict[str, float]]


def recorded(workload: str) -> Rows:
    """Return the recorded rows of a workload, as a simulation without changes would."""
    rows: Rows = json.loads((RECORDED / f"{workload}.json").read_text())
    return rows


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the recorded files; the lab and the simulation are replaced by what is recorded."""
    lab = {path.name: path.read_text(encoding="utf-8") for path in (RECORDED / "lab").glob("*.csv")}
    monkeypatch.setattr(golden, "golden_lab", lambda: lab)
    monkeypatch.setattr(golden, "golden_rows", recorded)
    return Path(shutil.copytree(RECORDED, tmp_path / "golden"))


def test_unchanged_rows_are_not_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a change the files stay equal to the byte, and one line is printed."""
    main(["update-golden", str(folder)])
    assert capsys.readouterr().out == "all rows are unchanged\n"
    for path in (path for path in RECORDED.rglob("*.*") if path.is_file()):
        assert (folder / path.relative_to(RECORDED)).read_bytes() == path.read_bytes(), path


def test_changed_rows_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each changed row is printed before and after; new and removed rows and changed lab files are named."""
    before = recorded("w1")
    before["adaptive"] |= {"p50": 4.04, "p99": 20.0, "mean": 6.5, "hedges": 0.1}
    before["older"] = before.pop("off")
    (folder / "w1.json").write_text(json.dumps(before))
    changed = min((folder / "lab").glob("*.csv"))
    changed.write_text("other")
    main(["update-golden", str(folder)])
    assert capsys.readouterr().out.splitlines() == [
        f"lab/{changed.name} has changed",
        "w1 adaptive: p50 4.04 -> 5.04 ms, p99 20.00 -> 17.28 ms, mean 6.50 -> 5.94 ms, hedges 10.00% -> 8.60%",
        "w1 older: removed",
        "w1 off: new",
    ]
    assert json.loads((folder / "w1.json").read_text()) == recorded("w1")
