"""The countable language rules of CONTRIBUTING.md, checked over code and documentation; run by scripts/check-style.

Rules: `classes` (a public class name is used once in a package), `openings` (no docstring or entry of one begins with
"What", "How", "Whether", "Who" or "Where"), `words` (no word for speech or thought about software), `pronouns` (no
pronoun for a noun of another clause; tests, scripts and examples are checked too), `length` (a guide has fewer than 150
lines). Every finding is one line: file, line, text found, replacement. Standard library only.
"""

import argparse
import ast
import io
import itertools
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

PACKAGES: Final = ("gateway", "providers", "streaming_bench", "ttft_gateway")
OTHER_CODE: Final = ("examples", "scripts", "tests")  # held to the rule `pronouns` only
PAGES: Final = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docker/**/*.md", "docs/**/*.md")
GUIDE_LINES_MAX: Final = 150
# Pages that are looked up instead of read: their length follows what they list.
REFERENCE: Final = (
    "CHANGELOG.md",
    "docker/helm/ttft-gateway/README.md",
    "docs/admin.md",
    "docs/api.md",
    "docs/bench.md",
    "docs/cli.md",
    "docs/configuration.md",
    "docs/errors.md",
    "docs/evaluation/*",
    "docs/logs.md",
    "docs/metrics.md",
    "docs/providers.md",
    "docs/runbook.md",
    "docs/simulated-replica.md",
)
_GENERATED: Final = re.compile(r"^<!-- generated: .*?^<!-- end -->\n", re.MULTILINE | re.DOTALL)
# Word -> replacement. Each of these is nearly always said of software here; verbs that people share with software are
# left to the reviewer.
WORDS: Final[Mapping[str, str]] = {
    r"told": "configured, received, or reported, with the name of the field or message",
    r"tells?|telling": "reports, returns, shows",
    r"hears?|heard|hearing": "receives",
    r"speaks?|spoken?|speaking": "supports, uses, implements",
    r"says|said|saying": "returns, reports, states, shows",
    r"knows|knew": "has, stores, supports, imports",
    r"stands(?! for\b)|stood": "is, or names the place",
    r"nobody|somebody|everybody|anybody": "no client, a client, all clients: name the role",
    r"whoever|whom": "any client that, a replica that: name the role",
    r"so (?:much|many)(?! (?:that|as)\b)": "the quantity: `tokens`, at most N",
    r"(?<=for )so long(?! (?:that|as)\b)": "the quantity: for N seconds",
    r"brains?": "policy",
    r"into words": "translated, encoded",
}
# Pronoun for a noun of another clause -> replacement.
PRONOUNS: Final[Mapping[str, str]] = {
    r"(?:those|that) of": "repeat the noun: `the times of the worker`",
    r"without one(?! of\b)": "repeat the noun: `without a key`",
    r"whose": "`with`, `of which the`, or a sentence of its own",
}
# Paths with such pronouns. Remove a path when its docstrings and comments have none.
UNCLEAN: Final = ("CHANGELOG.md",)
# (page or module, word, reason): the word is right there.
EXCEPTIONS: Final[tuple[tuple[str, str, str], ...]] = ()

_WORD: Final = re.compile(r"\b(?:" + "|".join(f"(?:{word})" for word in WORDS) + r")\b", re.IGNORECASE)
_PRONOUN: Final = re.compile(
    r"\b(?:" + "|".join(word.replace(" ", r"\s+") for word in PRONOUNS) + r")\b", re.IGNORECASE
)
_OPENING: Final = re.compile(r"(?:What|How|Whether|Who|Whom|Whose|Where)(?:ever)?\b")
_QUESTION: Final = re.compile(r"(?:What|How|Whether|Who|Where)\b")  # counted by itself, to compare with earlier counts
_ENTRY: Final = re.compile(
    r"([\w*.`]+(?:, [\w*.`]+)*(?: \([^)]*\))?): ((?:what|how|whether|who|whose|where)(?:ever)?|likewise)\b",
    re.IGNORECASE,
)
_FENCE: Final = re.compile(r"^ *(?:```|~~~)")
_SHELL_COMMENT: Final = re.compile(r"(?:^|\s)#(.*)")
_CODE: Final = re.compile(r"`[^`]*`|\]\([^)]*\)|https?://\S+")


