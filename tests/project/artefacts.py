"""What a release consists of, besides its wheels: the SBOM, the chart, the documentation, the notes, their digests.

Everything here has the same bytes whenever it is built from the same commit. `check` uses each as a user who has
downloaded it. Units: seconds since 1970.
"""

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import yaml

CHART: Final = Path("docker/helm/ttft-gateway")
NOTES: Final = "RELEASE-NOTES.md"
SUMS: Final = "SHA256SUMS"
_SECTION: Final = re.compile(r"^## \[([^\]]+)\].*?\n(.*?)(?=^## \[|\Z)", re.MULTILINE | re.DOTALL)
_KUBERNETES: Final = "1.30.0"
_CHECK_S: Final = 900.0


class Checked(NamedTuple):
    """An artefact as its user got it.

    Attributes:
        name: its file, or what it is.
        result: what was seen; None if nothing here can open it.
        action: what opens it instead; empty if it was opened.
    """

    name: str
    result: str | None
    action: str = ""


class Download(NamedTuple):
    """An artefact to look at.

    Attributes:
        worktree, time_s: see `check`.
        path: the file.
        work: folder that does not exist yet.
    """

    worktree: Path
    path: Path
    work: Path
    time_s: int


class ArtefactError(Exception):
    """An artefact cannot be made or used; the message names it and the reason."""


def notes(changelog: str, version: str) -> str:
    """Return the notes of a release: its section of the changelog, and how its files are checked.

    Raises:
        ArtefactError: the changelog has no such section.
    """
    found = dict(_SECTION.findall(changelog))
    if version not in found:
        raise ArtefactError(f"CHANGELOG.md has no section [{version}], so the release has no notes")
    install = f'pip install "ttft-gateway[serve]=={version}"'
    return (
        f"# ttft-gateway {version}\n\n```sh\n{install}\n```\n\n{found[version].strip()}\n\n## Check the files\n\n"
        "`sha256sum --check SHA256SUMS` compares the files of this page with their digests. `gh attestation verify "
        "FILE --repo OWNER/REPOSITORY` shows the commit and the workflow that built a file.\n"
    )


def write_all(worktree: Path, version: str, dist: Path, time_s: int) -> None:
    """Write chart, documentation, notes and digests beside the wheels that are in `dist`.

    Raises:
        ArtefactError: one of them cannot be made.
    """
    chart = yaml.safe_load((worktree / CHART / "Chart.yaml").read_text(encoding="utf-8"))
    archive = dist / f"{chart['name']}-{chart['version']}.tgz"
    archive.write_bytes(_packed(worktree / CHART, chart["name"], time_s))
    site = dist / f"ttft-gateway-{version}-docs.tar.gz"
    site.write_bytes(_packed(_site(worktree, time_s), f"ttft-gateway-{version}-docs", time_s))
    changelog = (worktree / "CHANGELOG.md").read_text(encoding="utf-8")
    (dist / NOTES).write_text(notes(changelog, version), encoding="utf-8")
    write_sums(dist)


def write_sums(dist: Path) -> None:
    """Write the digests of all files of a folder, in the form of sha256sum."""
    (dist / SUMS).unlink(missing_ok=True)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(dist.iterdir())]
    (dist / SUMS).write_text("".join(lines), encoding="utf-8")


def check(worktree: Path, dist: Path, time_s: int) -> Iterator[Checked]:
    """Use each artefact of a folder as a user who has downloaded it.

    Args:
        worktree: checkout of the commit that they were built from.
        time_s: time of that commit.

    Raises:
        ArtefactError: one does not work.
    """
    _run(dist, "sha256sum", "--check", "--quiet", SUMS)
    yield Checked(SUMS, "every file has its digest")
    with tempfile.TemporaryDirectory(prefix="artefacts-") as folder:
        for name, opened in _OPENED.items():
            [path] = dist.glob(name)
            yield opened(Download(worktree, path, Path(folder) / path.name, time_s))
    yield Checked(
        "image, amd64 and arm64", None, "built by .github/workflows/release.yml; here: sudo scripts/verify-image"
    )


