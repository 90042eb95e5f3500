"""The nightly run: steps that exist, fail where a command fails, and end at their time limit."""

import sys
from pathlib import Path

import pytest

import acceptance
import nightly
from checkout import ROOT
from nightly import Step, main, passes, steps

FINE = [sys.executable, "-c", "print('fine')"]
FAILS = [sys.executable, "-c", "raise SystemExit('broken')"]
HANGS = [sys.executable, "-c", "import signal; print('waits', flush=True); signal.pause()"]


def test_every_script_exists() -> None:
    """No step names a script that was renamed."""
    scripts = {
        command[0] for step in steps(1).values() for command in step.commands if command[0].startswith("scripts/")
    }
    assert scripts
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_every_part_of_the_acceptance_run_exists() -> None:
    """No step names a part that was renamed, and each part that runs only when named has a step."""
    commands = [command for step in steps(1).values() for command in step.commands]
    named = {part for command in commands if command[0] == "scripts/acceptance" for part in command[1:]}
    assert named == {part.__name__ for part in acceptance.ON_REQUEST}


@pytest.mark.parametrize(
    ("commands", "limit_s", "passed"),
    [([FINE, FINE], 60, True), ([FAILS, FINE], 60, False), ([FINE, HANGS], 2, False), ([HANGS], 0, False)],
    ids=["passes", "fails", "hangs", "no time"],
)
def test_a_step_ends(commands: list[list[str]], limit_s: float, passed: object, tmp_path: Path) -> None:
    """A step passes if all its commands do within its time limit; otherwise no later command runs."""
    assert passes(Step(commands, limit_s), tmp_path / "log") is passed


def test_all_steps_run_after_one_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The summary has a line for each step, and the exit code is 1 if one failed."""
    monkeypatch.setattr(nightly, "LOGS", tmp_path)
    monkeypatch.setattr(nightly, "steps", lambda _: {"a": Step([FAILS], 60), "b": Step([FINE], 60)})
    assert main([]) == 1
    out = capsys.readouterr().out
    assert "broken" in out
    assert [line.split()[:2] for line in out.partition("== summary\n")[2].splitlines()] == [
        ["a", "FAILED"],
        ["b", "passed"],
    ]
    assert main(["b"]) == 0
    with pytest.raises(SystemExit) as ended:
        main(["c"])
    assert ended.value.code == 2
