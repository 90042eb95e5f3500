"""`ttft-gateway prove`: the table, JSON and picture of a report, and its errors."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from gateway.__main__ import main
from gateway.cli.parser import ADMIN_KEY_VARIABLE, ExitCode
from gateway.observe.proof import Goal, count_request
from gateway.proof.report import ProofReport, report
from gateway.proof.shadow import ShadowReport, shadow_report
from gateway.proof.tally import Group, Tally
from sample_events import SHADOWED


def measured(read: int) -> ProofReport:
    """A report on requests of which 5 % were beaten."""
    counts = Tally(2.0, 10.0, span_s=7200.0)
    for _ in range(1900):
        counts.add(Group.SAME, 0.1)
    for number in range(100):
        counts.add(Group.BEATEN, 0.2)
        if number < read:
            counts.add_read(0.2, 3.0)
    counts.add_cost(5000, 0.5)
    return report("llama", counts)


class Site(BaseHTTPRequestHandler):
    """An admin address with one report; it needs a key."""

    found: ProofReport
    asked: list[str]
    shadow: tuple[ShadowReport, ...] = ()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = msgspec.json.encode({"models": [self.found], "shadow": self.shadow})
        self.send_response(200 if self.headers["authorization"] == "Bearer k" else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a `Site`."""
    Site.found, Site.asked = measured(100), []
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "k")
    server = HTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_table(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The figures without and with hedging, and their difference."""
    assert main(["prove", "--admin", admin, "--model", "llama", "--hours", "2"]) is ExitCode.OK
    text = capsys.readouterr().out
    assert "llama: direct effect of hedging on 2,000 requests in 2 h" in text
    assert "SLO misses (> 2000 ms)             100           0  100 (100 to 100)" in text
    assert "5,000 tokens, money 0.5, 0.005 for each avoided miss" in text
    assert Site.asked == ["/admin/proof?model=llama&hours=2"]


def test_a_model_in_shadow(admin: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The observed figures, and those that are predicted in two ways."""
    tally = Goal(0.18, 10.0, is_shadow=True).tally()
    tally.span_s = 7200.0
    for _ in range(100):
        count_request(SHADOWED, tally)
    monkeypatch.setattr(Site, "shadow", (shadow_report("gpt", tally),))
    assert main(["prove", "--admin", admin]) is ExitCode.OK
    text = capsys.readouterr().out
    assert "gpt: shadow, no hedge was sent; 100 requests in 2 h" in text
    assert "SLO misses (> 180 ms)              100             0           100" in text
    assert "hedges: 100 (100.0%): 100 late; first token 49.8 ms after the hedge on average" in text
    assert "their cost: 12,000 tokens, money 25; 0 counted as no saving" in text


def test_too_little_data(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has the time that is missing instead of figures."""
    Site.found = measured(4)
    assert main(["prove", "--admin", admin]) is ExitCode.OK
    text = capsys.readouterr().out
    assert "too little data" in text
    assert "more data: 4 of 20 measured requests for figures; at this rate 8 h more" in text


def test_json_and_picture(admin: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The document of the admin address, and an image."""
    pytest.importorskip("matplotlib")
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        assert main(["prove", "--admin", admin, "--json", "--plot", str(tmp_path / name)]) is ExitCode.OK
        assert json.loads(capsys.readouterr().out)["models"][0]["misses"]["saved"]["value"] == 100
        assert (tmp_path / name).read_bytes().startswith(start)


def test_errors(admin: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong key, address or file name has a sentence with an action."""
    assert main(["prove", "--admin", admin, "--plot", "a.pdf"]) is ExitCode.USAGE
    assert "write a name that ends in .png or .svg" in capsys.readouterr().err
    assert main(["prove", "--admin", "gateway:8081"]) is ExitCode.FAILED
    assert "it must begin with http:// or https://" in capsys.readouterr().err
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "wrong")
    assert main(["prove", "--admin", admin]) is ExitCode.FAILED
    assert "status 401" in capsys.readouterr().err
