"""Shell completion: what the scripts offer, asked of bash itself where there is one. No zsh or fish is needed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.cli.parser import ExitCode, options, parsers

BASH = shutil.which("bash")
_ASK = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_ttft_gateway
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed for a shell."""
    assert main(["completion", shell]) == ExitCode.OK
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_has_every_command_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each shell's script names every command, and every option of it behind it."""
    text = script(shell, capsys)
    sections = {"bash": r"^ +{}\) known='(.*)' ;;$", "zsh": r"^ +{}\) _arguments (.*)$", "fish": r"from {}'(.*)$"}
    for name, command in parsers()[1].items():
        section = "\n".join(re.findall(sections[shell].format(re.escape(name)), text, re.MULTILINE))
        told = options(command) if shell != "fish" else [f"-l {each.removeprefix('--')} " for each in options(command)]
        assert [option for option in told if option not in section] == [], name


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["se"], ["serve"]),
        (["pr"], ["print-config", "probe"]),
        (["probe", "--m"], ["--model", "--max-tokens"]),
        (["probe", "--model", ""], []),
        (["demo", "--"], ["--help", "--traffic", "--seconds", "--port", "--admin-port", "--seed"]),
        (["serve", "--config", "ga"], ["ga te.yaml", "gateway.yaml"]),
        (["check-config", "gat"], ["gateway.yaml"]),
        (["check-config", "--h"], ["--help"]),
        (["completion", ""], ["--help", "bash", "zsh", "fish"]),
        (["version", ""], ["--help"]),
        (["nonsense", ""], []),
    ],
)
def test_bash_completes(
    typed: list[str], offered: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Bash takes the script without a complaint, and offers commands, options and files where they belong."""
    assert BASH is not None
    file = tmp_path / "script"
    file.write_text(script("bash", capsys))
    for name in ("ga te.yaml", "gateway.yaml", "other"):
        (tmp_path / name).touch()
    subprocess.run([BASH, "-n", file], check=True)
    command = [BASH, "-u", "-c", _ASK, "bash", str(file), "ttft-gateway", *typed]
    told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert told.stderr == ""
    assert [line for line in told.stdout.split("\n") if line] == offered
