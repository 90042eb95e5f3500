"""The files that are generated from the code: two JSON schemas, the alerts, and marked blocks of pages.

A block of a page begins with the line `<!-- generated: NAME -->` and ends with `<!-- end -->`. scripts/generate writes
all of them.
"""

import ast
import enum
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from alert_rules import rules_text
from checkout import DOCS, ROOT
from gateway.config.loader import json_schema
from log_schema import as_text
from ttft_gateway.apis.base import Api
from ttft_gateway.apis.catalog import CATALOG, Auth, Kind
from ttft_gateway.hedging.outcomes import Denial, Outcome

_BLOCK: Final = re.compile(r"^<!-- generated: (\w+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
_PAGE: Final = re.compile(r"docs/([\w-]+\.md)(#[\w-]+)?")
_CODE: Final = re.compile(r"`([^`:]+)(?::[^`]*)?`")
_AUTH: Final = {Auth.BEARER: "bearer", Auth.API_KEY: "`api-key`", Auth.X_API_KEY: "`x-api-key`"}
_STOPS: Final = {True: "yes", False: "no", None: "not known"}


def generated() -> Iterator[tuple[Path, str]]:
    """Yield each file that has something generated, with its text as it should be."""
    yield DOCS / "config.schema.json", json.dumps(json_schema(), indent=2) + "\n"
    yield DOCS / "log.schema.json", as_text()
    yield ROOT / "docker/monitoring/rules.yaml", rules_text()
    yield ROOT / "docker/helm/ttft-gateway/files/rules.yaml", rules_text()  # Helm reads files of the chart only
    dashboard = ROOT / "docker/monitoring/dashboard.json"
    yield ROOT / "docker/helm/ttft-gateway/files/dashboard.json", dashboard.read_text(encoding="utf-8")
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if _BLOCK.search(text):
            yield page, _BLOCK.sub(lambda block: _block(block[1]), text)


def without_blocks(text: str) -> str:
    """Return a page without its generated blocks."""
    return _BLOCK.sub("", text)


def _block(name: str) -> str:
    return "\n".join([f"<!-- generated: {name} -->", "", *BLOCKS[name](), "", "<!-- end -->"])


def _catalogue() -> list[str]:
    columns = "kind", "base URL", "key", "native APIs", "limit headers", "cancelling ends billing"
    rows = [_row_of_kind(name, kind) for name, kind in CATALOG.items()]
    return _table((*columns, "counts `max_tokens`", "continues"), rows)


def _row_of_kind(name: str, kind: Kind) -> tuple[str, ...]:
    yes = {True: "yes", False: ""}
    address = "own engine" if kind.own_engine else f"`{kind.base_url}`" if kind.base_url else "differs"
    return (
        f"`{name}`",
        address,
        _AUTH[kind.auth],
        ", ".join(f"`{api.value}`" for api in Api if api in kind.apis),
        yes[kind.limits is not None],
        _STOPS[kind.cancel_stops_billing],
        yes[kind.counts_max_tokens],
        yes[bool(kind.prefills)],
    )


def _members(title: str, members: type[enum.Enum]) -> list[str]:
    meanings = _docstrings(members)
    return _table((title, "meaning"), [(f"`{each.value}`", _linked(meanings[each.name])) for each in members])


def _docstrings(members: type[enum.Enum]) -> Mapping[str, str]:
    """Return the docstring after each member, as the last part of a sentence."""
    definition = ast.parse(inspect.getsource(members)).body[0]
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for member, docstring in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Name):
            assert isinstance(docstring, ast.Expr), f"{members.__name__}.{member.targets[0].id} has no docstring"
            assert isinstance(docstring.value, ast.Constant)
            text = " ".join(str(docstring.value.value).split()).removesuffix(".")
            found[member.targets[0].id] = text if text[1:2].isupper() else text[:1].lower() + text[1:]
    return found


def _linked(text: str) -> str:
    """Return a text with links to the pages and settings that it names."""
    settings = re.findall(r"^### `(.+)`$", (DOCS / "configuration.md").read_text(encoding="utf-8"), re.MULTILINE)

    def setting(code: re.Match[str]) -> str:
        anchor = re.sub(r"[^\w]", "", code[1])
        return f"[{code[0]}](configuration.md#{anchor})" if code[1] in settings else code[0]

    return _PAGE.sub(lambda page: f"[{page[1]}]({page[1]}{page[2] or ''})", _CODE.sub(setting, text))


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [columns, ("---",) * len(columns), *rows]
    return ["| " + " | ".join(line) + " |" if line[0] != "---" else "|" + "---|" * len(line) for line in lines]


BLOCKS: Final[Mapping[str, Callable[[], list[str]]]] = {
    "catalogue": _catalogue,
    "denials": lambda: _members("reason", Denial),
    "outcomes": lambda: _members("outcome", Outcome),
}


if __name__ == "__main__":
    for path, text in generated():
        path.write_text(text, encoding="utf-8")
