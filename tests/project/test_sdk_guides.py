"""The guides with tables of scripts/sdk-matrix have what it checks; the run itself needs package registries."""

import re
from collections.abc import Mapping

import pytest

from checkout import ROOT
from checks import CASES, GO_CHECKS, GO_PROGRAMS, TRANSPORTS, Sdk


@pytest.mark.parametrize(
    ("name", "checks", "columns"),
    [
        ("evaluation/transports.md", CASES, [sdk.name for sdk in TRANSPORTS]),
        ("guides/sidecar.md", GO_CHECKS, list(GO_PROGRAMS)),
    ],
)
def test_a_guide_has_the_results_of_every_client(name: str, checks: Mapping[str, str], columns: list[str]) -> None:
    """A guide has a result of each client and check, and describes each check; nothing failed."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    table = page.partition("<!-- the table -->")[2].partition("<!-- the end of the table -->")[0]
    head, _, *rows = (line for line in table.splitlines() if line.startswith("|"))
    assert head.split(" | ")[1:] == [*columns[:-1], f"{columns[-1]} |"]
    assert [row.split(" | ") for row in rows] == [
        [f"| {name}", *["yes"] * (len(columns) - 1), "yes |"] for name in checks
    ]
    assert [name for name, what in checks.items() if f"| {name} | {what} |\n" not in page] == []


@pytest.mark.parametrize("sdk", TRANSPORTS, ids=lambda sdk: sdk.name)
def test_a_transports_table_is_of_the_versions_in_the_script(sdk: Sdk) -> None:
    """The page of results names the version of each SDK, and the guide links its example."""
    results = (ROOT / "docs" / "evaluation" / "transports.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "guides" / "client-sdks.md").read_text(encoding="utf-8")
    assert f"`{sdk.packages[0]}`" in results
    assert f"(../../examples/{sdk.client.replace('transport_', 'client_')})" in page


def test_the_go_programs_are_of_the_version_on_the_page() -> None:
    """The guide names the module that examples/go requires."""
    module = re.search(
        r"^require (\S+) (\S+)$", (ROOT / "examples/go/go.mod").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert module is not None
    assert f"`{module[1]}@{module[2]}`" in (ROOT / "docs" / "guides" / "sidecar.md").read_text(encoding="utf-8")
