"""Draws plots if matplotlib is installed; otherwise returns how to install it.

Measuring takes minutes and needs no plots, so `load`, `compare` and `report` work without matplotlib. No units.
"""

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Final, Literal

from streaming_bench.report.records import Run
from streaming_bench.report.results import Results

_LIBRARIES: Final = ("matplotlib", "numpy")
INSTALL: Final = "pip install 'ttft-gateway[bench]'; in a checkout: scripts/setup-env dev"


def draw(what: Literal["of_load", "of_compare"], results: Results, runs: Sequence[Run], below: str) -> list[str]:
    """Call a function of charts.py.

    Returns:
        Lines to print: none, or that matplotlib is missing.
    """
    charts = drawing_module("streaming_bench.report.charts")
    if charts is None:
        return [f"Plots need matplotlib, which is missing; install it ({INSTALL}) and run `ttft-bench report`."]
    getattr(charts, what)(results, runs, below)
    return []


def drawing_module(name: str) -> ModuleType | None:
    """Import a module that draws; return None if matplotlib is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if missing_library(error) != "matplotlib":
            raise
        return None


def missing_library(error: ModuleNotFoundError) -> str | None:
    """Return the library of the extra `bench` that is not installed; None if another module is missing."""
    name = (error.name or "").partition(".")[0]
    return name if name in _LIBRARIES else None
