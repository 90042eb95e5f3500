"""Makes the input of the documentation site: pages, source files that pages link, and the navigation.

scripts/build-docs runs it, then mkdocs. The folder `pages` has the paths of the repository, so that every link leads to
the same file as there: Markdown pages are copied, a source file is a page with its text, a folder of code is a page
with its modules, and openapi.yaml is the API reference. The first page is the README with docs/home.html instead of its
drawing. The search lists measurements and decisions last. The navigation follows docs/README.md: a page that is listed
there needs no other entry, and one that is not is an error. Standard library and PyYAML only.
"""

import ast
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml
from api_reference import reference

from checkout import DOCS, ROOT

INDEX: Final = DOCS / "README.md"
OTHERS: Final = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
CONTRACT: Final = "openapi.yaml"
_LANGUAGES: Final = {  # of files that are shown as pages; all others are copied as they are
    "": "text",
    ".cfg": "text",
    ".conf": "text",
    ".go": "go",
    ".lock": "text",
    ".lua": "lua",
    ".mjs": "javascript",
    ".py": "python",
    ".service": "ini",
    ".sh": "sh",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
}
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
_NESTED: Final = re.compile(r"^ {2,3}(?=(?:[-*]|\d+\.) )", re.MULTILINE)
_HOME: Final = DOCS / "home.html"
_DRAWING: Final = re.compile(r"^```\n.*?^```$", re.MULTILINE | re.DOTALL)
_BOOSTS: Final = {
    "docs/evaluation": 0.2,
    "docs/design": 0.2,
    "CHANGELOG.md": 0.2,
    "docs/configuration.md": 2,
}  # for search
_SOURCE: Final = "---\nsearch: {exclude: true}\nhide: [toc]\n---\n"


class Site:
    """The input of the site.

    Args:
        pages: folder of the pages.
    """

    def __init__(self, pages: Path) -> None:
        self._pages = pages
        self._done: set[Path] = set()

    def write(self) -> None:
        """Write all pages."""
        for name in OTHERS:
            self._add(ROOT / name)
        for page in sorted(DOCS.rglob("*.md")):
            self._add(page)
        self._add(DOCS / "site.css")

    def _add(self, path: Path) -> None:
        """Write the page of a file or folder, and the pages that it links."""
        if path in self._done:
            return
        self._done.add(path)
        if path.suffix == ".md":
            self._put(path, self._markdown(path).encode())
        elif page_of(path) == path:
            self._put(path, path.read_bytes())
        else:
            self._put(page_of(path), _source(path).encode())

    def _markdown(self, page: Path) -> str:
        text = page.read_text(encoding="utf-8")
        if page == ROOT / "README.md":
            text = _DRAWING.sub(_HOME.read_text(encoding="utf-8"), text, count=1)
        parts = _FENCE.split(text)
        prose = "".join(part if part.startswith("```") else self._prose(page, part) for part in parts)
        name = page.relative_to(ROOT).as_posix()
        boost = next((boost for start, boost in _BOOSTS.items() if name.startswith(start)), None)
        return prose if boost is None else f"---\nsearch: {{boost: {boost}}}\n---\n{prose}"

    def _prose(self, page: Path, text: str) -> str:
        def link(found: re.Match[str]) -> str:
            target, hash_, anchor = found[1].partition("#")
            if not target or "://" in target or target.startswith("mailto:"):
                return found[0]
            path = Path(os.path.normpath(page.parent / target))
            if not path.exists() or not path.is_relative_to(ROOT):
                return found[0]  # mkdocs reports it
            self._add(path)
            return f"]({os.path.relpath(page_of(path), page.parent)}{hash_}{anchor})"

        return _LINK.sub(link, _NESTED.sub("    ", text))

    def _put(self, path: Path, content: bytes) -> None:
        file = self._pages / path.relative_to(ROOT)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def page_of(path: Path) -> Path:
    """Return the file below `pages` that stands for a file or folder of the repository."""
    if path.is_dir():
        return path / "index.md"
    return path.with_name(path.name.lstrip(".") + ".md") if path.suffix in _LANGUAGES else path


def _source(path: Path) -> str:
    """Return the page of a folder or of a file that is no Markdown."""
    name = path.relative_to(ROOT).as_posix()
    if name == CONTRACT:
        return reference(yaml.safe_load(path.read_text(encoding="utf-8")))
    if path.is_dir():
        return f"{_SOURCE}# {name}\n\n| file | contents |\n|---|---|\n" + "".join(_modules(path))
    text = path.read_text(encoding="utf-8")
    return f"{_SOURCE}# {name}\n\n~~~~{_LANGUAGES[path.suffix]}\n{text}~~~~\n"


def _modules(folder: Path) -> Iterator[str]:
    for file in sorted(folder.glob("*.py")):
        told = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
        if told:
            first = " ".join(told.partition("\n\n")[0].split()).replace("|", "\\|")
            yield f"| `{file.name}` | {first} |\n"


def navigation(index: str) -> list[dict[str, object]]:
    """Return the navigation: a section for each heading of the index, its pages in the order of their first links.

    Args:
        index: text of docs/README.md.
    """
    sections: list[dict[str, object]] = [{"Home": "README.md"}]
    seen: set[str] = set()
    for title, text in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", index, re.MULTILINE | re.DOTALL):
        pages = []
        for target in _LINK.findall(text):
            path = Path(os.path.normpath(DOCS / target.partition("#")[0]))
            page = page_of(path).relative_to(ROOT).as_posix()
            if (
                page.endswith(".md")
                and (path.suffix == ".md" or path.name == CONTRACT)
                and page not in seen | {"README.md"}
            ):
                seen.add(page)
                pages.append(page)
        sections.append({title: pages})
    sections.append({"Project": ["docs/README.md", *(name for name in OTHERS[1:] if name not in seen)]})
    return sections


def write(folder: Path) -> None:
    """Write the input of mkdocs: `mkdocs.yml` and the pages."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "pages"
    Site(pages).write()
    navigated = navigation(INDEX.read_text(encoding="utf-8"))
    others = sorted(
        {path.name for path in pages.iterdir()} - {"docs", *OTHERS}
    )  # of which some may be in the navigation
    settings = {
        "INHERIT": os.path.relpath(DOCS / "site.yml", folder),
        "nav": navigated,
        "not_in_nav": "\n".join(["/docs/**/*.*.md", *(f"/{name}" for name in others)]),
    }
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
