"""Races with errors and cancellations leave nothing: the short form of tests/acceptance/client_races.py."""

import os
import subprocess
import sys

import pytest

import client_races
from checkout import ROOT

_PATHS = os.pathsep.join(str(ROOT / path) for path in (".", "tests/support", "tests/acceptance"))


@pytest.mark.parametrize("transport", client_races.TRANSPORTS)
def test_races_leave_nothing(transport: str) -> None:
    """After races of every kind, no connection, file, thread, task or attempt in the policy is left.

    The races have a process of their own, in which no other test opens or closes files.
    """
    command = [sys.executable, "-W", "error", client_races.__file__, "--races", "150", "--transports", transport]
    environment = {**os.environ, "PYTHONPATH": _PATHS}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("nothing was left\n")
