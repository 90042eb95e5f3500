"""The documentation site: its navigation, its links, and no part of it on another host."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from docs_site import INDEX, navigation, write

from checkout import DOCS, ROOT
from contract_file import CONTRACT, operations

SCRIPT = ROOT / "scripts" / "build-docs"
needs_mkdocs = pytest.mark.skipif(
    importlib.util.find_spec("material") is None and not os.environ.get("CI"),
    reason="mkdocs-material is missing: run scripts/setup-env dev",
)


def test_tasks_come_first_and_each_page_once() -> None:
    """The navigation begins with tasks and has each page of docs/; a new page needs a row in docs/README.md only."""
    sections = navigation(INDEX.read_text(encoding="utf-8"))
    assert [title for section in sections for title in section][:3] == ["Home", "Set it up", "Operate it"]
    pages = [
        page
        for section in sections
        for each in section.values()
        for page in (each if isinstance(each, list) else [each])
    ]
    assert len(pages) == len(set(pages))
    missing = {page.relative_to(ROOT).as_posix() for page in DOCS.rglob("*.md")} - set(pages)
    assert not missing, f"add a row for each to docs/README.md: {missing}"


def test_a_page_that_the_index_does_not_list_is_not_in_the_navigation() -> None:
    """A section has its pages in the order of their first links, without anchors and files that are no pages."""
    index = "# All\n\n## First\n\n[a](cli.md#serve), [b](config.schema.json)\n\n## Second\n\n[c](api.md), [d](cli.md)\n"
    assert navigation(index)[1:3] == [{"First": ["docs/cli.md"]}, {"Second": ["docs/api.md"]}]


def _built(folder: Path) -> subprocess.CompletedProcess[str]:
    command = re.search(r"mkdocs build (.*) --config-file", SCRIPT.read_text(encoding="utf-8"))
    assert command is not None
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *command[1].split(), "--config-file", str(folder / "mkdocs.yml")],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "HIGHLIGHT": "false"},
        capture_output=True,
        text=True,
        check=False,
    )


@needs_mkdocs
def test_mistakes_fail(tmp_path: Path) -> None:
    """A link without a page, an anchor without a heading, and a page outside the navigation are errors."""
    settings = {"INHERIT": os.path.relpath(DOCS / "site.yml", tmp_path), "nav": ["README.md"]}
    (tmp_path / "mkdocs.yml").write_text(json.dumps(settings), encoding="utf-8")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "README.md").write_text("# A\n\n[b](b.md), [c](c.md#none)\n", encoding="utf-8")
    (tmp_path / "pages" / "c.md").write_text("# C\n", encoding="utf-8")
    done = _built(tmp_path)
    assert done.returncode == 1
    assert [word for word in ("'b.md'", "'#none'", "- c.md") if word not in done.stderr] == []


@needs_mkdocs
def test_the_site(tmp_path: Path) -> None:
    """The site builds as by scripts/build-docs, without colours of code: links work, and nothing is on another host."""
    write(tmp_path)
    done = _built(tmp_path)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    pages = {page.relative_to(site).as_posix(): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    _loads_nothing_of_another_host(pages)
    _has_pages_for_links_out_of_the_docs(pages)
    _has_a_race_and_three_doors(pages)
    _has_the_whole_reference(pages["openapi.yaml.html"])
    _searches_pages_but_no_source(site / "search" / "search_index.json")


def _loads_nothing_of_another_host(pages: Mapping[str, str]) -> None:
    loads = re.compile(
        r"""<(?:script|img|iframe|source)[^>]+src=["']?(?:https?:)?//|<link[^>]+href=["']?(?:https?:)?//|url\((?:https?:)?//"""
    )
    assert [name for name, text in pages.items() if loads.search(text)] == []


def _has_pages_for_links_out_of_the_docs(pages: Mapping[str, str]) -> None:
    assert "../gateway/race/race.py.html" in pages["docs/architecture.html"]
    expected = {
        "gateway/race/race.py.html",
        "gateway/race/index.html",
        "docker/index.html",
        "examples/gateway.yaml.html",
    }
    assert expected <= pages.keys()


def _has_a_race_and_three_doors(pages: Mapping[str, str]) -> None:
    """Their links lead somewhere: mkdocs checks the links of Markdown only."""
    home = pages["index.html"]
    assert '<svg class="race"' in home
    assert "──&gt;" not in home
    doors = re.findall(r'<a href="([^"]+)"><strong>', home)
    assert len(doors) == 3
    assert [door for door in doors if door.startswith("#") and f'id="{door[1:]}"' not in home] == []
    assert [door for door in doors if not door.startswith("#") and door not in pages] == []


def _has_the_whole_reference(text: str) -> None:
    assert [path for path, method, _ in operations() if f"{method} {path}" not in text] == []
    assert [name for name in CONTRACT["components"]["schemas"] if f'id="{name.lower()}"' not in text] == []


def _searches_pages_but_no_source(index: Path) -> None:
    places = [each["location"] for each in json.loads(index.read_text(encoding="utf-8"))["docs"]]
    assert "docs/configuration.html#hedgebudget" in places
    assert [place for place in places if place.startswith(("gateway/", "providers/", "streaming_bench/"))] == []
