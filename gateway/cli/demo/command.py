"""`demo`: the gateway with three simulated replicas, one with slow outliers, and optional traffic with a live table.

Owns the set-up and the output. The replicas run in a separate process, so that only the gateway is measured; that
process ends when its standard input is closed, so it never outlives this one. Units: seconds.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from gateway.cli.config import report_problems
from gateway.cli.demo.table import ModeTally, line, summary, table
from gateway.cli.demo.traffic import MODEL_OFF, MODEL_ON, REQUESTS_PER_S, read_budget, send
from gateway.cli.environment import Environment, read_environment
from gateway.cli.parser import PROGRAM, ExitCode
from gateway.cli.process import run_until_end
from gateway.cli.terminal import bold, fail
from gateway.config.addresses import ADMIN_LISTEN_DEFAULT, LISTEN_DEFAULT
from gateway.config.errors import ConfigError
from gateway.config.settings import Settings
from gateway.config.values import parse_address
from gateway.server.admin_address import import_framework
from gateway.server.http_server import ListenError
from gateway.server.process import Addresses, run
from gateway.version import VERSION

_STEADY = {"ttft": "lognormal_median:200ms,0.25", "gap": "15ms"}
_TAIL = {**_STEADY, "stall": "10%:lognormal_median:2s,0.1"}
REPLICAS = {"steady-1": _STEADY, "steady-2": _STEADY, "tail": _TAIL}
"""Profile of each simulated replica, by name."""

_ROOT = Path(__file__).resolve().parents[3]  # the folder of the packages gateway and providers
_START_S_MAX = 10.0
_END_S_MAX = 1.0
_REDRAW_S = 0.5
_LINE_S = 5.0


class _NoReplicas(Exception):  # caught in this file
    """The simulated replicas did not start."""


def demo(arguments: argparse.Namespace) -> ExitCode:
    """Run the demo until Ctrl-C, or for `--seconds`."""
    try:
        environment = read_environment(os.environ)
    except ConfigError as error:
        return report_problems(error)
    screen = _take_screen() if arguments.traffic else sys.stdout
    if arguments.traffic:
        import_framework()  # the table needs the admin routes from its first row
    length_s = math.inf if arguments.seconds is None else arguments.seconds

    async def meanwhile(addresses: Addresses) -> None:
        if arguments.traffic:
            await _show_traffic(screen, addresses, key, arguments.seed, length_s)
        else:
            await asyncio.sleep(length_s)
        signal.raise_signal(signal.SIGINT)  # the same end as with Ctrl-C

    try:
        with _replicas(arguments.seed) as ports:
            settings = demo_settings(ports, arguments.port, arguments.admin_port, environment)
            key = environment.key_in(settings)
            return run_until_end(run(settings, lambda addresses: _greet(screen, addresses, key, ports), meanwhile))
    except ListenError as error:
        fail(f"{error}; run `{PROGRAM} demo --port 0` for free ports, or choose two with --port and --admin-port")
        return ExitCode.CANNOT_LISTEN
    except _NoReplicas:
        fail(f"the simulated replicas did not start within {_START_S_MAX:g} s")
        return ExitCode.FAILED


def demo_settings(
    replica_ports: Sequence[int], port: int | None, admin_port: int | None, environment: Environment
) -> Settings:
    """Return the demo's configuration: two models with the same replicas, one of them hedged.

    Args:
        replica_ports: ports of the replicas, in the order of `REPLICAS`.
        port: public port; 0 for any free port, None for the port in the environment.
        admin_port: admin port; 0 for any free port, None for the port in the environment.
        environment: default addresses and key.
    """
    listen = environment.listen or parse_address(LISTEN_DEFAULT)
    admin_listen = environment.admin_listen or parse_address(ADMIN_LISTEN_DEFAULT)
    if port is not None:
        listen = listen._replace(port=port)
    if admin_listen != "off" and (admin_port is not None or port == 0):
        admin_listen = admin_listen._replace(port=admin_port or 0)
    rows = [
        {"name": name, "kind": "simulated", "base_url": f"http://127.0.0.1:{replica_port}/v1"}
        for name, replica_port in zip(REPLICAS, replica_ports, strict=True)
    ]
    hedge = {"cold_start_delay": "400ms"}  # with the default of 2 s nothing is hedged until 20 requests have ended
    return Settings.model_validate(
        {
            **environment.settings,
            "listen": listen,
            "admin_listen": admin_listen,
            "drain_timeout": "300ms",  # short, since a user waits after Ctrl-C
            "models": [
                {"name": MODEL_ON, "replicas": rows, "hedge": hedge},
                {"name": MODEL_OFF, "replicas": rows, "hedge": {"policy": "off"}},
            ],
        }
    )


@contextlib.contextmanager
def _replicas(seed: int) -> Iterator[list[int]]:
    """Run the simulated replicas; yields their ports.

    Raises:
        _NoReplicas: the replicas did not start.
    """
    profiles = json.dumps(list(REPLICAS.values()))
    command = [sys.executable, "-m", "gateway.simulated.fleet", "--seed", str(seed), profiles]
    pipe = subprocess.PIPE
    # A new session, because Ctrl-C in a terminal signals all processes of the current one.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=_ROOT, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            ready, _, _ = select.select([process.stdout], [], [], _START_S_MAX)
            line_of_ports = process.stdout.readline() if ready else b""
            if not line_of_ports:
                raise _NoReplicas
            yield [port for port, _control in json.loads(line_of_ports)]
        finally:
            process.stdin.close()
            try:
                process.wait(_END_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


def _take_screen() -> TextIO:
    """Reserve standard output for the table: the request log is discarded, because it would hide the table."""
    screen = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    return screen


def _greet(screen: TextIO, addresses: Addresses, key: str | None, replica_ports: Sequence[int]) -> None:
    base = f"http://{addresses.public.here}/v1"
    admin = "off"
    if addresses.admin is not None:
        admin = f"http://{addresses.admin.here} (live page), /admin/models (learned latencies), /metrics,\n"
        admin += f"            live events: curl -N http://{addresses.admin.here}/admin/events"
    authorization = f" \\\n    -H 'authorization: Bearer {key}'" if key else ""
    replicas = ", ".join(f"{name} on port {port}" for name, port in zip(REPLICAS, replica_ports, strict=True))
    print(
        f"""{bold(f"{PROGRAM} {VERSION}: the demo is ready at {base}", screen)} (Ctrl-C ends it)

  replicas  {replicas}:
            first token after about 200 ms; at the last replica, one in ten takes 2 s
  models    {MODEL_ON} (hedged) and {MODEL_OFF} (not hedged), both with these replicas
  key       {f"{key}, generated for this run" if key else "not required"}
  admin     {admin}

