"""`ttft-gateway support-bundle`: what it contains without a secret, also without a gateway or a valid configuration."""

import json
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.cli.admin_client import follow_admin
from gateway.cli.parser import ADMIN_KEY_VARIABLE, ExitCode
from gateway.cli.support import command
from gateway.cli.support.command import Redaction
from ttft_gateway.apis.tolerant_json import dumps
from unused_ports import unused_port

KNOWN = [f'Kn0wn"{name}\\' for name in ("caller", "before", "file", "upstream", "header", "admin", "env")]
CALLER, BEFORE, FILE, UPSTREAM, HEADER, ADMIN, ENV = KNOWN
UNKNOWN = {  # text of a replica's error -> its secret, which no configuration has
    "Incorrect API key provided: sk-unknown-31337abc": "unknown-31337abc",
    "POST https://user:hunter2pass@10.0.0.1:8000/v1 failed": "hunter2pass",
    "GET https://api.example/v1?api-version=1&sig=s1gnature failed": "s1gnature",
    "sent authorization: Bearer b3arer-token-x": "b3arer-token-x",
    "sent authorization: Token t0ken-of-a-scheme": "t0ken-of-a-scheme",
    "x-api-key: plainvalue9": "plainvalue9",
    '{"password": "pa55word9"}': "pa55word9",
    "jwt eyJhbGciOiJub25l.eyJzdWIiOiIxIn0.c2ln expired": "eyJzdWIiOiIxIn0",
    "AIzaSyD-1234567890abc is disabled": "AIzaSyD-1234567890abc",
}
PLANTED = [*KNOWN, *(json.dumps(secret)[1:-1] for secret in KNOWN), *UNKNOWN.values()]
TEXTS = [*UNKNOWN, *(f"the key {secret} was rejected" for secret in KNOWN)]


class Site(BaseHTTPRequestHandler):
    """An admin address that quotes every secret in every answer; it needs the admin key."""

    size = 0

    def do_GET(self) -> None:
        if self.headers["authorization"] != f"Bearer {ADMIN}":
            self.send_error(401)
            return
        if self.path == "/admin/events":
            body = b"".join(b"event: attempt_failed\ndata: %b\n\n" % dumps({"error": text}) for text in TEXTS)
        elif self.path == "/metrics":
            body = b"".join(b"m{error=%b} 1\n" % dumps(text) for text in TEXTS) + b"#" * self.size
        elif self.path == "/admin/models":
            body = dumps({"models": [{"model": "m/1", "pools": TEXTS}]})
        else:
            body = dumps({"path": self.path, "errors": TEXTS})
        self.send_response(404 if self.path == "/admin/share" else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def admin() -> Iterator[int]:
    """The port of a `Site`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with key files and a log."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_PROVIDER_TOKEN", ENV)
    monkeypatch.delenv(ADMIN_KEY_VARIABLE, raising=False)
    (tmp_path / "caller").write_text(f"{FILE}\n{BEFORE}\n")
    lines = [dumps({"time": "t", "level": "error", "event": "request", "error": text}).decode() for text in TEXTS]
    (tmp_path / "gateway.log").write_text("\n".join([f"Traceback: {TEXTS}", '{"other": "program"}', *lines]) + "\n")
    return tmp_path


def written(folder: Path, port: int, **more: object) -> Path:
    """A configuration with a secret in every place for one."""
    replica = {
        "name": "a",
        "kind": "openai",
        "base_url": "https://10.0.0.1:1/v1",
        "api_key": UPSTREAM,
        "headers": {"x-tenant": HEADER},
        "connection": {"proxy": "http://user:pr0xypassword@10.0.0.2:3128"},
    }
    config = {
        "admin_listen": f"127.0.0.1:{port}",
        "admin_key": ADMIN,
        "keys": [{"name": "a", "key": CALLER}, {"name": "b", "key_file": "caller"}],
        "models": [{"name": "m/1", "replicas": [replica]}],
        **more,
    }
    file = folder / "gateway.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


def bundled(*options: str) -> dict[str, str]:
    """Run the command; return the files of the archive by name, in which no planted secret is."""
    assert main(["support-bundle", "--seconds", "0.1", "--output", "b.tar.gz", *options]) is ExitCode.OK
    with tarfile.open("b.tar.gz") as opened:
        files = {}
        for member in opened.getmembers():
            content = opened.extractfile(member)
            assert content is not None
            files[member.name.removeprefix("b/")] = content.read().decode()
    every = "".join((*files, *files.values()))
    assert [secret for secret in (*PLANTED, "pr0xypassword") if secret in every] == []
    return files


def test_no_secret_is_in_the_bundle(folder: Path, admin: int, capsys: pytest.CaptureFixture[str]) -> None:
    """State, metrics, events, settings and log are there; no secret is, and the lists name what is missing."""
    written(folder, admin)
    files = bundled("--log", "gateway.log")
    assert files.keys() >= {
        "versions.json",
        "config.yaml",
        "config-check.txt",
        "metrics.txt",
        "events.txt",
        "log.jsonl",
    }
    assert json.loads(files["versions.json"])["packages"]["pydantic"]
    assert "api_key: '****'" in files["config.yaml"]
    assert json.loads(files["admin/model-0.json"])["path"] == "/admin/models/m%2F1"
    assert [json.loads(line)["event"] for line in files["log.jsonl"].splitlines()] == ["request"] * len(TEXTS)
    assert all("****" in files[name] for name in ("metrics.txt", "events.txt", "admin/models.json", "log.jsonl"))
    said = capsys.readouterr().out
    assert files["README.txt"] in said
    assert "log lines: 2 lines are no JSON lines of the gateway" in said
    assert "admin/share.json: status 404" in said
    assert not [secret for secret in PLANTED if secret in said]
    assert (folder / "b.tar.gz").stat().st_mode & 0o777 == 0o600


def test_a_gateway_that_is_down(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a gateway the bundle has the rest, and the reason."""
    written(folder, unused_port())
    assert bundled().keys() == {"README.txt", "versions.json", "config.yaml", "config-check.txt"}
    said = capsys.readouterr().out
    assert "state, metrics and events: http://127.0.0.1:" in said
    assert f"check the gateway, --admin and ${ADMIN_KEY_VARIABLE}" not in said
    assert "check the gateway, --admin and `admin_key` of the configuration" in said
    assert "log.jsonl: no file is named with --log" in said


def test_events_through_a_proxy_that_closes_connections() -> None:
    """The events end after their time also where the response ends with its connection."""

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"event: request\ndata: {}\n\n")
            self.rfile.read()  # until the client has disconnected

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        admin = f"http://127.0.0.1:{server.server_port}"
        events = follow_admin(admin, "/admin/events", 0.1, key=None, bytes_max=1_000)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert events == b"event: request\ndata: {}\n\n"


