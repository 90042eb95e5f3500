"""examples/ttft-gateway.service: its commands exist, its times fit, and systemd accepts it where it is installed."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from checkout import ROOT
from gateway.cli.parser import parse
from gateway.config.addresses import ADMIN_LISTEN_DEFAULT, LISTEN_DEFAULT
from gateway.config.settings import Settings
from gateway.server.process import DRAIN_ERROR_FLUSH_S, READINESS_LEAD_S

UNIT = ROOT / "examples/ttft-gateway.service"
LINES = re.findall(r"^(\w+)=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_unit_runs_a_command_that_exists() -> None:
    """The start is a command of the gateway, and the reload its signal."""
    values = dict(LINES)
    program, *words = shlex.split(values["ExecStart"])
    assert program.endswith("/ttft-gateway")
    assert parse(words).command == "serve"
    assert values["ExecReload"].endswith("-HUP $MAINPID")
    assert values["Type"] == "notify"


def test_the_unit_waits_for_the_drain() -> None:
    """Systemd ends the process after the drain."""
    drain_s = Settings.model_fields["drain_timeout_s"].get_default()
    assert float(dict(LINES)["TimeoutStopSec"]) >= drain_s + READINESS_LEAD_S + DRAIN_ERROR_FLUSH_S + 5


def test_the_socket_has_the_default_addresses() -> None:
    """A gateway without `listen` and `admin_listen` uses both sockets."""
    unit = (ROOT / "examples/ttft-gateway.socket").read_text(encoding="utf-8")
    assert re.findall(r"^ListenStream=(.*)$", unit, re.MULTILINE) == [str(LISTEN_DEFAULT), str(ADMIN_LISTEN_DEFAULT)]


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds no mistake."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        return
    file = tmp_path / UNIT.name
    start = dict(LINES)["ExecStart"].split(" ")[0]
    file.write_text(UNIT.read_text(encoding="utf-8").replace(start, sys.executable), encoding="utf-8")
    done = subprocess.run([tool, "verify", file], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
