"""Cuts a release: changelog, version, artefacts, commit and tag; run by scripts/release. Publishes nothing.

Edits and builds in a temporary worktree, so that a failure leaves the checkout as it was. Archives and SBOM carry the
time of the release commit: a build of the tag with that SOURCE_DATE_EPOCH has the same bytes. No units but dates.
"""

import argparse
import datetime as dt
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import artefacts
import sbom
from packaging.version import InvalidVersion, Version

_SECTION = re.compile(r"^## \[([^\]]+)\](?: - (.+))?$", re.MULTILINE)
_CONTACT: Final = "SECURITY-CONTACT"
_PREPARED = "unreleased"  # date of a section that was written before its release


def semantic(version: str) -> str:
    """Return a version of PEP 440 as Helm requires it, by Semantic Versioning: 0.2.0rc1 as 0.2.0-rc.1."""
    parsed = Version(version)
    parts = [*parsed.release, 0, 0][:3]
    kinds = {"a": "alpha", "b": "beta", "rc": "rc"}
    before = [f"{kinds[parsed.pre[0]]}.{parsed.pre[1]}"] if parsed.pre else []
    before += [f"dev.{parsed.dev}"] if parsed.dev is not None else []
    after = f"+post.{parsed.post}" if parsed.post is not None else ""
    return ".".join(map(str, parts)) + ("-" + ".".join(before) if before else "") + after


_CHART = "docker/helm/ttft-gateway/Chart.yaml"
_IMAGE = re.compile(r"^( +image: ttft-gateway:)\S+", re.MULTILINE)
# File -> lines with the version, and its form there; the first match of each is replaced.
_VERSION_LINES: Final[Mapping[str, Mapping[re.Pattern[str], Callable[[str], str]]]] = {
    "pyproject.toml": {
        re.compile(r'^(version = ")[^"]+', re.MULTILINE): str,
        re.compile(r'("ttft-gateway-server==)[^"]+'): str,
    },
    "packaging/server/pyproject.toml": {
        re.compile(r'^(version = ")[^"]+', re.MULTILINE): str,
        re.compile(r'("ttft-gateway==)[^"]+'): str,
    },
    "gateway/version.py": {re.compile(r'^(VERSION: Final = ")[^"]+', re.MULTILINE): str},
    "openapi.yaml": {re.compile(r"^(  version: )\S+", re.MULTILINE): str},
    "docker/Dockerfile": {re.compile(r'^( +org\.opencontainers\.image\.version=")[^"]+', re.MULTILINE): str},
    "docker/kubernetes.yaml": {_IMAGE: str},
    "docker/kubernetes-valkey.yaml": {_IMAGE: str},
    _CHART: {
        re.compile(r'^(version: "?)[^"\s]+', re.MULTILINE): semantic,
        re.compile(r'^(appVersion: "?)[^"\s]+', re.MULTILINE): str,
    },
}


class ReleaseError(Exception):
    """The release cannot be made; the message has the reason and the action."""


def parse_version(text: str, current: str) -> str:
    """Return the version as it is written everywhere.

    Args:
        text: version given by the user.
        current: version in pyproject.toml; the first release may have the same.

    Raises:
        ReleaseError: text is no public version of PEP 440 in its normal form, or is older than the current one.
    """
    try:
        version = Version(text)
    except InvalidVersion:
        raise ReleaseError(f"version {text!r} is no version of PEP 440; write one such as 0.2.0rc1") from None
    if version.local or str(version) != text:
        raise ReleaseError(f"version {text!r} is not in its normal form; write {version.public}")
    if version < Version(current):
        raise ReleaseError(f"version {text} is older than {current} in pyproject.toml; choose a later one")
    return text


