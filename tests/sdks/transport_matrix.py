"""Runs the hedging transports through each SDK of `TRANSPORTS`, and the SDK's example; see matrix.py."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from checkout import ROOT
from checks import CASES, TRANSPORTS, Sdk
from clients import Line, asked, command, environment, surroundings
from served import replicas

PAGE = ROOT / "docs" / "evaluation" / "transports.md"
_LIMIT_S = 300.0
_ANSWERING: Mapping[str, object] = {"ttft": "5ms", "gap": "1ms", "tokens": 8}

Raced = dict[tuple[Sdk, str], Line]  # by SDK and case


def raced(sdks: Sequence[Sdk]) -> Raced:
    """Run the cases and the example of each SDK."""
    results: Raced = {}
    python_path = os.pathsep.join(str(ROOT / folder) for folder in (".", "tests/support", "tests/sdks"))
    for sdk in sdks:
        print(f"{sdk.name}, with a hedging transport", file=sys.stderr)
        ran = asked(sdk, CASES, variables={"PYTHONPATH": python_path})
        results |= {(sdk, case): line for case, line in ran} | {(sdk, "example"): _example(sdk)}
    return results


def _example(sdk: Sdk) -> Line:
    """Run the example of an SDK against a simulated replica."""
    program = ROOT / "examples" / sdk.client.replace("transport_", "client_")
    with replicas(openai=_ANSWERING, anthropic={"provider": "anthropic", **_ANSWERING}) as urls:
        variables = {
            "PYTHONPATH": str(ROOT),
            "OPENAI_BASE_URL": urls["openai"],
            "OPENAI_API_KEY": "none",
            "OPENAI_MODEL": "m",
            "ANTHROPIC_BASE_URL": urls["anthropic"].removesuffix("/v1"),
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_MODEL": "m",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it requests prices from another host
        }
        ran = subprocess.run(
            command(str(program), environment(sdk)),
            env=surroundings() | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )
    if ran.returncode or "\n1 requests, " not in ran.stdout:
        print(ran.stderr, file=sys.stderr)
        return Line(ok=False, said=f"exit code {ran.returncode}: {ran.stdout[-200:]}")
    return Line(ok=True, said="")


def table(results: Raced) -> str:
    """Return the table in Markdown."""
    sdks = [sdk for sdk in TRANSPORTS if any(of is sdk for of, _ in results)]
    versions = ", ".join(f"`{sdk.packages[0]}`" for sdk in sdks)
    text = f"Versions: {versions}; httpx 0.28.1, httpx2 2.16.2.\n\n"
    text += f"| case |{''.join(f' {sdk.name} |' for sdk in sdks)}\n|---|{'---|' * len(sdks)}\n"
    for case in CASES:
        cells = (results.get((sdk, case)) for sdk in sdks)
        text += f"| {case} |{''.join(f' {_cell(line)} |' for line in cells)}\n"
    return text


def _cell(line: Line | None) -> str:
    return "-" if line is None else "yes" if line.ok else "**no**"
