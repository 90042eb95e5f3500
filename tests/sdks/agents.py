"""Runs coding agents, a web UI's package and LiteLLM's proxy against a gateway over scripted replicas.

`scripts/sdk-matrix --clis` runs it. Each agent has an environment below build/sdk-matrix, made at its first run, and is
skipped if npm or its package is missing. An agent has to read a file with its own tool and to answer with the word in
it. One of the two replicas is slow, and hedges start after 50 ms. Each agent runs twice: over replicas of the kind
openai, and of the kind anthropic. Units: seconds.
"""

import argparse
import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from checkout import ROOT
from checks import Sdk
from clients import command, environment, surroundings
from matrix import KEY, UPSTREAMS
from model_server import model_replicas
from recorded_calls import Reader, Recorded, save_calls
from scripted_model import FILE, Json
from served import gateway

GUIDES = ROOT / "docs" / "guides"
CALLS = ROOT / "tests" / "wire" / "recorded"
MODEL = "scripted"
PROMPT = f"Which word is in {FILE}?"
SECRET = "lantern-4711"
AGENT_S_MAX = 300.0
_SLOW_S, _FAST_S = 1.5, 0.02
_HEAD = "| client | replicas | right answer | hedges won | calls |\n|---|---|---|---|---|\n"
_MARKED = re.compile(r"(?<=<!-- the table -->\n).*(?=<!-- the end of the table -->)", re.DOTALL)


class Start(NamedTuple):
    """The start of an agent.

    Attributes:
        arguments: arguments of its program.
        env: environment variables.
        files: files by path, below its home or, with `project/` in front, in the project.
    """

    arguments: Sequence[str]
    env: Mapping[str, str]
    files: Mapping[str, str] = {}


class Agent(NamedTuple):
    """A coding agent.

    Attributes:
        name: its name in the table.
        program: its program in `node_modules/.bin`, or a program of this folder that uses the package.
        package: its package with the version.
        start: returns its start for the gateway's address without `/v1`.
        guide: the guide that has its results.
    """

    name: str
    program: str
    package: str
    start: Callable[[str], Start]
    guide: str = "coding-agents.md"

    @property
    def recorded(self) -> Path:
        """File of its calls."""
        return CALLS / f"{Path(self.program).stem.rpartition('_')[2]}.jsonl"

    @property
    def version(self) -> str:
        """Version of its package."""
        return re.split("@|==", self.package)[-1]


class Outcome(NamedTuple):
    """The outcome of one run.

    Attributes:
        fault: the problem; "" for none.
        calls: calls of the agent.
        log: the gateway's log lines of requests.
    """

    fault: str
    calls: Sequence[Recorded]
    log: Sequence[Json]


def _claude(url: str) -> Start:
    env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": KEY, "ANTHROPIC_MODEL": MODEL}
    return Start(("-p", PROMPT, "--allowedTools", "Read"), env)


def _codex(url: str) -> Start:
    config = f"""model = "{MODEL}"
model_provider = "ttft"
web_search = "disabled"
[model_providers.ttft]
name = "ttft-gateway"
base_url = "{url}/v1"
env_key = "TTFT_KEY"
wire_api = "responses"
"""
    sandbox = ("--skip-git-repo-check", "-s", "danger-full-access")  # a container may forbid the sandbox
    return Start(("exec", *sandbox, PROMPT), {"TTFT_KEY": KEY}, {".codex/config.toml": config})


def _opencode(url: str) -> Start:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "ttft-gateway",
        "options": {"baseURL": f"{url}/v1", "apiKey": "{env:TTFT_KEY}"},
        "models": {MODEL: {"name": MODEL}},
    }
    config = {"provider": {"ttft": provider}, "model": f"ttft/{MODEL}", "autoupdate": False, "share": "disabled"}
    env = {"TTFT_KEY": KEY, "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
    return Start(("run", PROMPT), env, {"project/opencode.json": json.dumps(config)})


def _given(url: str) -> Start:
    return Start((url, KEY, MODEL, PROMPT), {})


AGENTS = (
    Agent("Claude Code", "claude", "@anthropic-ai/claude-code@2.1.197", _claude),
    Agent("Codex", "codex", "@openai/codex@0.169.0", _codex),
    Agent("opencode", "opencode", "opencode-ai@1.18.33", _opencode),
    Agent("@librechat/agents", "ui_librechat.mjs", "@librechat/agents@3.2.21", _given, "web-uis.md"),
    Agent("LiteLLM's proxy", "proxy_litellm.py", "litellm[proxy]==1.106.2", _given, "with-litellm.md"),
)


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Reader | None) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            if seen is not None:
                seen.feed(data)
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@contextlib.asynccontextmanager
async def _recording(url: str, calls: list[Recorded]) -> AsyncIterator[str]:
    """A relay to the gateway that keeps the calls; gives its address."""
    port = int(url.rpartition(":")[2])

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_relay(reader, to_there, Reader(calls)), _relay(there, writer, None))
        writer.close()
        to_there.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _configured(kind: str, urls: Mapping[str, str]) -> Json:
    replicas = [{"name": name, "kind": kind, "base_url": url, "api_key": "none"} for name, url in urls.items()]
    hedge = {"policy": "static", "delay": "50ms", "hedge_delay_min": "1ms", "budget": "100%", "routing": "round_robin"}
    models = [{"name": MODEL, "replicas": replicas}]
    return {"keys": [{"name": "agents", "key": KEY}], "models": models, "hedge": hedge}


