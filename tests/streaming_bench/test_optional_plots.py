"""What the bench does where matplotlib is not installed."""

import sys
from pathlib import Path

import pytest

from streaming_bench.__main__ import main
from streaming_bench.report.optional_plots import INSTALL
from streaming_bench.report.records import Record, Run, write_runs
from streaming_bench.report.results import Results

_DRAWING = ("report.charts", "report.plots", "commands.load", "commands.compare", "commands.report", "commands.sweep")


@pytest.fixture(autouse=True)
def _no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it can be imported, and nobody has done so before."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in _DRAWING:
        monkeypatch.delitem(sys.modules, f"streaming_bench.{name}", raising=False)


@pytest.mark.parametrize("command", ["load", "compare", "report", "simulate", "update-golden"])
def test_help_needs_no_matplotlib(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The options of a command that also draws can be read."""
    with pytest.raises(SystemExit, match=r"^0$"):
        main([command, "--help"])
    assert "usage: ttft-bench" in capsys.readouterr().out


def test_a_command_that_only_draws_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot do anything without it does not start."""
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["sweep", "--help"])
    assert INSTALL in " ".join(capsys.readouterr().err.split())


def test_tables_are_written_without_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of results is shown again, and that there are no pictures, and why."""
    results = Results(tmp_path / "a", ["load"], 1)
    records = [
        Record(number, 0, 0.0, 0.0, headers_s=0.01, byte_s=0.01, content_s=0.02, last_s=0.03, end_s=0.03, status=200)
        for number in range(30)
    ]
    write_runs(results, [Run("endpoint", {}, records)])
    results.close(kind="load", small_print="30 requests")
    assert main(["report", str(tmp_path / "a"), "--out", str(tmp_path / "b")]) == 0
    said = capsys.readouterr().out
    assert "TTFT, ms" in said
    assert INSTALL in said
    assert (tmp_path / "b" / "tables.md").exists()
    assert not list((tmp_path / "b").glob("*.png"))
