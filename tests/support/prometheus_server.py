"""A real Prometheus server as a process of its own: Debian's prometheus, on a free port, with its data in a folder.

In CI on Linux it is never missing; elsewhere its tests are skipped, in red. Units: seconds, Unix time.
"""

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from unused_ports import unused_port

PROMETHEUS: Final = shutil.which("prometheus")
PROMTOOL: Final = shutil.which("promtool")
_WAIT_S: Final = 30.0  # of a loaded machine
_ATTEMPTS: Final = 300


def require_prometheus() -> None:
    """Skip the calling test if there is no server to start; fail in CI."""
    if PROMETHEUS is None or PROMTOOL is None:
        if os.environ.get("CI") and sys.platform == "linux":
            pytest.fail("prometheus is missing; apt install prometheus")
        pytest.skip("\033[31mNOT TESTED: prometheus is missing; apt install prometheus\033[0m")


@dataclass(frozen=True, slots=True)
class Setup:
    """The configuration of a server.

    Attributes:
        targets: addresses that are scraped, with the labels of each.
        rules: file of rules; None for none.
        interval_s: time between two scrapes, and between two evaluations of the rules.
    """

    targets: Mapping[str, Mapping[str, str]]
    rules: Path | None = None
    interval_s: float = 1.0

    def document(self) -> dict[str, object]:
        """Return the content of its file."""
        every = f"{1000 * self.interval_s:.0f}ms"
        rows = [{"targets": [target], "labels": dict(labels)} for target, labels in self.targets.items()]
        return {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [] if self.rules is None else [str(self.rules)],
            "scrape_configs": [{"job_name": "ttft-gateway", "static_configs": rows}],
        }


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a result.

    Attributes:
        labels: its labels.
        points: times and values.
    """

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]] = field(default_factory=tuple)


class PrometheusServer:
    """A running server.

    Attributes:
        port: port on this machine.
    """

    def __init__(self, port: int) -> None:
        self.port = port

    def instant(self, expr: str) -> list[Line]:
        """Return the values of a query now."""
        rows = self._get("query", {"query": expr})["result"]
        return [Line(row["metric"], [(row["value"][0], float(row["value"][1]))]) for row in rows]

    def ranged(self, expr: str, start_s: float, end_s: float, step_s: float) -> list[Line]:
        """Return the values of a query over a time."""
        asked = {"query": expr, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
        rows = self._get("query_range", asked)["result"]
        return [Line(row["metric"], [(at_s, float(value)) for at_s, value in row["values"]]) for row in rows]

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are pending or firing."""
        return list(self._get("alerts", {})["alerts"])

    def is_ready(self) -> bool:
        """Return True if it answers."""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError):
            return bool(self._get("query", {"query": "1"}))
        return False

    def _get(self, path: str, asked: Mapping[str, str]) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_WAIT_S)
        try:
            connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(asked)}")
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if answer["status"] != "success":
            raise ValueError(f"{answer['error']}: {asked}")
        return dict(answer["data"])


@contextlib.contextmanager
def prometheus(folder: Path, setup: Setup) -> Iterator[PrometheusServer]:
    """Run a server with this configuration."""
    require_prometheus()
    assert PROMETHEUS is not None
    folder.mkdir(exist_ok=True)
    port, file, log = unused_port(), folder / "prometheus.yml", folder / "prometheus.log"
    file.write_text(yaml.safe_dump(setup.document()), encoding="utf-8")
    argv = (
        PROMETHEUS,
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    )
    with log.open("wb") as out, subprocess.Popen(argv, stdout=out, stderr=out) as process:
        try:
            server = PrometheusServer(port)
            for _ in range(_ATTEMPTS):
                if process.poll() is not None or server.is_ready():
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_WAIT_S / _ATTEMPTS)
            if process.poll() is not None or not server.is_ready():
                raise AssertionError(log.read_text())
            yield server
        finally:
            process.terminate()
            process.wait()
