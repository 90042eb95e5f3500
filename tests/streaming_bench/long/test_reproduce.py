"""The files that `reproduce --out` writes: each plot of the publications, as PNG and SVG."""

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
reproduce: Any = import_module("streaming_bench.research.commands.reproduce")
drawings: Any = import_module("streaming_bench.research.published.drawings")
results: Any = import_module("streaming_bench.report.results")
sources: Any = import_module("streaming_bench.research.published.sources")
side_by_side: Any = import_module("streaming_bench.research.published.side_by_side")

PLOTS = {
    "three-servers --seeds 1 --requests 600": ["requests-per-second", "response-times"],
    "cost --duration 2s --hedge-threshold p90": ["cost-table", "latency-comparison"],
}


@pytest.mark.parametrize(("command", "names"), PLOTS.items())
def test_the_plots_of_a_table_are_drawn(
    command: str, names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each plot is a PNG and an SVG, next to the page with the table."""
    parser = argparse.ArgumentParser()
    reproduce.add_arguments(parser)
    args = parser.parse_args([*command.split(), "--out", str(tmp_path)], argparse.Namespace(argv=command.split()))
    reproduce.run(args)
    assert capsys.readouterr().out
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == names
    for name in names:
        assert (tmp_path / f"{name}.svg").stat().st_size > 5_000
    assert (tmp_path / f"{args.table}.md").exists()


def test_the_diagrams_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The article's figures and the picture of a hedge, which is also an animation."""
    diagrams: Any = import_module("streaming_bench.research.published.diagrams")
    monkeypatch.setattr(diagrams, "FRAMES", 3)
    folder = results.Results(tmp_path, ["reproduce", "diagrams"], None)
    diagrams.draw_all(folder)
    folder.close()
    names = {"straggler-failure", "window-rotation", "decision-flow", "hedge"}
    assert {path.stem for path in tmp_path.glob("*.png")} == names
    assert (tmp_path / "hedge.gif").read_bytes()[:6] == b"GIF89a"


def test_client_libraries_share_a_plot(tmp_path: Path) -> None:
    """Client libraries are drawn in panels with one legend."""
    row = side_by_side.ReproducedRow
    groups = {
        client: [row("no hedging", rows["no hedging"], {"port": rows["no hedging"]}, {})]
        for client, rows in sources.FRAMEWORKS.items()
    }
    drawings.percentiles(results.Results(tmp_path, [], None), "eval_multi_framework", "by client", groups, "")
    assert (tmp_path / "eval_multi_framework.png").stat().st_size > 5_000
