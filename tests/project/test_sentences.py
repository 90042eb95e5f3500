"""Snapshots of sentences: a changed sentence fails with the command that updates it."""

from pathlib import Path

import pytest

from sentences import UPDATE, Sentences


def test_a_changed_sentence_fails_until_it_is_written_anew(tmp_path: Path) -> None:
    """The failure shows the old and the new sentence and the command; after the command the test passes."""
    Sentences(tmp_path, update=True).check("kind", {"b": "second", "a": "first\nand more"})
    kept = (tmp_path / "kind.txt").read_text(encoding="utf-8")
    assert kept == "a\n    first\n    and more\n\nb\n    second\n"
    Sentences(tmp_path, update=False).check("kind", {"a": "first\nand more", "b": "second"})
    with pytest.raises(pytest.fail.Exception) as caught:
        Sentences(tmp_path, update=False).check("kind", {"a": "first\nand more", "b": "other"})
    failure = str(caught.value)
    assert [text for text in (f"scripts/test {UPDATE}", "-    second", "+    other") if text not in failure] == []
    Sentences(tmp_path, update=True).check("kind", {"a": "first\nand more", "b": "other"})
    Sentences(tmp_path, update=False).check("kind", {"a": "first\nand more", "b": "other"})


def test_a_row_without_a_snapshot_fails(tmp_path: Path) -> None:
    """A new row or a new kind fails until it is written."""
    with pytest.raises(pytest.fail.Exception):
        Sentences(tmp_path, update=False).check("kind", {"a": "first"})
