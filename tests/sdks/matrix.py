"""Runs SDKs over simulated replicas and makes the tables of their pages; scripts/sdk-matrix runs it.

The SDKs' pins conflict, so each has an environment of its own below build/sdk-matrix, made when it is first needed.
SDKs of docs/evaluation/sdks.md send to a gateway, a process started as a person starts it; each client runs twice:
replicas of the kind openai, and of the kind anthropic. SDKs of docs/evaluation/transports.md send over a hedging
transport (transport_matrix.py), Go programs to a gateway as a sidecar (go_matrix.py).
"""

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import go_matrix
import transport_matrix
from checkout import ROOT
from checks import ANSWERS, ERRORS, SDKS, TRANSPORTS, Sdk
from clients import Line, asked
from served import gateway, replicas

PAGE = ROOT / "docs" / "evaluation" / "sdks.md"
KEY = "sk-matrix"
ANSWER_TOKENS = 20  # of an Anthropic answer to a chat completion without a bound: simulated replicas use it up
UPSTREAMS = ("openai", "anthropic")
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

GO = "go"  # name of the Go programs on the command line

Results = dict[tuple[Sdk, str, str], Line]  # by SDK, upstream, check


class Part(NamedTuple):
    """The results of one page.

    Attributes:
        text: its tables in Markdown.
        lines: results by the name of the client and the check.
    """

    page: Path
    text: str
    lines: dict[str, Line]

    def write(self) -> None:
        """Put the tables into the page."""
        page = self.page.read_text(encoding="utf-8")
        self.page.write_text(_MARKED.sub(lambda _: self.text, page), encoding="utf-8")


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
                results |= {
                    (sdk, upstream, check): line for check, line in asked(sdk, {*ANSWERS, *ERRORS}, json.dumps(scene))
                }
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


def gateways(sdks: Sequence[Sdk]) -> Part:
    """Run the SDKs against a gateway."""
    results = measured(sdks)
    lines = {f"{sdk.name}, {upstream} replicas, {check}": line for (sdk, upstream, check), line in results.items()}
    return Part(PAGE, tables(sdks, results), lines)


def transports(sdks: Sequence[Sdk]) -> Part:
    """Run the SDKs with a hedging transport."""
    results = transport_matrix.raced(sdks)
    lines = {f"{sdk.name}, transport, {case}": line for (sdk, case), line in results.items()}
    return Part(transport_matrix.PAGE, transport_matrix.table(results), lines)


def sidecars() -> Part:
    """Run the Go programs."""
    results = go_matrix.ran()
    lines = {f"{program}, {check}": line for (program, check), line in results.items()}
    return Part(go_matrix.PAGE, go_matrix.table(results), lines)


def main() -> int:
    """Run the clients that were named, or all; 1 when a check failed."""
    parser = argparse.ArgumentParser(prog="scripts/sdk-matrix", description=__doc__.splitlines()[0])
    every = [sdk.client for sdk in (*SDKS, *TRANSPORTS)] + [GO]
    parser.add_argument("names", nargs="*", help="clients: " + ", ".join(every))
    parser.add_argument("--write", action="store_true", help="put the tables into their pages")
    args = parser.parse_args()
    names = args.names or every
    if set(names) - set(every) or (args.write and args.names):
        parser.error("name clients from the list above; --write takes none, as a page has all of them")
    parts = []
    for run, those in ((gateways, SDKS), (transports, TRANSPORTS)):
        if sdks := [sdk for sdk in those if sdk.client in names]:
            parts.append(run(sdks))
    if GO in names:
        parts.append(sidecars())
    for part in parts:
        print(part.text)
    results = {name: line for part in parts for name, line in part.lines.items()}
    failed = {name: line for name, line in results.items() if not line.ok}
    for name, line in failed.items():
        print(f"{name}: {line.said}")
    print(f"{len(results)} checks, {len(failed)} failed")
    if args.write:
        for part in parts:
            part.write()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
