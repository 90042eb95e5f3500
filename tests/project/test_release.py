"""scripts/release: the cut of the changelog, versions, and the states of a repository in which nothing is released."""

import tomllib
from pathlib import Path

import pytest
import release

from checkout import ROOT

HEAD = "# Changelog\n\nIntroduction.\n\n"
ENTRY = "### Added\n\n- A setting.\n"
DATE = "2026-01-31"


def test_unreleased_entries_become_the_version() -> None:
    """The entries get the version and the date; an empty [Unreleased] section is left above them."""
    older = "\n## [0.1.0] - 2026-01-01\n\n- The first.\n"
    text = f"{HEAD}## [Unreleased]\n\n{ENTRY}{older}"
    cut = release.cut_changelog(text, "0.2.0", DATE)
    assert cut == f"{HEAD}## [Unreleased]\n\n## [0.2.0] - {DATE}\n\n{ENTRY}{older}"


def test_a_prepared_section_gets_its_date() -> None:
    """A section dated "unreleased" is released as it is."""
    text = f"{HEAD}## [Unreleased]\n\n## [0.1.0] - unreleased\n\n{ENTRY}"
    cut = release.cut_changelog(text, "0.1.0", DATE)
    assert cut == f"{HEAD}## [Unreleased]\n\n## [0.1.0] - {DATE}\n\n{ENTRY}"


def test_entries_join_a_prepared_section() -> None:
    """Entries written after a section was prepared get into it, under their own headings; other sections stay."""
    new = "### Fixed\n\n- A race.\n\n### Added\n\n- A metric,\n  in two lines.\n"
    older = "## [0.0.9] - 2026-01-01\n\n- The first.\n"
    text = f"{HEAD}## [Unreleased]\n\n{new}\n## [0.1.0] - unreleased\n\n{ENTRY}\n{older}"
    joined = "### Added\n\n- A metric,\n  in two lines.\n- A setting.\n\n### Fixed\n\n- A race.\n"
    cut = release.cut_changelog(text, "0.1.0", DATE)
    assert cut == f"{HEAD}## [Unreleased]\n\n## [0.1.0] - {DATE}\n\n{joined}\n{older}"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (HEAD, "has no section"),
        ("## [Unreleased]\n", r"\[Unreleased\] of CHANGELOG.md is empty"),
        ("## [Unreleased]\n\n### Added\n\n## [0.1.0] - 2026-01-01\n\n- One.\n", "is empty"),
        ("## [Unreleased]\n\n- One.\n\n## [0.2.0] - 2026-01-01\n\n- One.\n", "0.2.0 is already in CHANGELOG.md"),
        ("## [Unreleased]\n\n## [0.2.0] - unreleased\n", r"\[0.2.0\] of CHANGELOG.md is empty"),
    ],
)
def test_a_changelog_that_cannot_be_cut(text: str, error: str) -> None:
    """Each state without something to release has its own error."""
    with pytest.raises(release.ReleaseError, match=error):
        release.cut_changelog(text, "0.2.0", DATE)


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "1.0.0rc1", "1.0.0.post1"])
def test_versions(version: str) -> None:
    """Final versions, candidates and corrections are accepted, the current one for the first release."""
    assert release.parse_version(version, "0.1.0") == version


@pytest.mark.parametrize(
    ("version", "error"),
    [
        ("next", "no version of PEP 440"),
        ("", "no version of PEP 440"),
        ("v0.2.0", "normal form; write 0.2.0"),
        ("0.2.0-rc1", "normal form; write 0.2.0rc1"),
        ("0.2.0+mine", "normal form; write 0.2.0"),
        ("0.0.9", "older than 0.1.0"),
    ],
)
def test_bad_versions(version: str, error: str) -> None:
    """A version that is not one, is written differently, or is older is rejected."""
    with pytest.raises(release.ReleaseError, match=error):
        release.parse_version(version, "0.1.0")


def test_only_the_version_of_the_project_is_set() -> None:
    """Other lines with a version stay."""
    text = '[project]\nversion = "0.1.0"\nserve = ["ttft-gateway-server==0.1.0"]\n\n[tool.x]\nversion = "7"\n'
    assert release.set_version("pyproject.toml", text, "0.2.0") == text.replace("0.1.0", "0.2.0")


CHART = 'apiVersion: v2\nversion: 0.1.0\nappVersion: "0.1.0" # default of image.tag\n'