@dataclass(frozen=True, slots=True)
class Finding:
    """A place that breaks a rule.

    Attributes:
        file: path relative to the checked tree.
        line: number of the line, from 1.
        found: text found.
        instead: replacement.
    """

    file: str
    line: int
    found: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.found}; {self.instead}"


@dataclass(frozen=True, slots=True)
class Text:
    """A docstring, a comment or a page, with the number of its first line."""

    file: str
    line: int
    text: str


class Module:
    """A parsed Python file."""

    def __init__(self, root: Path, path: Path) -> None:
        self.name = path.relative_to(root).as_posix()
        self.source = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.source, self.name)

    @cached_property
    def docstrings(self) -> list[Text]:
        """Docstrings of the module, its classes and its functions."""
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        nodes = (
            node for node in ast.walk(self.tree) if isinstance(node, kinds) and ast.get_docstring(node) is not None
        )
        return [Text(self.name, node.body[0].lineno, ast.get_docstring(node, clean=False) or "") for node in nodes]

    @cached_property
    def attribute_docs(self) -> list[Text]:
        """Strings after the attributes of a class, which document them."""
        bodies = (node.body for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))
        pairs = (pair for body in bodies for pair in itertools.pairwise(body))
        return [
            Text(self.name, text.lineno, ast.literal_eval(text.value))
            for target, text in pairs
            if isinstance(target, ast.Assign | ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(getattr(text.value, "value", None), str)
        ]

    @cached_property
    def comments(self) -> list[Text]:
        """Comments, without their `#`; the lines of a block are one text."""
        tokens = tokenize.generate_tokens(io.StringIO(self.source).readline)
        texts: list[Text] = []
        for row in tokens:
            if row.type == tokenize.COMMENT:
                text = Text(self.name, row.start[0], row.string.lstrip("#!: "))
                is_next_line = bool(texts) and texts[-1].line + texts[-1].text.count("\n") + 1 == text.line
                if is_next_line and row.line.lstrip().startswith("#"):
                    text = Text(self.name, texts[-1].line, f"{texts.pop().text}\n{text.text}")
                texts.append(text)
        return texts

    @property
    def prose(self) -> list[Text]:
        """Docstrings and comments."""
        return [*self.docstrings, *self.attribute_docs, *self.comments]

    @property
    def classes(self) -> Iterator[ast.ClassDef]:
        """Public classes at the top level of the module."""
        return (node for node in self.tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))


class Tree:
    """The packages, their modules and the pages below a root folder."""

    def __init__(self, root: Path, packages: Sequence[str] = PACKAGES) -> None:
        self.root = root
        self.packages = {
            name: [Module(root, path) for path in sorted((root / name).rglob("*.py"))] for name in packages
        }
        self.modules = [module for modules in self.packages.values() for module in modules]
        pages = sorted({path for pattern in PAGES for path in root.glob(pattern)})
        self.pages = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in pages}

    def prose(self) -> Iterator[Text]:
        """Docstrings, comments and pages, without code."""
        for module in self.modules:
            yield from module.prose
        for name, text in self.pages.items():
            fenced, lines = False, []
            for line in text.splitlines():
                is_fence = _FENCE.match(line) is not None
                fenced ^= is_fence
                lines.append("" if fenced or is_fence or line.startswith("    ") else line)
            yield Text(name, 1, "\n".join(lines))

    def other_prose(self) -> Iterator[Text]:
        """Docstrings and comments of `OTHER_CODE`: of Python files, and of scripts in Python and in shell."""
        paths = (path for name in OTHER_CODE for path in sorted((self.root / name).rglob("*")) if path.is_file())
        for path in paths:
            first = path.read_bytes()[:100].partition(b"\n")[0]
            if path.suffix == ".py" or (first.startswith(b"#!") and b"python" in first):
                yield from Module(self.root, path).prose
            elif first.startswith(b"#!") or path.suffix == ".sh":
                lines = (_SHELL_COMMENT.search(line) for line in path.read_text(encoding="utf-8").splitlines())
                yield Text(
                    path.relative_to(self.root).as_posix(), 1, "\n".join(line[1] if line else "" for line in lines)
                )


