"""The plots of docs/hedging.md: the command draws each plot that the docs contain."""

import argparse
from importlib import import_module
from pathlib import Path

import pytest

from checkout import DOCS

IMAGES = DOCS / "images"


def test_the_plots_of_the_docs_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command draws every plot of docs/hedging.md, also from short runs."""
    pytest.importorskip("matplotlib")
    figures = import_module("streaming_bench.research.commands.docs_figures")
    monkeypatch.setattr(figures, "REQUESTS", 300)
    figures.run(argparse.Namespace(folder=tmp_path, argv=["figures"]))
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {path.name for path in IMAGES.glob("hedging-*.png")}
    assert all((tmp_path / name).with_suffix(".svg").stat().st_size > 10_000 for name in drawn)
