"""examples/haproxy.cfg: its times fit the gateway's, and HAProxy accepts it where it is installed."""

import os
import re
import shutil
import subprocess

from checkout import ROOT
from gateway.config.settings import TimeoutSettings
from gateway.server.process import READINESS_LEAD_S

FILE = ROOT / "examples" / "haproxy.cfg"
TEXT = FILE.read_text(encoding="utf-8")


def test_the_times_fit() -> None:
    """HAProxy sees /readyz in time, waits as long as an answer may take, and closes idle connections first."""
    fields = TimeoutSettings.model_fields
    every_ms = re.search(r"inter (\d+)ms fall 1", TEXT)
    assert every_ms is not None
    assert 3 * int(every_ms[1]) <= 1000 * READINESS_LEAD_S
    limits_s = dict(re.findall(r"timeout ([a-z-]+) +(\d+)s", TEXT))
    assert min(int(limits_s["client"]), int(limits_s["server"])) > fields["total_s"].default
    assert int(limits_s["http-keep-alive"]) < fields["client_idle_s"].default


def test_no_request_is_repeated() -> None:
    """Requests of models cost money, so nothing beyond a failed connection is tried again."""
    assert "retry-on" not in re.sub("#.*", "", TEXT)


def test_haproxy_accepts_the_file() -> None:
    """`haproxy -c` finds no mistake."""
    tool = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if tool is not None:
        done = subprocess.run([tool, "-c", "-f", FILE], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
