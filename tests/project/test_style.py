"""The style check: each rule finds a planted violation, passes a clean tree, and prints its place."""

from collections.abc import Callable
from pathlib import Path

import pytest
import style

Plant = Callable[[str, str], Path]

CLEAN = '''"""Runs a race. Units: seconds."""

LIMIT_S = 1.0  # servers close idle connections after 60 s, so a test of one needs no longer


class Race:
    """Sends attempts and returns the winner.

    Attributes:
        start_s: loop time of the first attempt, None before it.
    """
'''


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Return a function that writes a file into a clean tree and returns the tree's root."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return tmp_path

    write("gateway/race/race.py", CLEAN)
    write("docs/guide.md", "# Guide\n\nThe gateway returns 429.\n")
    contract = '[[tool.importlinter.contracts]]\ntype = "layers"\ncontainers = ["gateway"]\nlayers = ["app", "race"]\n'
    write("pyproject.toml", contract)
    return write


def findings(root: Path, rule: str) -> list[str]:
    """Run one rule."""
    return [str(finding) for finding in style.RULES[rule](style.Tree(root))]


@pytest.mark.parametrize("rule", style.RULES)
def test_a_clean_tree_passes(plant: Plant, rule: str) -> None:
    """No rule finds anything in a clean tree; one name may be used in two packages, and twice as a private class."""
    plant("providers/race.py", 'class Race:\n    """Runs."""\n')
    root = plant("ttft_gateway/pool/pool.py", 'class _Race:\n    """Runs."""\n\n\nclass Pool:\n    """Picks."""\n')
    assert findings(root, rule) == []


def test_a_class_name_used_again_is_found(plant: Plant) -> None:
    """A second public class of one name in a package is reported with the place of the first."""
    root = plant("gateway/pages/race.py", 'class Race:\n    """Runs."""\n')
    assert findings(root, "classes") == [
        "gateway/race/race.py:6: class Race is also defined in gateway/pages/race.py:1; rename one of them"
    ]


@pytest.mark.parametrize(
    "opening", ["What is sent.", "How it is sent.", "Whether it is sent.", "Who sends.", "Whatever."]
)
def test_an_opening_is_found(plant: Plant, opening: str) -> None:
    """Docstrings of modules, classes and functions are looked at."""
    text = f'"""Sends."""\n\n\nasync def send() -> None:\n    """{opening}"""\n'
    [finding] = findings(plant("gateway/send.py", text), "openings")
    assert finding.startswith(
        f"gateway/send.py:5: docstring begins with '{opening.split(maxsplit=1)[0].rstrip('.')}'; begin with"
    )


@pytest.mark.parametrize("entry", ["sent: what was sent.", "a, b (int): How many.", "*args: likewise,"])
def test_an_opening_of_an_entry_is_found(plant: Plant, entry: str) -> None:
    """Entries of Args, Attributes and Returns are looked at, with the line they are on."""
    text = f'def send() -> None:\n    """Send.\n\n    Args:\n        {entry}\n    """\n'
    [finding] = findings(plant("gateway/send.py", text), "openings")
    assert finding.startswith(f"gateway/send.py:5: entry {entry.split(':', maxsplit=1)[0]} begins with")


def test_an_opening_of_an_attribute_is_found(plant: Plant) -> None:
    """The string after an attribute is a docstring, too."""
    text = 'class Limits:\n    """Bounds."""\n\n    delay_s: float = 1.0\n    """How long a client waits."""\n'
    [finding] = findings(plant("ttft_gateway/limits.py", text), "openings")
    assert finding.startswith("ttft_gateway/limits.py:5: docstring begins with 'How'")


def test_a_question_word_within_a_sentence_is_not_an_opening(plant: Plant) -> None:
    """Only the first word counts, and only as a word of its own."""
    text = '"""Returns what is sent: how much."""\n\n\nclass Whole:\n    """Whole answers of one replica."""\n'
    assert findings(plant("gateway/send.py", text), "openings") == []


@pytest.mark.parametrize(
    "sentence",
    [
        "The race is told.",
        "It tells the client.",
        "A replica hears nothing.",
        "The server speaks HTTP/2.",
        "The header says so.",
        "The race knows its replicas.",
        "The field stands first.",
        "Nobody waits.",
        "It waits for so long.",
        "It takes so many bytes.",
    ],
)
@pytest.mark.parametrize(
    ("name", "form", "line"),
    [
        ("gateway/send.py", '"""Sends.\n\n{}\n"""\n', 3),
        ("gateway/send.py", "SENT = 1  # {}\n", 1),
        ("docs/guide.md", "# Guide\n\n- {}\n", 3),
        ("CONTRIBUTING.md", "{}\n", 1),
    ],
    ids=["docstring", "comment", "guide", "contributing"],
)
def test_a_banned_word_is_found(plant: Plant, sentence: str, name: str, form: str, line: int) -> None:
    """Docstrings, comments and pages are looked at; the finding has the line and a replacement."""
    [finding] = findings(plant(name, form.format(sentence)), "words")
    assert finding.startswith(f"{name}:{line}: ")
    assert "; write: " in finding


