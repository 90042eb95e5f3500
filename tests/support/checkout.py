"""Paths of the checkout that the tests run in, so that a test may move without counting its parents."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