@pytest.mark.parametrize(
    ("version", "in_chart"),
    [
        ("0.2.0", "0.2.0"),
        ("0.2", "0.2.0"),
        ("1.0.0a1", "1.0.0-alpha.1"),
        ("1.0.0rc2.dev3", "1.0.0-rc.2.dev.3"),
        ("1.0.0.post1", "1.0.0+post.1"),
    ],
)
def test_the_chart_has_a_semantic_version(version: str, in_chart: str) -> None:
    """Helm rejects versions of PEP 440: the chart's own is translated, the gateway's and its image's are not."""
    text = release.set_version("docker/helm/ttft-gateway/Chart.yaml", CHART, version)
    assert text == f'apiVersion: v2\nversion: {in_chart}\nappVersion: "{version}" # default of image.tag\n'


def test_a_checkout_without_a_chart_can_be_released(tmp_path: Path) -> None:
    """The chart is set only if there is one."""
    chart = tmp_path / "docker/helm/ttft-gateway/Chart.yaml"
    without = release.versioned(tmp_path)
    chart.parent.mkdir(parents=True)
    chart.touch()
    assert release.versioned(tmp_path) == [*without, "docker/helm/ttft-gateway/Chart.yaml"]


@pytest.mark.parametrize("name", release.versioned(ROOT))
def test_every_file_with_the_version_has_the_same(name: str) -> None:
    """Each file that states the version is found by its pattern, and states the version of pyproject.toml."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    text = (ROOT / name).read_text(encoding="utf-8")
    assert release.set_version(name, text, version) == text
    places = 2 if name.endswith(("Chart.yaml", "pyproject.toml")) else 1
    assert release.set_version(name, text, "9.9.9") == text.replace(version, "9.9.9", places)


def test_every_image_of_the_gateway_has_the_version() -> None:
    """No example under docker/ runs the image of an older release after the next one."""
    named = {path for path in (ROOT / "docker").rglob("*.yaml") if "image: ttft-gateway:" in path.read_text("utf-8")}
    assert {path.relative_to(ROOT).as_posix() for path in named} <= set(release.versioned(ROOT))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a clean repository on main with a changelog and a project file."""
    (tmp_path / "CHANGELOG.md").write_text(f"{HEAD}## [Unreleased]\n\n{ENTRY}", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n', encoding="utf-8")
    release.git(tmp_path, "init", "--quiet", "--initial-branch=main")
    for name, value in {"user.name": "Tester", "user.email": "tester@localhost", "commit.gpgsign": "false"}.items():
        release.git(tmp_path, "config", name, value)
    release.git(tmp_path, "add", ".")
    release.git(tmp_path, "commit", "--quiet", "--message", "First")
    return tmp_path


def test_a_release_needs_an_address_for_reports(tmp_path: Path) -> None:
    """The placeholder in SECURITY.md stops a release, and is still the only one there."""
    (tmp_path / "SECURITY.md").write_text((ROOT / "SECURITY.md").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(release.ReleaseError, match=r"SECURITY\.md has no address"):
        release.check_contact(tmp_path)
    (tmp_path / "SECURITY.md").write_text("Write to security@example.com.", encoding="utf-8")
    release.check_contact(tmp_path)


def test_a_clean_main_can_be_released(repository: Path) -> None:
    """Nothing is wrong with it."""
    release.check_repository(repository, "0.2.0")


def test_repositories_that_are_not_released(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Changes, another branch and an existing tag end with exit code 1, an error, and an unchanged commit."""
    commit = release.git(repository, "rev-parse", "HEAD")
    for command, error in [
        (("tag", "v0.2.0"), "tag v0.2.0 exists; choose another version"),
        (("switch", "--quiet", "--create", "other"), "the branch is other; switch to main"),
        (("rm", "--quiet", "--cached", "pyproject.toml"), "the tree has changes; commit or stash them"),
    ]:
        release.git(repository, *command)
        assert release.main(["0.2.0"], repository) == 1
        assert f"scripts/release: {error}" in capsys.readouterr().err
    assert release.git(repository, "rev-parse", "HEAD") == commit


def test_a_command_line_without_a_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the missing argument."""
    with pytest.raises(SystemExit):
        release.main([])
    assert "version" in capsys.readouterr().err


def test_archives_are_those_of_a_commit(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tree with changes has no archives: their digests would belong to no commit."""
    (repository / "pyproject.toml").write_text("", encoding="utf-8")
    assert release.main(["--archives"], repository) == 1
    assert "the tree has changes; commit or stash them" in capsys.readouterr().err
    assert not (repository / "dist").exists()


def test_archives_and_a_version_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """The archives are built from the commit, so a version in addition is rejected."""
    with pytest.raises(SystemExit):
        release.main(["0.2.0", "--archives"])
    assert "not allowed with" in capsys.readouterr().err
