"""Runs every SDK against a gateway over simulated replicas and makes the table of docs/compatibility.md.

scripts/sdk-matrix runs it. The SDKs' pins conflict, so each has an environment of its own below build/sdk-matrix, made
when it is first needed. The gateway is a process started as a person starts it. Each client runs twice: replicas of the
kind openai, and of the kind anthropic. Units: seconds.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from checkout import ROOT
from checks import ANSWERS, ERRORS, SDKS, Sdk
from served import gateway, replicas

HERE = Path(__file__).resolve().parent
CACHE = ROOT / "build" / "sdk-matrix"
PAGE = ROOT / "docs" / "compatibility.md"
KEY = "sk-matrix"
ANSWER_TOKENS = 20  # of an Anthropic answer to a chat completion without a bound: simulated replicas use it up
UPSTREAMS = ("openai", "anthropic")
INSTALL_S_MAX = 900.0
CLIENT_S_MAX = 300.0
_MARKED = re.compile(r"(?<=<!-- the table -->\n).*(?=<!-- the end of the table -->)", re.DOTALL)

# Behind each model its replicas. A race is as good as sure where there are two: the backup is sent after 1 ms.
BEHAVIOUR: Mapping[str, tuple[Mapping[str, object], ...]] = {
    "fast": ({"ttft": "8ms", "gap": "1ms"}, {"ttft": "8ms", "gap": "1ms"}),
    "silent": ({"ttft": "60s"},),
    "endless": ({"gap": "50ms", "tokens": 2000},),
    "refusing": ({"faults": ["context_length"]},),
    "limited": ({"faults": ["429"]},),
    "failing": ({"faults": ["500"]},),
    "cut": ({"faults": ["cut_rst:3"]},),
}


class Line(NamedTuple):
    """What came of one check: whether it holds, and a word for the table or what was wrong."""

    ok: bool
    said: str


Results = dict[tuple[Sdk, str, str], Line]  # by SDK, upstream, check


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
    """Return the command of a client in an environment. Node finds packages beside the program: it is copied there."""
    if program.endswith(".mjs"):
        for each in HERE.glob("*.mjs"):
            shutil.copy(each, folder)
        return [shutil.which("node") or "node", str(folder / program)]
    return [str(folder / "bin" / "python"), str(HERE / program)]


def surroundings() -> dict[str, str]:
    """Return the environment variables of a client: no proxy, and nothing of this project."""
    away = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    return {name: value for name, value in os.environ.items() if name not in away} | {"PYTHONPATH": ""}


def configured(upstream: str, urls: Mapping[str, str]) -> dict[str, object]:
    """The gateway's configuration over these replicas, by the names that `named` gives them."""
    models = []
    for model, profiles in BEHAVIOUR.items():
        names = [f"{model}-{number}" for number, _ in enumerate(profiles)]
        own = [
            {
                "name": name,
                "kind": upstream,
                "base_url": urls[name],
                "api_key": "none",
                "max_tokens_default": ANSWER_TOKENS,
            }
            for name in names
        ]
        models.append({"name": model, "replicas": own, "recovery": "off"})
    hedge = {"policy": "static", "delay": "1ms", "hedge_delay_min": "1ms", "budget": "100%"}
    return {"keys": [{"name": "matrix", "key": KEY}], "models": models, "hedge": hedge}


