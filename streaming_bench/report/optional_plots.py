"""Draws the pictures of measured runs where matplotlib is installed; elsewhere says what to install.

Measuring takes minutes and needs no pictures, so `load`, `compare` and `report` do without. No units.
"""

import importlib
from collections.abc import Sequence
from typing import Final, Literal

from streaming_bench.report.records import Run
from streaming_bench.report.results import Results

INSTALL: Final = 'pip install "ttft-gateway[bench]", or pip install matplotlib; in a checkout scripts/setup-env dev'


def draw(what: Literal["of_load", "of_compare"], results: Results, runs: Sequence[Run], below: str) -> list[str]:
    """Draw what a function of pictures.py draws.

    Returns:
        What to say to the reader: nothing, or that there are no pictures.
    """
    try:
        pictures = importlib.import_module("streaming_bench.report.charts")
    except ModuleNotFoundError as error:
        if not lacks_matplotlib(error):
            raise
        return [f"There are no pictures, which need matplotlib: {INSTALL}. `ttft-bench report` draws them later."]
    getattr(pictures, what)(results, runs, below)
    return []


def lacks_matplotlib(error: ModuleNotFoundError) -> bool:
    """Whether it is that which is not installed."""
    return (error.name or "").partition(".")[0] == "matplotlib"