def check_classes(tree: Tree) -> Iterator[Finding]:
    """Yield every second public class of one name in a package."""
    for modules in tree.packages.values():
        first: dict[str, str] = {}
        for module in modules:
            for node in module.classes:
                place = f"{module.name}:{node.lineno}"
                if first.setdefault(node.name, place) != place:
                    found = f"class {node.name} is also defined in {first[node.name]}"
                    yield Finding(module.name, node.lineno, found, "rename one of them")


def check_openings(tree: Tree) -> Iterator[Finding]:
    """Yield docstrings and entries of docstrings that begin with a question word."""
    for text in (row for module in tree.modules for row in (*module.docstrings, *module.attribute_docs)):
        for offset, line in enumerate(text.text.splitlines()):
            stripped = line.strip()
            if offset == 0 and (match := _OPENING.match(stripped)):
                instead = "begin with a verb (`Return ...`) or with a noun for a known thing"
                yield Finding(text.file, text.line, f"docstring begins with {match[0]!r}", instead)
            elif offset and (match := _ENTRY.match(stripped)):
                instead = "write a noun phrase with the unit and the meaning of None"
                yield Finding(text.file, text.line + offset, f"entry {match[1]} begins with {match[2]!r}", instead)


def check_words(tree: Tree) -> Iterator[Finding]:
    """Yield banned words in docstrings, comments and pages; code spans and links are left out."""
    excepted = {(file, word) for file, word, _ in EXCEPTIONS}
    for text in tree.prose():
        for offset, line in enumerate(text.text.splitlines()):
            for match in _WORD.finditer(_CODE.sub("", line)):
                if (text.file, match[0].lower()) not in excepted:
                    yield Finding(text.file, text.line + offset, repr(match[0]), f"write: {_replacement(match[0])}")


def check_pronouns(tree: Tree) -> Iterator[Finding]:
    """Yield pronouns for a noun of another clause outside `UNCLEAN`, also across the end of a line."""
    for text in (*tree.prose(), *tree.other_prose()):
        if not text.file.startswith(UNCLEAN):
            prose = _CODE.sub(lambda match: "\n" * match[0].count("\n"), text.text)
            for match in _PRONOUN.finditer(prose):
                found = " ".join(match[0].lower().split())
                instead = next(instead for word, instead in PRONOUNS.items() if re.match(word, found))
                line = text.line + prose.count("\n", 0, match.start())
                yield Finding(text.file, line, repr(found), f"write: {instead}")


def check_length(tree: Tree) -> Iterator[Finding]:
    """Yield guides of `GUIDE_LINES_MAX` lines or more."""
    for name, lines in _guides(tree).items():
        if lines >= GUIDE_LINES_MAX:
            instead = f"shorten it to under {GUIDE_LINES_MAX}, split it, or list it as a reference page"
            yield Finding(name, lines, f"guide of {lines} lines", instead)


RULES: Final[Mapping[str, Callable[[Tree], Iterator[Finding]]]] = {
    "classes": check_classes,
    "openings": check_openings,
    "words": check_words,
    "pronouns": check_pronouns,
    "length": check_length,
}


