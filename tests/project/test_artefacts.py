"""What a release consists of: notes, archives with the same bytes at any time, digests, and what a broken one gets."""

import os
import tarfile
from pathlib import Path

import artefacts
import pytest

TIME_S = 1_767_225_600  # 2026-01-01


def _folder(path: Path) -> Path:
    (path / "inner").mkdir(parents=True)
    (path / "index.html").write_text("<p>Hello</p>", encoding="utf-8")
    (path / "inner" / "a.txt").write_text("a", encoding="utf-8")
    return path


def _download(path: Path, work: Path) -> artefacts.Download:
    return artefacts.Download(path.parent, path, work, TIME_S)


def test_the_notes_are_the_section_of_the_version() -> None:
    """Neither a newer nor an older section is in them."""
    changelog = (
        "# Changelog\n\n## [Unreleased]\n\n- New.\n\n## [0.2.0] - 2026-01-31\n\n- Now.\n\n## [0.1.0]\n\n- Old.\n"
    )
    text = artefacts.notes(changelog, "0.2.0")
    assert "- Now." in text
    assert 'pip install "ttft-gateway[serve]==0.2.0"' in text
    assert not any(other in text for other in ("- New.", "- Old.", "## [0.1.0]"))
    assert "- Old." in artefacts.notes(changelog, "0.1.0")
    with pytest.raises(artefacts.ArtefactError, match=r"no section \[0.3.0\]"):
        artefacts.notes(changelog, "0.3.0")


def test_an_archive_depends_on_its_content_only(tmp_path: Path) -> None:
    """Times, rights and the order of creation are not in it."""
    first, second = _folder(tmp_path / "first"), _folder(tmp_path / "second")
    os.utime(second / "index.html", (1, 1))
    (second / "inner" / "a.txt").chmod(0o600)
    packed = artefacts._packed(first, "site", TIME_S)
    assert packed == artefacts._packed(second, "site", TIME_S)
    (second / "inner" / "a.txt").write_text("b", encoding="utf-8")
    assert packed != artefacts._packed(second, "site", TIME_S)
    path = tmp_path / "site.tar.gz"
    path.write_bytes(packed)
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["site/index.html", "site/inner/a.txt"]
        assert {(entry.mtime, entry.mode) for entry in archive} == {(TIME_S, 0o644)}


def test_a_changed_file_fails_its_digest(tmp_path: Path) -> None:
    """Every file of the folder has a line, and one with other bytes stops the release before anything is opened."""
    folder = _folder(tmp_path / "dist") / "inner"
    artefacts.write_sums(folder)
    artefacts.write_sums(folder)
    assert (folder / artefacts.SUMS).read_text(encoding="utf-8").split()[1::2] == ["a.txt"]
    (folder / "a.txt").write_text("b", encoding="utf-8")
    with pytest.raises(artefacts.ArtefactError, match=r"a\.txt: FAILED"):
        next(artefacts.check(tmp_path, folder, TIME_S))


def test_documentation_without_a_first_page_is_no_artefact(tmp_path: Path) -> None:
    """The site is opened where a reader opens it."""
    site = _folder(tmp_path / "site")
    path = tmp_path / "docs.tar.gz"
    path.write_bytes(artefacts._packed(site, "docs", TIME_S))
    assert artefacts._docs(_download(path, tmp_path / "good")).result == (
        "1 pages; read them with: python3 -m http.server -d docs"
    )
    (site / "index.html").unlink()
    path.write_bytes(artefacts._packed(site, "docs", TIME_S))
    with pytest.raises(artefacts.ArtefactError, match=r"docs\.tar\.gz has no index\.html"):
        artefacts._docs(_download(path, tmp_path / "bad"))


def test_a_chart_that_nothing_here_can_render_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Helm the chart counts as not opened, with the command that opens it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    checked = artefacts._chart(_download(tmp_path / "ttft-gateway-0.1.0.tgz", tmp_path / "work"))
    assert checked.result is None
    assert "helm template" in checked.action
