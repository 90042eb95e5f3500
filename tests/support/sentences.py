"""Snapshots of the sentences that users read, one file for each kind of message in tests/snapshots.

A test compares code, param and position of each mistake by itself; its sentences are compared here, all rows of a kind
at once. `scripts/test --update-messages` updates the snapshots.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path

import pytest

from checkout import ROOT

FOLDER = ROOT / "tests" / "snapshots"
UPDATE = "--update-messages"


class Sentences:
    """Compares sentences with their snapshots, or writes the snapshots."""

    def __init__(self, folder: Path, *, update: bool) -> None:
        self._folder = folder
        self._update = update

    def check(self, kind: str, sentences: Mapping[str, str]) -> None:
        """Fail the test if a sentence differs from the snapshot, or if either of them has another row.

        Args:
            kind: name of the snapshot file; one test owns it.
            sentences: the sentence of each row.
        """
        file = self._folder / f"{kind}.txt"
        text = rendered(sentences)
        if self._update:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        kept = file.read_text(encoding="utf-8") if file.exists() else ""
        if kept != text:
            changes = difflib.unified_diff(kept.splitlines(), text.splitlines(), "snapshot", "now", n=1, lineterm="")
            pytest.fail(
                f"sentences differ from {file.name}; read the changes, then write them with "
                f"`scripts/test {UPDATE}`\n" + "\n".join(changes),
                pytrace=False,
            )


def rendered(sentences: Mapping[str, str]) -> str:
    """Rows in alphabetical order, each sentence indented under its row's name."""
    rows = []
    for name, sentence in sorted(sentences.items()):
        lines = "\n".join(f"    {line}" for line in sentence.split("\n"))
        rows.append(f"{name}\n{lines}\n")
    return "\n".join(rows)