def asked(sdk: Sdk, scene: Mapping[str, object]) -> Iterator[tuple[str, Line]]:
    """Run a client and read what it says of its checks.

    Raises:
        RuntimeError: it ended early, or made a check that no list has.
    """
    ran = subprocess.run(
        [*command(sdk.client, environment(sdk)), json.dumps(scene)],
        env=surroundings(),
        capture_output=True,
        text=True,
        check=False,
        timeout=CLIENT_S_MAX,
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"check"')]
    unknown = {line["check"] for line in lines} - {*ANSWERS, *ERRORS}
    if ran.returncode or not lines or unknown:
        raise RuntimeError(f"{sdk.client} ended with {ran.returncode}, unknown checks {unknown}:\n{ran.stderr}")
    if not all(line["ok"] for line in lines):
        print(ran.stderr, file=sys.stderr)
    for line in lines:
        yield line["check"], Line(line["ok"], line["said"])


def measured(sdks: Sequence[Sdk]) -> Results:
    """Every SDK's checks with both kinds of replicas."""
    results: Results = {}
    for upstream in UPSTREAMS:
        profiles = {
            f"{model}-{number}": {"provider": upstream, **profile}
            for model, those in BEHAVIOUR.items()
            for number, profile in enumerate(those)
        }
        with (
            replicas(**profiles) as urls,
            tempfile.TemporaryDirectory() as folder,
            gateway(configured(upstream, urls), Path(folder)) as served,
        ):
            stats = {model: urls[f"{model}-0"].removesuffix("/v1") + "/sim/stats?records=0" for model in BEHAVIOUR}
            for sdk in sdks:
                print(f"{sdk.name}, replicas of the kind {upstream}", file=sys.stderr)
                scene = {"gateway": served.url, "key": KEY, "upstream": upstream, "stats": stats}
                results |= {(sdk, upstream, check): line for check, line in asked(sdk, scene)}
    return results


def tables(sdks: Sequence[Sdk], results: Results) -> str:
    """The tables in Markdown: what works, and the classes of errors."""
    heads = "".join(f" {sdk.name} |" for sdk in sdks)
    rule = "|---|" + "---|" * len(sdks)
    parts = [f"`{' '.join(sdk.packages)}`" for sdk in sdks]
    node = subprocess.run([shutil.which("node") or "node", "--version"], capture_output=True, text=True, check=True)
    languages = f"Python {platform.python_version()}, Node {node.stdout.strip().removeprefix('v')}"
    text = f"Versions: {', '.join(parts)}; {languages}.\n"
    for upstream in UPSTREAMS:
        text += f"\n| replicas of the kind `{upstream}` |{heads}\n{rule}\n"
        for check in ANSWERS:
            text += f"| {check} |" + "".join(f" {_cell(results.get((sdk, upstream, check)))} |" for sdk in sdks) + "\n"
    text += f"\n| error, raised as |{heads}\n{rule}\n"
    for check in ERRORS:
        text += f"| {check} |" + "".join(f" {_class(results, sdk, check)} |" for sdk in sdks) + "\n"
    return text


def _cell(line: Line | None) -> str:
    """Of a check that need not exist for an SDK."""
    if line is None:
        return "-"
    return ("yes" + f" ({line.said})" * bool(line.said)) if line.ok else "**no**"


def _class(results: Results, sdk: Sdk, check: str) -> str:
    """Of an error, whoever has answered with it; both where that makes a difference."""
    found = [results.get((sdk, upstream, check)) for upstream in UPSTREAMS]
    shown = ["-" if line is None else f"`{line.said}`" if line.ok else "**no**" for line in found]
    return ", ".join(dict.fromkeys(shown))


def main() -> int:
    """Run the SDKs that were named, or all; 1 when a check failed."""
    parser = argparse.ArgumentParser(prog="scripts/sdk-matrix", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="clients: " + ", ".join(sdk.client for sdk in SDKS))
    parser.add_argument("--write", action="store_true", help="put the table into docs/compatibility.md")
    args = parser.parse_args()
    sdks = [sdk for sdk in SDKS if not args.names or sdk.client in args.names]
    if not sdks or (args.write and args.names):
        parser.error("name clients from the list above; --write takes none, as the page has all of them")
    results = measured(sdks)
    text = tables(sdks, results)
    print(text)
    failed = {where: line for where, line in results.items() if not line.ok}
    for (sdk, upstream, check), line in failed.items():
        print(f"{sdk.name}, {upstream} replicas, {check}: {line.said}")
    print(f"{len(results)} checks, {len(failed)} failed")
    if args.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_MARKED.sub(lambda _: text, page), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