@pytest.mark.parametrize("pronoun", ["those of", "That\nof", "without one", "whose"])
def test_a_pronoun_for_a_noun_of_another_clause_is_found(plant: Plant, pronoun: str) -> None:
    """Clean pages are looked at, also across lines; a path of `UNCLEAN` is not looked at yet."""
    plant("CHANGELOG.md", f"A limit, {pronoun} a key.\n")
    [finding] = findings(plant("docs/guide.md", f"# Guide\n\nA limit, {pronoun} a key.\n"), "pronouns")
    assert finding.startswith(f"docs/guide.md:3: {' '.join(pronoun.lower().split())!r}; write: ")


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("tests/race/test_race.py", '"""Sends.\n\nIt has the key, or those\nof a fallback.\n"""\n', 3),
        ("examples/client.py", "SENT = 1\n# the limits, and those\n# of a fallback\n", 2),
        ("scripts/names", "#!/usr/bin/env python3\nSENT = 1  # a name, those of a key\n", 2),
        ("scripts/names", "#!/bin/sh\nset -eu\nsend # a name, those of a key\n", 3),
    ],
    ids=["docstring of a test", "comment of an example", "script in Python", "script in shell"],
)
def test_pronouns_are_looked_for_in_tests_scripts_and_examples(plant: Plant, name: str, text: str, line: int) -> None:
    """Docstrings, blocks of comments and comments after code are looked at."""
    [finding] = findings(plant(name, text), "pronouns")
    assert finding.startswith(f"{name}:{line}: 'those of'; write: ")


def test_code_of_a_script_is_no_prose(plant: Plant) -> None:
    """Strings are not looked at, and neither are a script's commands."""
    plant("scripts/names", "#!/bin/sh\necho whose\n")
    assert findings(plant("tests/race/test_race.py", 'WHOSE = "those of"\n'), "pronouns") == []


def test_a_number_is_no_pronoun(plant: Plant) -> None:
    """`Without one of` counts, and code is not looked at."""
    assert findings(plant("docs/guide.md", "Without one of them it ends; see `whose`.\n"), "pronouns") == []


def test_code_in_a_page_is_not_prose(plant: Plant) -> None:
    """Code spans, code blocks and targets of links may contain any word."""
    text = "See `told` and [the page](told.md).\n\n    told\n\n```\ntold\n```\n\nIt stands for one.\n"
    assert findings(plant("docs/guide.md", text), "words") == []


def test_an_exception_is_left_out(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word that is excepted in one file is still found in others."""
    monkeypatch.setattr(style, "EXCEPTIONS", (("docs/guide.md", "told", "a quotation"),))
    plant("docs/guide.md", "He was told.\n")
    assert [row.partition(":")[0] for row in findings(plant("README.md", "He was told.\n"), "words")] == ["README.md"]


def test_a_long_guide_is_found(plant: Plant) -> None:
    """A guide of 150 lines is too long; a reference page or a generated table may be."""
    plant("docs/configuration.md", "line\n" * 500)
    plant("docs/evaluation/hedging.md", "line\n" * 500)
    plant("README.md", "line\n" * 149 + "<!-- generated: rows -->\nrow\n<!-- end -->\n")
    [finding] = findings(plant("docs/guide.md", "line\n" * 150), "length")
    assert finding.startswith("docs/guide.md:150: guide of 150 lines; ")


def test_reference_pages_have_no_spare_entries() -> None:
    """Every exception from the length names a page that may exist: a Markdown file or a folder."""
    assert [name for name in style.REFERENCE if not name.endswith((".md", "/*"))] == []
    assert all(reason for _, _, reason in style.EXCEPTIONS)


def test_exit_code_and_choice_of_rules(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    """`--only` chooses rules; the exit code is 1 where these found something."""
    root = str(plant("docs/guide.md", "The gateway is told.\n"))
    assert style.main(["--root", root, "--only", "classes,length"]) == 0
    assert style.main(["--root", root]) == 1
    assert style.main(["--root", root, "--only", "openings", "--packages", "gateway"]) == 0
    assert "docs/guide.md:1: 'told'; write: configured, received" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--only", "class"], "--only is class; write some of classes, openings, words, pronouns, length"),
        (
            ["--root", "/nowhere"],
            "--root is /nowhere, which has none of the packages gateway,providers,streaming_bench,ttft_gateway; name",
        ),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong argument is answered with exit code 2 and the right ones."""
    with pytest.raises(SystemExit) as ended:
        style.main(arguments)
    assert ended.value.code == 2
    assert error in capsys.readouterr().err


def test_count(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    """`--count` prints every figure of the tree, and no findings."""
    plant("gateway/server/app.py", '"""What is built."""\n')
    root = plant("gateway/race/__init__.py", "")
    assert style.main(["--root", str(root), "--count"]) == 0
    lines = capsys.readouterr().out.splitlines()
    figures = {name.strip(): value for name, value in ((line[:44], line[44:]) for line in lines)}
    assert figures["words of README.md and docs"] == "6"
    assert figures["docstrings beginning with a question word"] == "1"
    assert figures["public classes"] == "1"
    assert figures["longest guide"] == "docs/guide.md, 3 lines"
    assert figures["rooms of gateway"] == "2"
    assert figures["layers of gateway"] == "2"
