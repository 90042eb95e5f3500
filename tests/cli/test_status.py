"""`ttft-gateway status`: the text of a verdict, its exit code, and its errors."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.cli.parser import ExitCode

_WELL: dict[str, Any] = {"state": "well", "since": "2026-11-28T16:11:05+00:00", "findings": [], "replicas": []}
_SLOW: dict[str, Any] = {
    "state": "degraded",
    "since": "2026-11-28T16:11:05+00:00",
    "findings": [
        {
            "severity": "ticket",
            "sentence": "replica a of m is slow",
            "since": "2026-11-28T16:11:05+00:00",
            "runbook": "docs/runbook.md#a-replica-is-slow",
            "command": "ttft-gateway probe",
        },
        {"severity": "note", "sentence": "b is out", "since": "2026-11-28T16:00:00+00:00", "runbook": "docs/x"},
    ],
    "more": 2,
    "replicas": [
        {
            "model": "m",
            "replica": "a",
            "state": "slow",
            "last_failure": {"at": "2026-11-28T15:00:00+00:00", "error": "upstream_cut", "status": 200},
        },
        {"model": "m", "replica": "b", "state": "taken out", "last_failure": None},
    ],
}
_TEXT = """\
degraded since 2026-11-28 16:11:05 UTC
 ! replica a of m is slow
     since 2026-11-28 16:11:05 UTC; docs/runbook.md#a-replica-is-slow
     ttft-gateway probe
 - b is out
     since 2026-11-28 16:00:00 UTC; docs/x
   2 more
   a of m: slow; last failure 2026-11-28 15:00:00 UTC: 200 upstream_cut
"""


class _Handler(BaseHTTPRequestHandler):
    """Answers with the document of the server."""

    def do_GET(self) -> None:
        body = json.dumps(vars(self.server)["document"]).encode()
        self.send_response(200 if self.path == "/admin/health" else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def admin(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the address of a gateway with the verdict of the parameter."""
    with HTTPServer(("127.0.0.1", 0), _Handler) as server:
        vars(server)["document"] = request.param
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("admin", [_WELL], indirect=True)
def test_well(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and exit code 0."""
    assert main(["status", "--admin", admin]) is ExitCode.OK
    assert capsys.readouterr().out == "well since 2026-11-28 16:11:05 UTC\n"


@pytest.mark.parametrize("admin", [_SLOW], indirect=True)
def test_troubles(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each trouble with its time, its section and its command; the last failures; exit code 1."""
    assert main(["status", "--admin", admin]) is ExitCode.FAILED
    assert capsys.readouterr().out == _TEXT
    assert main(["status", "--admin", admin, "--json"]) is ExitCode.FAILED
    assert json.loads(capsys.readouterr().out) == _SLOW


@pytest.mark.parametrize("admin", [{"verdict": 1}], indirect=True)
def test_no_verdict(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Another document, and an address without a gateway, are errors."""
    assert main(["status", "--admin", admin]) is ExitCode.FAILED
    assert "has no verdict" in capsys.readouterr().err
    assert main(["status", "--admin", "http://127.0.0.1:1"]) is ExitCode.FAILED
