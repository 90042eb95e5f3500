"""README and docs: links lead somewhere, code blocks are good, and what the gateway has is described.

Settings, metrics, log fields and commands are held to their pages by the tests of their code.
"""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
import yaml
from starlette.routing import Route

from admin_site import AdminUnderTest
from checkout import ROOT
from contract_file import CONTRACT, errors, operations
from gateway.config.loader import load
from gateway.pages.files import LIVE

DOCS = ROOT / "docs"
OTHERS = ("README.md", "CHANGELOG.md", "docker/README.md", "docker/helm/ttft-gateway/README.md")
PAGES = [*(ROOT / name for name in OTHERS), *sorted(DOCS.rglob("*.md"))]
SECRETS = {
    name: name.lower()
    for name in (
        "ANTHROPIC_API_KEY",
        "AZURE_1_KEY",
        "AWS_KEY",
        "AZURE_2_KEY",
        "LITELLM_KEY",
        "OPENAI_API_KEY",
        "TEAM_A_KEY",
        "VALKEY_PASSWORD",
    )
}
ADMIN_ERRORS = {
    ("forbidden", 403),
    ("replica_not_found", 404),
    ("last_replica", 409),
    ("invalid_value", 422),
    ("config_refused", 422),
    ("too_many_subscribers", 429),
}

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _anchors(page: Path) -> set[str]:
    """What a link can lead to, as GitHub names it."""
    headings = re.findall(r"^#+ (.+)$", _text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _blocks(kind: str) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for language, text in _BLOCK.findall(_text(page)):
            if language == kind:
                yield page, text


def _rows(page: str, cell: str) -> list[str]:
    """What stands in the first cells of a page's tables, where it has this form."""
    return re.findall(rf"^\| \[?`({cell})`", _text(DOCS / page), re.MULTILINE)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    """Each local link has its file, and its heading there."""
    for target in re.findall(r"\]\(([^)\s]+)\)", _text(page)):
        if not target.startswith("https://"):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), target
            assert not anchor or anchor in _anchors(file), target


def test_the_index_has_every_page() -> None:
    """docs/README.md links every page below docs/."""
    index = _text(DOCS / "README.md")
    pages = [page.relative_to(DOCS).as_posix() for page in PAGES if page.is_relative_to(DOCS)]
    assert [page for page in pages if f"({page})" not in index] == ["README.md"]


def test_design_records_are_short() -> None:
    """A design record has fewer than 100 lines; scripts/check-style holds the length of guides."""
    records = sorted((DOCS / "design").glob("*.md"))
    assert records
    assert [record.name for record in records if len(_text(record).splitlines()) >= 100] == []


def test_the_layers_are_those_of_the_import_contracts() -> None:
    """docs/architecture.md shows the layers of each package as import-linter checks them."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    shown = "\n".join(
        "\n".join([*contract["containers"], *(f"    {layer}" for layer in contract["layers"])])
        for contract in contracts
        if contract["type"] == "layers"
    )
    assert f"```\n{shown}\n```" in _text(DOCS / "architecture.md")


def test_code_blocks_can_be_read() -> None:
    """What is marked as JSON, YAML or Python is."""
    for _, text in _blocks("json"):
        json.loads(text)
    for _, text in _blocks("yaml"):
        yaml.safe_load(re.sub(r"\$\{\w+\}", "x", text))
    for _, text in _blocks("python"):
        ast.parse(text)


def test_configurations_can_be_used(tmp_path: Path) -> None:
    """Each whole configuration that is shown loads."""
    whole = [(page, text) for page, text in _blocks("yaml") if re.search(r"^models:", text, re.MULTILINE)]
    authority = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(authority))
    for page, text in whole:
        file = tmp_path / f"{page.stem}.yaml"
        file.write_text(re.sub(r"(ca_file:) /\S+", rf"\1 {authority}", text), encoding="utf-8")
        assert load(file, SECRETS).models
    assert {page.name for page, _ in whole} >= {"README.md", "configuration.md"}


def test_error_codes() -> None:
    """docs/errors.md has one row for each error code and its status, and none for what there is not."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", _text(DOCS / "errors.md"), re.MULTILINE)
    told = [(code, int(status)) for code, status in rows]
    assert sorted(told) == sorted({(error.code, error.status) for error in errors()} | ADMIN_ERRORS)


def test_public_routes() -> None:
    """docs/api.md has one row for each public route."""
    assert _rows("api.md", "[A-Z]+ /[^`]*") == [f"{method} {path}" for path, method, _ in operations()]


def test_headers() -> None:
    """docs/api.md has each header of the contract."""
    api = _text(DOCS / "api.md")
    asked = {parameter["name"] for parameter in CONTRACT["components"]["parameters"].values()}
    told = {
        name
        for operation in (operation for _, _, operation in operations())
        for response in (*operation["responses"].values(), *CONTRACT["components"]["responses"].values())
        for name in response.get("headers", ())
    }
    assert [name for name in asked | told if f"`{name}`" not in api] == []


def test_admin_routes() -> None:
    """docs/admin.md has a row and a heading for each route of the admin address, parts of its page apart."""
    parts = set(LIVE) - {"/"}
    app = AdminUnderTest().admin.app
    routes = [route for route in app.routes if isinstance(route, Route) and route.path not in parts]
    expected = sorted(
        f"{method} {route.path.replace(':path', '')}"
        for route in routes
        for method in (route.methods or set()) - {"HEAD"}
    )
    headings = re.findall(r"^## `(.+)`$", _text(DOCS / "admin.md"), re.MULTILINE)
    assert sorted(headings) == expected
    assert sorted(_rows("admin.md", "[A-Z]+ /[^`]*")) == expected
