"""Runs the clients of the matrix, each in an environment of its own below build/sdk-matrix. Units: seconds."""

import json
import os
import platform
import shutil
import subprocess
import sys
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from checkout import ROOT
from checks import Sdk

HERE = Path(__file__).resolve().parent
CACHE = ROOT / "build" / "sdk-matrix"
INSTALL_S_MAX = 900.0
CLIENT_S_MAX = 300.0


class Line(NamedTuple):
    """What came of one check: whether it holds, and a word for the table or what was wrong."""

    ok: bool
    said: str


def environment(sdk: Sdk) -> Path:
    """The folder of an SDK's environment, made if it is not there yet."""
    what = " ".join((sdk.client, *sdk.packages, platform.python_version()))
    folder = CACHE / f"{Path(sdk.client).stem}-{Path(sdk.client).suffix[1:]}-{zlib.crc32(what.encode()):08x}"
    if (folder / "complete").exists():
        return folder
    print(f"installing {' '.join(sdk.packages)}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if sdk.client.endswith(".mjs"):
        (folder / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
        steps = [
            [
                shutil.which("npm") or "npm",
                "install",
                "--silent",
                "--no-audit",
                "--no-fund",
                "--no-package-lock",
                *sdk.packages,
            ]
        ]
    else:
        python = str(folder / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        steps = [[sys.executable, "-m", "venv", str(folder)], [*pip, *sdk.packages]]
    for step in steps:
        subprocess.run(step, cwd=folder, check=True, timeout=INSTALL_S_MAX)
    (folder / "complete").touch()
    return folder


def command(program: str, folder: Path) -> list[str]:
    """Return the command of a client in an environment. Node finds packages only in its folder: it is copied there."""
    if program.endswith(".mjs"):
        for each in HERE.glob("*.mjs"):
            shutil.copy(each, folder)
        return [shutil.which("node") or "node", str(folder / program)]
    return [str(folder / "bin" / "python"), str(HERE / program)]


def surroundings() -> dict[str, str]:
    """Return the environment variables of a client: no proxy, and nothing of this project."""
    away = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    return {name: value for name, value in os.environ.items() if name not in away} | {"PYTHONPATH": ""}


def asked(
    sdk: Sdk, checks: Collection[str], *arguments: str, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[str, Line]]:
    """Run a client and return the results of its checks.

    Args:
        checks: names of all checks.
        variables: further environment variables.

    Raises:
        RuntimeError: it ended early, or made a check that no list has.
    """
    ran = subprocess.run(
        [*command(sdk.client, environment(sdk)), *arguments],
        env={**surroundings(), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=CLIENT_S_MAX,
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"check"')]
    unknown = {line["check"] for line in lines} - {*checks}
    if ran.returncode or not lines or unknown:
        raise RuntimeError(f"{sdk.client} ended with {ran.returncode}, unknown checks {unknown}:\n{ran.stderr}")
    if not all(line["ok"] for line in lines):
        print(ran.stderr, file=sys.stderr)
    for line in lines:
        yield line["check"], Line(line["ok"], line["said"])