def _wheel(got: Download) -> Checked:
    said = _run(got.worktree, str(got.worktree / "scripts/verify-wheel"), str(got.path.parent))
    return Checked("*.whl", said.splitlines()[-1] + ": bare, with serve (a request of the demo), with share and otel")


def _source_archive(got: Download) -> Checked:
    """Build the wheel again from the source archive alone."""
    path = got.path
    shutil.unpack_archive(path, got.work, filter="data")
    [source] = got.work.iterdir()
    hatchling = str(Path(sys.executable).with_name("hatchling"))
    built = got.work / "dist"
    environment = {"SOURCE_DATE_EPOCH": str(got.time_s)}
    _run(source, hatchling, "build", "--target", "wheel", "--directory", str(built), environment=environment)
    [again] = built.glob("*.whl")
    if again.read_bytes() != (path.parent / again.name).read_bytes():
        raise ArtefactError(f"{path.name}: the wheel that is built from it has other bytes than {again.name}")
    return Checked(path.name, f"builds {again.name} with the same bytes")


def _chart(got: Download) -> Checked:
    path, work, helm = got.path, got.work, shutil.which("helm")
    if helm is None:
        return Checked(path.name, None, f"install Helm, then: helm template gateway {path}")
    shutil.unpack_archive(path, work, "gztar", filter="data")
    chart = ("template", "gateway", "ttft-gateway", "-f", "ttft-gateway/examples/vllm.yaml")
    said = _run(work, helm, *chart, "--kube-version", _KUBERNETES)  # Helm alone assumes the version it was built with
    kinds = sorted({each["kind"] for each in yaml.safe_load_all(said) if each})
    return Checked(path.name, f"rendered: {', '.join(kinds)}")


def _docs(got: Download) -> Checked:
    path = got.path
    shutil.unpack_archive(path, got.work, filter="data")
    [site] = got.work.iterdir()
    pages = sorted(site.rglob("*.html"))
    if not (site / "index.html").is_file():
        raise ArtefactError(f"{path.name} has no index.html")
    return Checked(path.name, f"{len(pages)} pages; read them with: python3 -m http.server -d {site.name}")


def _notes(got: Download) -> Checked:
    return Checked(got.path.name, f"{got.path.read_text(encoding='utf-8').count(chr(10) + '- ')} entries")


_OPENED: Final[dict[str, Callable[[Download], Checked]]] = {
    "ttft_gateway-*.whl": _wheel,
    "ttft_gateway-*.tar.gz": _source_archive,
    "ttft-gateway-*.tgz": _chart,
    "ttft-gateway-*-docs.tar.gz": _docs,
    NOTES: _notes,
}


def _site(worktree: Path, time_s: int) -> Path:
    """Build the documentation of a checkout; return its folder."""
    environment = {
        "PYTHONPATH": f"{worktree / 'tests/support'}:{worktree / 'tests/project'}",
        "SOURCE_DATE_EPOCH": str(time_s),
        "NO_MKDOCS_2_WARNING": "1",
    }
    made = worktree / "build/docs"
    _run(worktree, sys.executable, "tests/project/docs_site.py", str(made), environment=environment)
    config = str(made / "mkdocs.yml")
    _run(
        worktree, sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, environment=environment
    )
    return made / "site"


def _packed(folder: Path, name: str, time_s: int) -> bytes:
    """Return an archive of a folder that depends on its content only."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=time_s) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                entry = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
                entry.size, entry.mtime, entry.mode = len(content), time_s, 0o644
                archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _run(folder: Path, *command: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=_CHECK_S,
    )
    if done.returncode:
        raise ArtefactError(
            f"`{' '.join(command)}` ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout.strip()