def test_an_invalid_configuration(folder: Path, admin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The problems are in the bundle, and the secrets of the file are removed although it is invalid."""
    written(folder, admin, listen="nowhere", limits={"n_max": "x"})
    (folder / "caller").unlink()
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, ADMIN)
    known = [secret for secret in KNOWN if secret not in (FILE, BEFORE)]  # their file is gone
    monkeypatch.setattr("test_support_bundle.PLANTED", [*known, *UNKNOWN.values()])
    files = bundled("--admin", f"http://127.0.0.1:{admin}")
    assert "config.yaml" not in files
    assert "limits.n_max" in files["config-check.txt"]
    assert "metrics.txt" in files


@pytest.mark.usefixtures("folder")
def test_no_configuration_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    """A bundle can be written without anything; the file exists once."""
    bundled("--admin", "nowhere")
    assert "config.yaml: the file gateway.yaml does not exist" in capsys.readouterr().out
    assert main(["support-bundle", "--admin", "nowhere", "--output", "b.tar.gz"]) is ExitCode.FAILED
    assert "b.tar.gz cannot be written (File exists)" in capsys.readouterr().err


def test_sizes_are_bounded(
    folder: Path, admin: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long metrics lose their end, a long log its beginning; both are reported."""
    written(folder, admin)
    monkeypatch.setattr(Site, "size", 40_000)
    monkeypatch.setattr(command, "FILE_BYTES_MAX", 20_000)
    line = '{"time": "t", "level": "info", "event": "%d"}'
    (folder / "long.log").write_text("\n".join(line % number for number in range(2_000)))
    files = bundled("--log", "long.log")
    assert len(files["metrics.txt"]) < 20_100
    assert len(files["log.jsonl"]) < 20_100
    assert json.loads(files["log.jsonl"].splitlines()[-1])["event"] == "1999"
    assert "the end of metrics.txt" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        'ttft_gateway_billed_tokens_total{model="m",token="prompt",kind="winner"} 12',
        '{"event":"request","key":"team-a","quota":"openai-main","prompt_tokens":12,"error":"upstream_timeout"}',
        "base_url: https://api.openai.com/v1\n  api_key_file: /run/secrets/openai",
    ],
)
def test_nothing_else_is_removed(text: str) -> None:
    """Names, numbers and addresses stay readable."""
    assert Redaction([])(text) == text


@pytest.mark.parametrize("word", ["e", "a://", "-eyJaaaaaaaa"])
def test_a_long_word_is_not_read_again_and_again(word: str) -> None:
    """A word of up to half a megabyte is searched within the time limit of a test, and copied."""
    text = word * (500_000 // len(word) if word == "e" else 5_000)
    assert Redaction([])(text) == text
