"""Lists the libraries of an installation with their licences: docs/licenses.md, and a CycloneDX file for a release.

Names, versions and edges come from requirements.lock, licences from the installed packages. Run by
scripts/licenses and scripts/release. Standard library only. No units but dates.
"""

import datetime as dt
import hashlib
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

PROJECT: Final = "ttft-gateway"
LOCK: Final = "requirements.lock"
PAGE: Final = "docs/licenses.md"
# Licences by their names in metadata that has no SPDX expression -> expression.
SPDX: Final[Mapping[str, str]] = {
    "Apache Software License": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD-3-Clause": "BSD-3-Clause",
    "MIT": "MIT",
    "MIT License": "MIT",
    "MPL-2.0": "MPL-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
# Package with incomplete metadata here -> expression, with the reason.
KNOWN: Final[Mapping[str, str]] = {
    "async-timeout": "Apache-2.0",  # installed on Python 3.11.0 to 3.11.2 only
    "uvloop": "MIT OR Apache-2.0",  # has the texts of both, and names one
}
_ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+)(?: ; ([^\\\n]+?))? \\\n((?:    .*\n?)+)", re.MULTILINE)
_HEAD = """# Licences of the dependencies

Libraries that [requirements.lock](../requirements.lock) installs: the client library with the extras `serve` and
`share`. Each installed package has the text of its licence in its `.dist-info` folder, in the image too. The project
itself is under the [MIT licence](../LICENSE). `scripts/licenses` writes this page; `scripts/release` writes the same
list beside the wheel, as a CycloneDX file.

| library | version | licence (SPDX) | installed on |
|---|---|---|---|
"""


class UnknownLicenseError(Exception):
    """A library has no licence in a known form; the message names the library."""


@dataclass(frozen=True)
class Library:
    """A library of the lock file.

    Attributes:
        marker: environments that install it, "" for all.
        parents: names of the libraries that require it; the project's own name if it does.
    """

    name: str
    version: str
    marker: str
    parents: tuple[str, ...]


def read_lock(text: str) -> list[Library]:
    """Return the libraries of a lock file, in its order."""
    found = []
    for name, version, marker, rest in _ENTRY.findall(text):
        comments = re.findall(r"^ +# +(?:via )?(\S+)", rest, re.MULTILINE)
        found.append(Library(name, version, marker, tuple(each for each in comments if each != "via")))
    return found


def license_of(name: str) -> str:
    """Return the SPDX expression of an installed library.

    Raises:
        UnknownLicenseError: its metadata has no known licence, or it is not installed.
    """
    if name in KNOWN:
        return KNOWN[name]
    try:
        fields = metadata.metadata(name).json
    except metadata.PackageNotFoundError:
        raise UnknownLicenseError(f"{name} is not installed; run scripts/setup-env dev") from None
    if expression := fields.get("license_expression"):
        return str(expression)
    classifiers = fields.get("classifier", [])
    named = [str(fields.get("license", "")), *(row.rpartition(" :: ")[2] for row in classifiers if "License ::" in row)]
    found = next((SPDX[each] for each in named if each in SPDX), None)
    if found is None:
        raise UnknownLicenseError(f"the licence of {name} is unknown; add it to tests/project/sbom.py after a look")
    return found


def page(libraries: Sequence[Library]) -> str:
    """Return docs/licenses.md."""
    rows = [
        f"| {each.name} | {each.version} | {license_of(each.name)} | {each.marker.replace('|', '') or 'all'} |\n"
        for each in libraries
    ]
    return _HEAD + "".join(rows)


def cyclonedx(project: str, version: str, lock: str, time_s: int) -> str:
    """Return a CycloneDX 1.6 document as JSON; equal inputs give equal bytes.

    Args:
        project: name of the project.
        version: version of the project.
        lock: text of the lock file.
        time_s: time of the release commit, in seconds since 1970.
    """
    libraries = read_lock(lock)
    root = f"pkg:pypi/{project}@{version}"
    purls = {each.name: f"pkg:pypi/{each.name}@{each.version}" for each in libraries}
    purls |= {project: root, f"{project}-server": root}  # one application, in two wheels of one version
    edges: dict[str, set[str]] = {purl: set() for purl in purls.values()}
    for each in libraries:
        for parent in each.parents:
            edges[purls[parent]].add(purls[each.name])
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(bytes=hashlib.sha256((root + lock).encode()).digest()[:16], version=4)}",
        "version": 1,
        "metadata": {
            "timestamp": dt.datetime.fromtimestamp(time_s, dt.UTC).isoformat(),
            "component": _component("application", project, version, "MIT"),
        },
        "components": [_component("library", each.name, each.version, license_of(each.name)) for each in libraries],
        "dependencies": [{"ref": ref, "dependsOn": sorted(children)} for ref, children in edges.items()],
    }
    return json.dumps(document, indent=2) + "\n"


def _component(kind: str, name: str, version: str, expression: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    licenses = [{"expression": expression}]
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl, "licenses": licenses}


def write_release(root: Path, dist: Path, time_s: int) -> Path:
    """Write the CycloneDX file of a checkout beside its wheel; return its path."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    path = dist / f"ttft_gateway-{version}.cdx.json"
    path.write_text(cyclonedx(PROJECT, version, (root / LOCK).read_text(encoding="utf-8"), time_s), encoding="utf-8")
    return path


def main(root: Path = Path(__file__).parents[2]) -> int:
    """Write docs/licenses.md; the exit code is 1 if a licence is unknown."""
    try:
        text = page(read_lock((root / LOCK).read_text(encoding="utf-8")))
    except UnknownLicenseError as error:
        sys.stderr.write(f"scripts/licenses: {error}\n")
        return 1
    (root / PAGE).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
