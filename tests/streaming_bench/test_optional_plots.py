"""The bench without its optional libraries."""

import sys
from pathlib import Path

import pytest

from streaming_bench.__main__ import main
from streaming_bench.report.optional_plots import INSTALL
from streaming_bench.report.records import Record, Run, write_runs
from streaming_bench.report.results import Results

_DRAWING = (
    "report.charts",
    "report.plots",
    "commands.load",
    "commands.compare",
    "commands.report",
    "research.commands.sweep",
)


@pytest.fixture(autouse=True)
def _no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make matplotlib impossible to import, and forget earlier imports."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in _DRAWING:
        monkeypatch.delitem(sys.modules, f"streaming_bench.{name}", raising=False)


@pytest.mark.parametrize("command", ["load", "compare", "report", "simulate", "update-golden"])
def test_help_needs_no_matplotlib(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help of a command that also draws needs no matplotlib."""
    with pytest.raises(SystemExit, match=r"^0$"):
        main([command, "--help"])
    assert "usage: ttft-bench" in capsys.readouterr().out


def test_a_command_that_only_draws_needs_matplotlib(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that needs matplotlib does not start, and prints the installation command."""
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["sweep", "--help"])
    assert INSTALL in " ".join(capsys.readouterr().err.split())


def test_a_command_without_numpy_prints_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that needs numpy does not start, and prints the installation command."""
    for name in [name for name in sys.modules if name.startswith("streaming_bench.") and name.count(".") > 1]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["simulate", "--help"])
    message = " ".join(capsys.readouterr().err.split())
    assert f"simulate needs numpy; install it: {INSTALL}" in message


def test_tables_are_written_without_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`report` prints the tables, and the reason for missing plots."""
    results = Results(tmp_path / "a", ["load"], 1)
    records = [
        Record(number, 0, 0.0, 0.0, headers_s=0.01, byte_s=0.01, content_s=0.02, last_s=0.03, end_s=0.03, status=200)
        for number in range(30)
    ]
    write_runs(results, [Run("endpoint", {}, records)])
    results.close(kind="load", small_print="30 requests")
    assert main(["report", str(tmp_path / "a"), "--out", str(tmp_path / "b")]) == 0
    message = capsys.readouterr().out
    assert "TTFT, ms" in message
    assert INSTALL in message
    assert (tmp_path / "b" / "tables.md").exists()
    assert not list((tmp_path / "b").glob("*.png"))
