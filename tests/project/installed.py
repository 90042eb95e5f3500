"""Checks installed wheels away from its sources; run by scripts/verify-wheel with the Python of that installation.

Starts the demo, requests streams and pages, and shows the times to the first token and to the first token of a backup.
Standard library only. Units: seconds.
"""

import argparse
import contextlib
import importlib.util
import json
import queue
import re
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

LIBRARY = "ttft_gateway"
SERVER = ("gateway", "providers", "streaming_bench")
LABORATORY = "streaming_bench/research"  # not installed
FILES = ("gateway/openapi.yaml", "gateway/pages/static/*", "gateway/share/ttft3.lua", "*/py.typed")
START_S_MAX = 60.0
CALL_S_MAX = 60.0
STREAMS_MAX = 300  # in the demo, one request in ten is late at one of three replicas


class CheckFailedError(Exception):
    """The installation lacks something; the message names it."""


def check_files(sources: Path, *, library_only: bool) -> str:
    """Compare the packages with the sources, which must not be what is imported."""
    folders: dict[str, Path] = {}
    packages = (LIBRARY,) if library_only else (LIBRARY, *SERVER)
    if library_only and (found := [name for name in SERVER if importlib.util.find_spec(name)]):
        raise CheckFailedError(f"the library's wheel installs {', '.join(found)}")
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise CheckFailedError(f"{name} is not installed")
        folders[name] = Path(spec.origin).parent
        if folders[name].is_relative_to(sources):
            raise CheckFailedError(f"{name} was imported from the sources: {folders[name]}")
    wanted = [file for name in packages for file in (sources / name).rglob("*")]
    wanted += [] if library_only else [sources / "openapi.yaml"]
    count = 0
    for file in wanted:
        if not file.is_file() or "__pycache__" in file.parts or file.is_relative_to(sources / LABORATORY):
            continue
        package, *rest = ("gateway", "openapi.yaml") if file.parent == sources else file.relative_to(sources).parts
        installed = folders[package].joinpath(*rest)
        if not installed.is_file() or installed.read_bytes() != file.read_bytes():
            raise CheckFailedError(f"{file.relative_to(sources)} is missing or different in the wheel")
        count += 1
    site = folders[LIBRARY].parent
    if not library_only and (empty := [pattern for pattern in FILES if not any(site.glob(pattern))]):
        raise CheckFailedError(f"the wheels have no {', '.join(empty)}")
    return f"{count} files of {', '.join(packages)} as in the sources"


@contextlib.contextmanager
def demo(program: str) -> Iterator[tuple[str, str]]:
    """Run the demo; gives the addresses of the public and the admin routes."""
    command = [program, "demo", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        lines: queue.Queue[str] = queue.Queue()  # bounded by what the demo prints: some 40 lines
        threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
        try:
            yield _addresses(lines)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def _read(output: IO[str] | None, lines: "queue.Queue[str]") -> None:
    for line in output or ():
        lines.put(line)


def _addresses(lines: "queue.Queue[str]") -> tuple[str, str]:
    text = ""
    while not (found := re.search(r"(http://\S+?)/v1\b.*(http://\S+?)/admin/models", text, re.DOTALL)):
        try:
            text += lines.get(timeout=START_S_MAX)
        except queue.Empty:
            raise CheckFailedError(f"the demo printed no addresses within {START_S_MAX:g} s:\n{text}") from None
    return found[1], found[2]


def check_stream(public: str) -> str:
    """Read a stream up to its first token.

    Returns:
        The result that the gateway's headers name.
    """
    message = {"role": "user", "content": "Hello"}
    body = json.dumps({"model": "demo", "stream": True, "messages": [message]}).encode()
    request = urllib.request.Request(f"{public}/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=CALL_S_MAX) as response:
        for line in response:
            choices = json.loads(line[6:]).get("choices") if line.startswith(b"data: {") else None
            if choices and choices[0]["delta"].get("content"):
                return str(response.headers["x-ttft-result"])
    raise CheckFailedError("a stream of the demo ended without a token")


def check_backup(public: str) -> int:
    """Read streams until a backup has won; return their number."""
    for number in range(1, STREAMS_MAX + 1):
        if check_stream(public) == "backup_won":
            return number
    raise CheckFailedError(f"no backup has won in {STREAMS_MAX} streams of the demo")


def check_pages(public: str, admin: str) -> str:
    """Request the live page, the API reference, their scripts and styles, and the contract."""
    paths = []
    for base, page in ((admin, "/"), (public, "/docs")):
        with urllib.request.urlopen(base + page, timeout=CALL_S_MAX) as response:
            text = response.read().decode()
        names = re.findall(r'(?:src|href)="([\w./-]+\.(?:js|css))"', text)
        if not names:
            raise CheckFailedError(f"{page} of the demo names no script")
        paths += [base + page, *(urllib.parse.urljoin(base + page, name) for name in names)]
    for path in [*paths, f"{public}/openapi.json"]:
        with urllib.request.urlopen(path, timeout=CALL_S_MAX) as response:
            if not response.read():
                raise CheckFailedError(f"{path} is empty")
    return f"{len(paths) + 1} pages, scripts and contracts are served"


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line; the exit code is 1 if something is missing."""
    parser = argparse.ArgumentParser(description="Check an installed wheel.")
    parser.add_argument("sources", type=Path, help="the checkout that the wheel was built from")
    parser.add_argument("--begun", type=float, default=time.time(), help="Unix time at which the installation began")
    parser.add_argument("--library", action="store_true", help="only the base is installed: no package of the server")
    parser.add_argument("--demo", metavar="PROGRAM", help="path of ttft-gateway; run its demo to a first token")
    options = parser.parse_args(arguments)
    try:
        print(check_files(options.sources, library_only=options.library))
        if options.demo:
            begin_s = time.monotonic()
            with demo(options.demo) as (public, admin):
                check_stream(public)
                print(f"first token of the demo {time.monotonic() - begin_s:.1f} s after its start")
                streams = check_backup(public)
                since_s = time.time() - options.begun
                print(f"first token of a backup {since_s:.1f} s after the beginning, {streams} streams")
                print(check_pages(public, admin))
    except (CheckFailedError, OSError) as error:
        print(f"installed.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
