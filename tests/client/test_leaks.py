"""Races with errors and cancellations leave nothing: the short form of tests/acceptance/client_races.py."""

import os
import subprocess
import sys

import pytest

import client_races
from checkout import ROOT

_PATHS = os.pathsep.join(str(ROOT / path) for path in (".", "tests/support", "tests/acceptance"))


_RPC = tuple(name for name in client_races.TRANSPORTS if name.startswith("grpc"))
_HTTP = tuple(name for name in client_races.TRANSPORTS if name not in _RPC)


@pytest.mark.parametrize("transports", [_HTTP, _RPC], ids=["http", "rpc"])
def test_races_leave_nothing(transports: tuple[str, ...]) -> None:
    """After races of every kind, no connection, file, thread, task or attempt in the policy is left.

    The races have a process of their own, in which no other test opens or closes files.
    """
    command = [sys.executable, "-W", "error", client_races.__file__, "--races", "150", "--transports", *transports]
    environment = {**os.environ, "PYTHONPATH": _PATHS}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("nothing was left\n")
