"""Licences of the dependencies: docs/licenses.md and the CycloneDX file of a release have every locked library."""

import json
import re

import pytest
import sbom

from checkout import ROOT

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
LIBRARIES = sbom.read_lock(LOCK)
TIME_S = 1_767_225_600  # 2026-01-01


def test_every_locked_library_is_read() -> None:
    """The reader of the lock file finds each entry with its version."""
    assert [(each.name, each.version) for each in LIBRARIES] == re.findall(r"^([^\s=]+)==(\S+)", LOCK, re.MULTILINE)


def test_the_page_lists_every_library() -> None:
    """docs/licenses.md has the libraries, versions and licences of today; scripts/licenses writes it."""
    assert (ROOT / "docs/licenses.md").read_text(encoding="utf-8") == sbom.page(LIBRARIES)


def test_licences_allow_use() -> None:
    """No library has a licence that restricts the programs that use it, such as the GPL."""
    allowed = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "MPL-2.0", "PSF-2.0"}
    named = {word for each in LIBRARIES for word in re.split(r" (?:AND|OR) ", sbom.license_of(each.name))}
    assert named <= allowed


def test_a_library_without_a_licence_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown licence is an error with the library's name, not an empty cell."""
    monkeypatch.setattr(sbom, "SPDX", {})
    with pytest.raises(sbom.UnknownLicenseError, match="licence of httpx is unknown"):
        sbom.license_of("httpx")
    with pytest.raises(sbom.UnknownLicenseError, match="no-such-library is not installed"):
        sbom.license_of("no-such-library")


def test_the_bill_of_materials_is_complete_and_repeatable() -> None:
    """Components are the libraries of the lock file, each is reachable from the project, and two runs are equal."""
    text = sbom.cyclonedx("ttft-gateway", "0.2.0", LOCK, TIME_S)
    assert text == sbom.cyclonedx("ttft-gateway", "0.2.0", LOCK, TIME_S)
    bill = json.loads(text)
    assert bill["metadata"]["timestamp"] == "2026-01-01T00:00:00+00:00"
    assert [(each["name"], each["version"]) for each in bill["components"]] == [
        (each.name, each.version) for each in LIBRARIES
    ]
    edges = {row["ref"]: row["dependsOn"] for row in bill["dependencies"]}
    assert len(edges) == len(bill["dependencies"]) == len(LIBRARIES) + 1
    reached, left = set(), [bill["metadata"]["component"]["bom-ref"]]
    while left:
        reached.add(ref := left.pop())
        left += [each for each in edges[ref] if each not in reached]
    assert reached == edges.keys()