With curl (the x-ttft-* response headers describe the race):
  curl -iN {base}/chat/completions -H 'content-type: application/json'{authorization} \\
    -d '{{"model": "{MODEL_ON}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'

With the OpenAI SDK:
  from openai import OpenAI
  client = OpenAI(base_url="{base}", api_key="{key or "any"}")
  stream = client.chat.completions.create(
      model="{MODEL_ON}", stream=True, messages=[{{"role": "user", "content": "Hello"}}]
  )
  for chunk in stream:
      print(chunk.choices[0].delta.content or "", end="", flush=True)
""",
        file=screen,
        flush=True,
    )


async def _show_traffic(screen: TextIO, addresses: Addresses, key: str | None, seed: int, length_s: float) -> None:
    """Send traffic and show the results; print the full table and a summary at the end, even on errors."""
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    off, on, budget = ModeTally(), ModeTally(), None
    live = screen.isatty()
    drawn = 0

    def draw() -> None:
        nonlocal drawn
        title = f"{loop.time() - begin_s:.0f} s of {REQUESTS_PER_S:g} requests/s; TTFT measured by the client"
        lines = [bold(title, screen), *table(off, on, budget)]
        text = "\n".join(lines)
        if live:
            text = (
                f"\x1b[{drawn}F\x1b[J" if drawn else ""
            ) + f"\x1b[?7l{text}\x1b[?7h"  # a wrapped line would count as two
            drawn = len(lines)
        print(text, file=screen, flush=True)

    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(send(addresses.public, key, off, on, seed=seed, length_s=length_s))
        try:
            while not sending.done():
                await asyncio.wait({sending}, timeout=_REDRAW_S if live else _LINE_S)
                if addresses.admin is not None:
                    budget = await read_budget(addresses.admin)
                if live:
                    draw()
                else:
                    print(line(loop.time() - begin_s, off, on, budget), file=screen, flush=True)
        finally:
            draw()
            print(summary(off, on), file=screen, flush=True)
