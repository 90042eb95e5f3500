"""Sweeps: a row for every run and bound, and a folder with tables, plots and a manifest."""

import csv
import math
from importlib import import_module
from pathlib import Path

import pytest

from streaming_bench.__main__ import main
from streaming_bench.progress import quiet
from streaming_bench.report.results import read_manifest
from streaming_bench.research import sweeps
from streaming_bench.research.sweeps import SweepSize

TINY = SweepSize(400, (7,), 0.01)


@pytest.fixture(autouse=True)
def few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute bounds from few draws; the tests do not depend on their number."""
    monkeypatch.setattr(sweeps, "_PAIRS", 1_500)


def test_the_frontier_has_every_run_and_the_bounds() -> None:
    """Each policy has a row for each budget, `off` has one; bounds fall with the budget, from the mean of `off`."""
    rows = list(sweeps.frontier(["W1"], ["adaptive", "off"], [0.05, 0.3], TINY, quiet))
    assert [(row.policy, row.budget) for row in rows if row.policy in sweeps.POLICIES] == [
        ("adaptive", 0.05),
        ("adaptive", 0.3),
        ("off", 0.0),
    ]
    for name in ("best single hedge", "clairvoyant"):
        means = [row.mean for row in rows if row.policy == name]
        assert len(means) == 3
        assert means == sorted(means, reverse=True)
    off = next(row for row in rows if row.policy == "off")
    assert off.extra == 0.0
    assert next(row.mean for row in rows if row.policy == "clairvoyant") == pytest.approx(off.mean, rel=0.3)


def test_coarser_bins_cost_little_until_they_are_very_coarse() -> None:
    """Bins of 1 % give nearly the mean, p99 and load of bins of 0.2 %."""
    rows = {(row.workload, row.accuracy): row for row in sweeps.accuracy(TINY, quiet)}
    assert len(rows) == 3 * len(sweeps.ACCURACIES)
    for workload in ("W1", "W2", "W4"):
        fine, usual = rows[workload, 0.002], rows[workload, 0.01]
        assert usual.mean == pytest.approx(fine.mean, rel=0.01)
        assert usual.p99 == pytest.approx(fine.p99, rel=0.03)
        assert usual.extra == pytest.approx(fine.extra, abs=0.01)


def test_window_lengths_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each window length has a row for each phase, and changes the result."""
    monkeypatch.setattr(sweeps, "WINDOWS_S", (15.0, 300.0))
    rows = list(sweeps.windows(SweepSize(400, (7,), 0.03), quiet))
    assert [row.window_s for row in rows] == [15.0] * 5 + [300.0] * 5
    assert [row[2:] for row in rows[:5]] != [row[2:] for row in rows[5:]]


def test_a_sweep_fills_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder has tables as CSV and Markdown, plots as PNG and SVG, and a manifest of them."""
    pytest.importorskip("matplotlib")
    command = import_module("streaming_bench.research.commands.sweep")
    monkeypatch.setattr(command, "QUICK", TINY)
    monkeypatch.setattr(command, "_QUICK_BUDGETS", (0.1,))
    monkeypatch.setattr(sweeps, "DRIFT_POLICIES", {"adaptive": None, "static 6 ms": 0.006})
    assert main(["sweep", "--quick", "--workload", "W2", "--part", "frontier,drift", "--out", str(tmp_path)]) == 0
    files = read_manifest(tmp_path)["files"]
    assert isinstance(files, dict)
    assert set(files) == {
        *("frontier.csv", "drift.csv", "sweep.md"),
        *("frontier-w2.png", "frontier-w2.svg", "drift.png", "drift.svg"),
    }
    with (tmp_path / "drift.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 600 / sweeps.BUCKET_S
    assert not any(math.isnan(float(row["p99"])) for row in rows if row["p99"])


def test_an_unknown_part_is_rejected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The error about an unknown part lists the known ones."""
    pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit):
        main(["sweep", "--part", "weather", "--out", str(tmp_path)])
    assert "frontier,windows,accuracy,drift" in capsys.readouterr().err