def figures(tree: Tree) -> Iterator[tuple[str, object]]:
    """Yield the figures that `--count` prints: name and value."""
    words = {name: len(text.split()) for name, text in tree.pages.items()}
    docs = sum(count for name, count in words.items() if name.startswith("docs/") or name == "README.md")
    yield "words of README.md and docs", docs
    yield "words of the other pages", sum(words.values()) - docs
    yield "words of docstrings", sum(len(row.text.split()) for module in tree.modules for row in module.docstrings)
    yield "words of comments", sum(len(row.text.split()) for module in tree.modules for row in module.comments)
    yield "docstrings", sum(len(module.docstrings) for module in tree.modules)
    for rule, check in RULES.items():
        yield f"findings of rule {rule}", sum(1 for _ in check(tree))
    openings = [row.text.lstrip() for module in tree.modules for row in module.docstrings]
    yield "docstrings beginning with a question word", sum(1 for text in openings if _QUESTION.match(text))
    for name, modules in tree.packages.items():
        yield f"lines of code in {name}", sum(len(module.source.splitlines()) for module in modules)
    classes = {name: Counter(node.name for row in rows for node in row.classes) for name, rows in tree.packages.items()}
    yield "public classes", sum(count.total() for count in classes.values())
    yield "public class names used again", sum(n > 1 for count in classes.values() for n in count.values())
    longest = max(_guides(tree).items(), key=lambda row: row[1], default=("none", 0))
    yield "longest guide", f"{longest[0]}, {longest[1]} lines"
    yield "rooms of gateway", len(_rooms(tree.root / "gateway"))
    yield "layers of gateway", _layers(tree.root / "pyproject.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rules, or count; the exit code is 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="scripts/check-style", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2], help="tree to check; default: this one")
    parser.add_argument("--only", metavar="RULES", help=f"rules to run, separated by commas: {','.join(RULES)}")
    parser.add_argument("--packages", metavar="NAMES", default=",".join(PACKAGES), help="default: %(default)s")
    parser.add_argument("--count", action="store_true", help="print figures instead of findings; exit code 0")
    options = parser.parse_args(arguments)
    chosen = options.only.split(",") if options.only else list(RULES)
    if unknown := sorted({*chosen} - {*RULES}):
        parser.error(f"--only is {', '.join(unknown)}; write some of {', '.join(RULES)}, separated by commas")
    if not any((options.root / name).is_dir() for name in options.packages.split(",")):
        parser.error(f"--root is {options.root}, which has none of the packages {options.packages}; name a checkout")
    tree = Tree(options.root, options.packages.split(","))
    if options.count:
        sys.stdout.writelines(f"{name:44}{value}\n" for name, value in figures(tree))
        return 0
    findings = [finding for rule in chosen for finding in RULES[rule](tree)]
    sys.stdout.writelines(f"{finding}\n" for finding in findings)
    sys.stdout.write(f"check-style: {len(findings)} findings of the rules {', '.join(chosen)}\n")
    return 1 if findings else 0


def _replacement(found: str) -> str:
    return next(
        instead for word, instead in WORDS.items() if re.search(rf"\b(?:{word})\b", f"for {found}", re.IGNORECASE)
    )


def _guides(tree: Tree) -> dict[str, int]:
    """Return the number of lines of each page that is not a reference page, without generated tables."""
    return {
        name: len(_GENERATED.sub("", text).splitlines())
        for name, text in tree.pages.items()
        if not any(Path(name).match(pattern) for pattern in REFERENCE)
    }


def _rooms(package: Path) -> list[str]:
    """Return the modules and packages directly below a package."""
    folders = [path.name for path in package.glob("*/") if any(path.glob("*.py"))]
    return sorted(folders + [path.stem for path in package.glob("*.py") if path.name != "__init__.py"])


def _layers(pyproject: Path) -> int:
    """Return the number of rows of the gateway's layer contract, 0 without such a contract."""
    contracts = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    rows = [row for row in contracts if row["type"] == "layers" and row.get("containers") == ["gateway"]]
    return len(rows[0]["layers"]) if rows else 0


if __name__ == "__main__":
    sys.exit(main())
