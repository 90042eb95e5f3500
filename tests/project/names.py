"""Checks that the library works in programs with packages called like the gateway's; run by scripts/verify-names.

For each interpreter, installs the wheel and then an editable installation into a new environment, and runs a program
beside its own `providers`, `gateway`, `streaming_bench`, `client` and `core`: once as folders beside the program, once
as installed packages. In each of four APIs, the program's first request must be won by its backup. The wheel has only
the library, and at most 3 MB. Needs a package index. Units: bytes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
NAMES: Final = ("providers", "gateway", "streaming_bench", "client", "core")
INSTALLED_BYTES_MAX: Final = 3_000_000  # of the wheel, with compiled files

PROGRAM: Final = """
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import client, core, gateway, providers, streaming_bench
import httpx
from ttft_gateway import AsyncHedgingTransport, HedgeConfig, HedgingTransport, Stats, Target

STREAMS = {  # path -> an event without content, the events of the answer after it
    "/v1/chat/completions": (
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ),
    "/v1/completions": (
        {"choices": [{"index": 0, "text": "", "finish_reason": None}]},
        {"choices": [{"index": 0, "text": "Hello", "finish_reason": "stop"}]},
    ),
    "/v1/messages": (
        {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ),
    "/v1/responses": (
        {"type": "response.created", "response": {"id": "r", "status": "in_progress"}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hello"},
        {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": []}},
    ),
}
over = threading.Event()
seen = set()


def encode(event):
    name = f"event: {event['type']}\\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\\n\\n".encode()


class Replica(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        late = self.path not in seen
        seen.add(self.path)
        first, *others = STREAMS[self.path]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(encode(first))
        if late:  # the primary of each API: its headers and an event without content are quick, its token never comes
            over.wait(30.0)
            return
        self.wfile.write(b"".join(map(encode, others)))
        if "type" not in first:
            self.wfile.write(b"data: [DONE]\\n\\n")

    def log_message(self, *arguments):
        pass


assert {module.MINE for module in (client, core, gateway, providers, streaming_bench)} == {True}
server = ThreadingHTTPServer(("127.0.0.1", 0), Replica)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
stats = Stats()
with httpx.Client(transport=HedgingTransport(HedgeConfig(budget_percent=100, warmup_delay=0.1), stats=stats)) as http:
    for path in STREAMS:
        url = f"http://127.0.0.1:{server.server_port}{path}"
        asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
        if path.endswith("responses"):
            asked = {"input": "Hi", "store": False}
        elif path == "/v1/completions":
            asked = {"prompt": "Hi"}
        body = {"model": "m", "stream": True, **asked}
        answer = http.post(url, json=body).text
        assert answer.count("Hello") == 1, (path, answer)
assert stats.snapshot().hedge_wins == len(STREAMS), stats.snapshot()
over.set()
server.shutdown()
"""


class NamesError(Exception):
    """The library does not work together with such packages; the message has the output."""


def run(*command: str | Path, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """Run a command and return its output.

    Raises:
        NamesError: the exit code is not 0.
    """
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NamesError(f"`{' '.join(map(str, command))}` failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def write_packages(folder: Path) -> None:
    """Write the packages of the user's program."""
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("MINE = True\n", encoding="utf-8")


def check(python: str, wheel: Path, editable: Path, work: Path) -> str:
    """Check both forms of the installation with one interpreter; return a line for the output.

    Raises:
        NamesError: a program failed, or the installed wheel is too large or has other packages.
    """
    environment = work / "environment"
    run(python, "-m", "venv", "--without-pip", environment)
    inside = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", inside)
    run(*pip, "install", "--quiet", "--constraint", work.parent / "constraints.txt", wheel)
    site = Path(run(inside, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    if found := [name for name in NAMES if (site / name).exists()]:
        raise NamesError(f"{wheel.name} installs {', '.join(found)}")
    run(inside, "-m", "compileall", "-q", site / "ttft_gateway")
    size = sum(file.stat().st_size for file in (site / "ttft_gateway").rglob("*") if file.is_file())
    if size > INSTALLED_BYTES_MAX:
        raise NamesError(f"{wheel.name} installs {size} bytes; at most {INSTALLED_BYTES_MAX}")
    folders, installed = work / "folders", work / "installed"
    for program in (folders, installed):
        program.mkdir()
        (program / "main.py").write_text(PROGRAM, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    write_packages(folders)
    for form in (wheel, editable):
        run(*pip, "install", "--quiet", "--no-deps", "--force-reinstall", form)
        run(inside, "main.py", cwd=folders, environment=clean)
        moved = [folders / name for name in NAMES]
        for package in moved:
            package.rename(site / package.name)
        run(inside, "main.py", cwd=installed, environment=clean)
        for package in moved:
            (site / package.name).rename(package)
    version = run(inside, "-c", "import platform; print(platform.python_version())").strip()
    return f"Python {version}: the wheel ({size} bytes installed) and an editable installation work"


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line; the exit code is 1 if the library does not work."""
    parser = argparse.ArgumentParser(description="Run the library next to packages with the gateway's names.")
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="interpreter to check")
    options = parser.parse_args(arguments)
    hatchling = Path(sys.executable).with_name("hatchling")
    try:
        with tempfile.TemporaryDirectory(prefix="names-") as folder:
            work = Path(folder)
            for target in ("standard", "editable"):
                run(hatchling, "build", "--target", f"wheel:{target}", "--directory", work / target)
            pins = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
            constraints = [pin.removesuffix(" \\") for pin in pins if "==" in pin and not pin.startswith((" ", "#"))]
            (work / "constraints.txt").write_text("\n".join(constraints), encoding="utf-8")
            wheels = [next((work / target).glob("*.whl")) for target in ("standard", "editable")]
            for number, python in enumerate(options.pythons):
                (work / str(number)).mkdir()
                print(check(python, wheels[0], wheels[1], work / str(number)))
    except NamesError as error:
        print(f"scripts/verify-names: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
