"""Help and colours, for every command in one table."""

import io
import re
import sys

import pytest

from gateway.cli.parser import PROGRAM, parse, parsers
from gateway.cli.terminal import bold, fail, warn

COMMANDS = list(parsers()[1])


class Stream(io.StringIO):
    """Output stream of a command, a terminal or not."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def test_help_lists_every_command() -> None:
    """The help of the program has a line for each command and each exit code's meaning."""
    text = parsers()[0].format_help()
    assert [name for name in COMMANDS if not re.search(rf"^    {name}\s+[a-z]", text, re.MULTILINE)] == []
    assert "exit codes:" in text


def shown(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], *, terminal: bool) -> tuple[Stream, Stream]:
    """Standard output and standard error in such an environment, for one test."""
    for variable in ("NO_COLOR", "FORCE_COLOR", "PYTHON_COLORS", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    out, err = Stream(terminal=terminal), Stream(terminal=terminal)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    return out, err


def plain(text: str) -> str:
    """The text without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command's help has examples."""
    out, _ = shown(monkeypatch, {"TERM": "xterm"}, terminal=True)
    with pytest.raises(SystemExit):
        parse([name, "--help"])
    assert f"examples:\n  {PROGRAM} {name}" in plain(out.getvalue())  # from Python 3.14 on, argparse colours it


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, True),  # https://no-color.org: an empty one means nothing
        (True, {"TERM": "dumb"}, False),
        (False, {"TERM": "xterm"}, False),
        (False, {"TERM": "xterm", "NO_COLOR": "1"}, False),
    ],
)
def test_colours(terminal: bool, environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Help and messages have colours only on terminals that support them and do not forbid them."""
    out, err = shown(monkeypatch, environment, terminal=terminal)
    with pytest.raises(SystemExit):
        parse(["serve", "--help"])
    assert coloured or plain(out.getvalue()) == out.getvalue()
    warn("w")
    fail("f")
    texts = [bold("b", out), *err.getvalue().splitlines()]
    assert [text.startswith("\x1b[") for text in texts] == [coloured] * 3
    assert [plain(text) for text in texts] == ["b", "warning: w", "error: f"]