async def ran(agent: Agent, program: Sequence[str], kind: str, folder: Path) -> Outcome:
    """Run an agent over replicas of a kind.

    Args:
        agent: the agent.
        program: the command of its program.
        kind: kind of the replicas.
        folder: an empty folder.
    """
    home, project = folder / "home", folder / "project"
    for each in (home, project):
        each.mkdir()
    (project / FILE).write_text(f"The word is {SECRET}.\n", encoding="utf-8")
    calls: list[Recorded] = []
    async with model_replicas(str(project), slow=_SLOW_S, fast=_FAST_S) as replicas:
        urls = {name: replica.url for name, replica in replicas.items()}
        with gateway(_configured(kind, urls), folder) as served:
            async with _recording(served.url, calls) as url:
                fault = await _asked(agent.start(url), program, home, project)
    lines = [json.loads(line) for line in (folder / "gateway.log").read_text(encoding="utf-8").splitlines()]
    log = [line for line in lines if line["event"] == "request"]
    failed = [line for line in log if line["status"] != 200]
    if not fault and failed:
        fault = f"{len(failed)} requests failed, the first with {failed[0].get('error')}"
    if not fault and not any(line["result"] == "backup_won" for line in log):
        fault = "no hedge won"
    return Outcome(fault, calls, log)


async def _asked(start: Start, program: Sequence[str], home: Path, project: Path) -> str:
    """Start the agent; return the problem of its answer, "" for none."""
    for name, text in start.files.items():
        file = project / name.removeprefix("project/") if name.startswith("project/") else home / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    own = {"HOME": str(home), "PWD": str(project), "NO_PROXY": "127.0.0.1", "PYTHONPATH": ""}
    agent = await asyncio.create_subprocess_exec(
        *program,
        *start.arguments,
        cwd=project,
        env={**surroundings(), **own, **start.env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(agent.communicate(), AGENT_S_MAX)
    except TimeoutError:
        agent.kill()
        await agent.wait()
        return f"no end after {AGENT_S_MAX:.0f} s"
    if agent.returncode:
        return f"exit code {agent.returncode}: {err.decode(errors='replace').strip()[-300:]}"
    return "" if SECRET in out.decode(errors="replace") else f"the answer lacks {SECRET}: {out[-300:]!r}"


def installed(agent: Agent) -> Sequence[str]:
    """Return the command of an agent's program, installed if it is not there yet; nothing if that is impossible."""
    suffix = ".py" if agent.program.endswith(".py") else ".mjs"
    if suffix == ".mjs" and shutil.which("npm") is None:
        print(f"{agent.name} is skipped: npm is not installed")
        return ()
    try:
        folder = environment(Sdk(agent.name, f"agent_{agent.recorded.stem}{suffix}", (agent.package,)))
    except (subprocess.SubprocessError, OSError) as error:
        print(f"{agent.name} is skipped: {agent.package} cannot be installed ({type(error).__name__})")
        return ()
    if agent.program.endswith((".mjs", ".py")):
        return command(agent.program, folder)
    return (str(folder / "node_modules" / ".bin" / agent.program),)


def row(agent: Agent, kind: str, outcome: Outcome) -> str:
    """Return a row of the table."""
    calls = [f"{call.method} {call.path}" for call in outcome.calls]
    counted = ", ".join(f"{calls.count(each)} x `{each}`" for each in dict.fromkeys(calls))
    hedged = [line for line in outcome.log if line["result"] in ("backup_won", "backup_lost")]
    won = sum(line["result"] == "backup_won" for line in hedged)
    told = f"**no**: {outcome.fault}" if outcome.fault else "yes"
    return f"| {agent.name} {agent.version} | `{kind}` | {told} | {won} of {len(hedged)} | {counted} |\n"


def write(page: Path, table: str) -> None:
    """Replace the table of a guide."""
    text = page.read_text(encoding="utf-8")
    page.write_text(_MARKED.sub(lambda _: table, text), encoding="utf-8")


def main() -> int:
    """Run the agents that were named, or all; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="scripts/sdk-matrix --clis", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="agents: " + ", ".join(agent.recorded.stem for agent in AGENTS))
    parser.add_argument("--write", action="store_true", help="write the tables into docs/guides")
    parser.add_argument("--record", action="store_true", help="write the calls into tests/wire/recorded")
    arguments = parser.parse_args()
    tables: dict[str, str] = {}
    failed, runs = 0, 0
    for agent in AGENTS:
        program = installed(agent) if not arguments.names or agent.recorded.stem in arguments.names else ()
        for kind in UPSTREAMS if program else ():
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                outcome = asyncio.run(ran(agent, program, kind, Path(folder)))
                if arguments.record and kind == UPSTREAMS[0] and not outcome.fault:
                    CALLS.mkdir(exist_ok=True)
                    save_calls(agent.recorded, outcome.calls, f"{folder}/project")
            runs, failed = runs + 1, failed + bool(outcome.fault)
            tables[agent.guide] = tables.get(agent.guide, "") + row(agent, kind, outcome)
            print(row(agent, kind, outcome), end="", flush=True)
    print(f"{runs} runs, {failed} failed")
    if arguments.write and runs == len(AGENTS) * len(UPSTREAMS):
        for guide, table in tables.items():
            write(GUIDES / guide, _HEAD + table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