def cut_changelog(text: str, version: str, date: str) -> str:
    """Return the changelog with the entries of [Unreleased] under the version.

    A section of the version that is dated "unreleased" gets the date and the entries instead, heading by heading.

    Raises:
        ReleaseError: there is no [Unreleased] section, nothing to release, or the version is already released.
    """
    found = list(_SECTION.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    bodies = {match[1]: text[match.end() : end].strip() for match, end in zip(found, ends, strict=False)}
    dates = {match[1]: match[2] for match in found}
    if "Unreleased" not in bodies:
        raise ReleaseError("CHANGELOG.md has no section [Unreleased]; add the line `## [Unreleased]`")
    if version in bodies:
        if dates[version] != _PREPARED:
            raise ReleaseError(f"version {version} is already in CHANGELOG.md; choose another one")
        both = _joined(bodies["Unreleased"], bodies[version])
        if not _entries(both):
            raise ReleaseError(f"[{version}] of CHANGELOG.md is empty; add a line for each change")
        latest = next(match for match in found if match[1] == "Unreleased")
        prepared = next(at for at, match in enumerate(found) if match[1] == version)
        between = text[ends[found.index(latest)] : found[prepared].start()]
        rest = text[ends[prepared] :]
        return f"{text[: latest.end()]}\n\n{between}## [{version}] - {date}\n\n{both}\n{rest and chr(10)}{rest}"
    if not _entries(bodies["Unreleased"]):
        raise ReleaseError("[Unreleased] of CHANGELOG.md is empty; add a line for each change")
    return text.replace("## [Unreleased]\n", f"## [Unreleased]\n\n## [{version}] - {date}\n")


def versioned(root: Path) -> list[str]:
    """Return the files of a checkout with lines to set; the Helm chart is optional."""
    return [name for name in _VERSION_LINES if name != _CHART or (root / name).exists()]


def set_version(name: str, text: str, version: str) -> str:
    """Return the text of a file of `_VERSION_LINES` with the version replaced.

    Raises:
        ReleaseError: the file has no such line.
    """
    for pattern, form in _VERSION_LINES[name].items():
        text, count = pattern.subn(rf"\g<1>{form(version)}", text, count=1)
        if not count:
            raise ReleaseError(f"{name} has no line with a version; correct the pattern in tests/project/release.py")
    return text


def check_repository(root: Path, version: str) -> None:
    """Raise ReleaseError unless the tree is clean, on main, and without a tag of the version."""
    if changed := git(root, "status", "--porcelain"):
        raise ReleaseError(f"the tree has changes; commit or stash them:\n{changed}")
    branch = git(root, "branch", "--show-current")
    if branch != "main":
        raise ReleaseError(f"the branch is {branch or 'none'}; switch to main")
    if git(root, "tag", "--list", f"v{version}"):
        raise ReleaseError(f"tag v{version} exists; choose another version")


def git(root: Path, *arguments: str) -> str:
    """Run git and return its output."""
    return run(root, "git", *arguments)


def run(folder: Path, *command: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output.

    Raises:
        ReleaseError: the exit code is not 0.
    """
    env = {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(
            f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout.strip()


def check_contact(root: Path) -> None:
    """Raise ReleaseError if SECURITY.md has no address of the maintainers yet."""
    if _CONTACT in (root / "SECURITY.md").read_text(encoding="utf-8"):
        raise ReleaseError(f"SECURITY.md has no address; write the address of the maintainers instead of `{_CONTACT}`")


def make(worktree: Path, version: str, date: str, dist: Path) -> str:
    """Edit, commit, build and inspect in a worktree; return the commit."""
    changelog = worktree / "CHANGELOG.md"
    changelog.write_text(cut_changelog(changelog.read_text(encoding="utf-8"), version, date), encoding="utf-8")
    names = versioned(worktree)
    for name in names:
        path = worktree / name
        path.write_text(set_version(name, path.read_text(encoding="utf-8"), version), encoding="utf-8")
    show(f"CHANGELOG.md: [{version}] - {date}", f"version {version} in {', '.join(names)}")
    git(worktree, "commit", "--quiet", "--all", "--message", f"Release {version}")
    inspect(worktree, dist, archive(worktree, version, dist))
    return git(worktree, "rev-parse", "HEAD")


def archive(worktree: Path, version: str, dist: Path) -> int:
    """Build everything that a release consists of, and show the digests; return the time of the commit.

    Files of other releases in `dist` stay, without a digest.
    """
    time_s = int(git(worktree, "log", "-1", "--format=%ct"))
    show(f"build with SOURCE_DATE_EPOCH={time_s} into {dist}")
    hatchling = str(Path(sys.executable).with_name("hatchling"))
    environment = {"SOURCE_DATE_EPOCH": str(time_s)}
    with tempfile.TemporaryDirectory(prefix="built-") as folder:
        built = Path(folder)
        run(worktree, hatchling, "build", "--directory", folder, environment=environment)
        server = worktree / "packaging/server"
        run(server, hatchling, "build", "--target", "wheel", "--directory", folder, environment=environment)
        sbom.write_release(worktree, built, time_s)
        artefacts.write_all(worktree, version, built, time_s)
        show(*(f"sha256 {line}" for line in (built / artefacts.SUMS).read_text(encoding="utf-8").splitlines()))
        shutil.copytree(built, dist, dirs_exist_ok=True)
    return time_s


def inspect(worktree: Path, dist: Path, time_s: int) -> None:
    """Use each artefact as its user does, and show what was seen."""
    for found in artefacts.check(worktree, dist, time_s):
        show(f"{found.name}: {found.result or 'not opened; ' + found.action}")


def archive_commit(root: Path) -> None:
    """Build the archives of the commit of a checkout into dist/, as they were built for its release.

    Raises:
        ReleaseError: the tree has changes, or the build fails.
    """
    if changed := git(root, "status", "--porcelain"):
        raise ReleaseError(f"the tree has changes; commit or stash them:\n{changed}")
    pyproject = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    archive(root, pyproject["project"]["version"], root / "dist")


def release(root: Path, text: str, *, dry_run: bool) -> None:
    """Make a release of a checkout, or show it.

    Raises:
        ReleaseError: something does not hold; the checkout is unchanged.
    """
    pyproject = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    version = parse_version(text, pyproject["project"]["version"])
    date = dt.datetime.now(dt.UTC).date().isoformat()
    check_repository(root, version)
    cut_changelog((root / "CHANGELOG.md").read_text(encoding="utf-8"), version, date)  # fails before the long check
    if dry_run:
        show("dry run: scripts/check is left out")
        try:
            check_contact(root)
        except ReleaseError as error:
            show(f"to do before a release: {error}")
    else:
        check_contact(root)
        show("scripts/check")
        if subprocess.run([root / "scripts/check"], cwd=root, check=False).returncode:
            raise ReleaseError("scripts/check failed; correct what it reports")
    dist = Path(tempfile.mkdtemp(prefix="release-")) if dry_run else root / "dist"
    with tempfile.TemporaryDirectory(prefix="worktree-") as folder:
        worktree = Path(folder) / "ttft-gateway"
        git(root, "worktree", "add", "--quiet", "--detach", str(worktree), "HEAD")
        try:
            commit = make(worktree, version, date, dist)
        finally:
            git(root, "worktree", "remove", "--force", str(worktree))
    if dry_run:
        show(f"dry run: commit `Release {version}` and tag v{version} are not added to main")
        return
    git(root, "merge", "--quiet", "--ff-only", commit)
    git(root, "tag", "--annotate", f"v{version}", "--message", f"ttft-gateway {version}", commit)
    show(f"tag v{version}", f"publish with: git push origin main v{version}")


def _joined(newer: str, older: str) -> str:
    """Return the entries of two sections, joined by heading, the newer ones first."""
    groups: dict[str, list[str]] = {}
    for body in (older, newer):
        for part in re.split(r"^(?=### )", body, flags=re.MULTILINE):
            heading, _, entries = part.partition("\n") if part.startswith("### ") else ("", "", part)
            if entries.strip():
                groups.setdefault(heading, []).insert(0, entries.strip("\n"))
    joined = {heading: "\n".join(entries) for heading, entries in groups.items()}
    return "\n\n".join(f"{heading}\n\n{entries}".strip() for heading, entries in joined.items())


def _entries(body: str) -> bool:
    """Return True if a section has text besides its headings."""
    return any(line.strip() and not line.startswith("#") for line in body.splitlines())


def show(*lines: str) -> None:
    """Print steps."""
    sys.stdout.writelines(f"== {line}\n" for line in lines)
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None, root: Path = Path(__file__).parents[2]) -> int:
    """Read the command line; the exit code is 1 if the release cannot be made."""
    parser = argparse.ArgumentParser(prog="scripts/release", description="Cut a release. Publishes nothing.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("version", nargs="?", help="version of PEP 440, such as 0.2.0")
    what.add_argument("--archives", action="store_true", help="only build the archives of this commit, into dist/")
    parser.add_argument("--dry-run", action="store_true", help="build into a temporary folder, change nothing")
    options = parser.parse_args(arguments)
    try:
        if options.archives:
            archive_commit(root)
        else:
            release(root, options.version, dry_run=options.dry_run)
    except (ReleaseError, artefacts.ArtefactError) as error:
        sys.stderr.write(f"scripts/release: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
