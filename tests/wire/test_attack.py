"""The short form of `scripts/attack`: all its rows hold, and a row that does not is a failure."""

import asyncio
import sys

import pytest

import attack
from attack_rows import Row, Scale


def test_every_row_holds() -> None:
    """No hostile client reaches what it should not, or has another client refused."""
    linux_only = {"memory", "streams"}  # these read /proc
    parts = [part for part in attack.SHORT_PARTS if part not in linux_only or sys.platform == "linux"]
    rows = asyncio.run(attack.attacked(parts, short=True))
    assert [row for row in rows if not row.holds] == []


def test_a_row_that_falls_short_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has each row with its verdict, and the exit code is 1 if one does not hold."""

    async def part(_scale: Scale) -> list[Row]:
        return [Row("one", "0", "0", holds=True), Row("two", "0", "3", holds=False)]

    monkeypatch.setattr(attack, "_ALONE", {"part": part})
    monkeypatch.setattr(attack, "PARTS", ("part",))
    assert attack.main(["part", "--short"]) == 1
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["ok", "one"], ["FAIL", "two"]]
    with pytest.raises(SystemExit):
        attack.main(["nothing"])
