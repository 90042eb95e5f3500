"""The pictures of docs/hedging.md are drawn, and those in the docs are the ones the command draws."""

import argparse
from importlib import import_module
from pathlib import Path

import pytest

from checkout import DOCS

IMAGES = DOCS / "images"


def test_the_pictures_of_the_docs_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command draws a picture of each kind that docs/hedging.md shows, from short runs as from long ones."""
    pytest.importorskip("matplotlib")
    figures = import_module("streaming_bench.commands.docs_figures")
    monkeypatch.setattr(figures, "REQUESTS", 300)
    figures.run(argparse.Namespace(folder=tmp_path, argv=["figures"]))
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {path.name for path in IMAGES.glob("hedging-*.png")}
    assert all((tmp_path / name).with_suffix(".svg").stat().st_size > 10_000 for name in drawn)
