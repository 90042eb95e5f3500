"""Shell completion: bash completes commands and options, and each shell's script contains all of them."""

import shutil
import subprocess
from pathlib import Path

import pytest
import shtab

from gateway.__main__ import main
from gateway.cli.parser import SHELL_NAMES, ExitCode, options, parsers

BASH = shutil.which("bash")
_COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_shtab_ttft_gateway
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the script printed for a shell."""
    assert main(["completion", shell]) == ExitCode.OK
    return capsys.readouterr().out


def test_the_shells_offered_are_those_supported() -> None:
    """The parser, which must not import shtab, has the library's list."""
    assert tuple(shtab.SUPPORTED_SHELLS) == SHELL_NAMES


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_has_every_command_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each shell's script contains every command and every option."""
    text = script(shell, capsys)
    for name, command in parsers()[1].items():
        words = options(command) if shell != "fish" else [f"-l {each.removeprefix('--')} " for each in options(command)]
        assert [word for word in (name, *words) if word not in text] == [], name


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["se"], ["serve"]),
        (["pr"], ["print-config", "probe", "prove"]),
        (["probe", "--m"], ["--max-tokens", "--model"]),
        (["serve", "--config", "ga"], ["gateway.yaml"]),
        (["check-config", "gat"], ["gateway.yaml"]),
        (["check-config", "--h"], ["--help"]),
        (["completion", "ba"], ["bash"]),
    ],
)
def test_bash_completes(
    typed: list[str], expected: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Bash sources the script without a message, and completes commands, options and files."""
    assert BASH is not None
    file = tmp_path / "script"
    file.write_text(script("bash", capsys))
    for name in ("gateway.yaml", "other"):
        (tmp_path / name).touch()
    command = [BASH, "-c", _COMPLETE, "bash", str(file), "ttft-gateway", *typed]
    found = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert found.stderr == ""
    assert sorted(line for line in found.stdout.split("\n") if line) == expected
