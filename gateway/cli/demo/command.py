"""`demo`: the gateway before three simulated replicas, one with a bad tail, and if wanted traffic with a live table.

Owns what is set up and what a person is told. The replicas run in a process of their own, so that
what is measured is the gateway; that process ends when its standard input does, hence always with this one.
Units: seconds.
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

from gateway.cli.config import tell_problems
from gateway.cli.demo.table import ModeTally, line, summary, table
from gateway.cli.demo.traffic import MODEL_OFF, MODEL_ON, REQUESTS_PER_S, read_budget, send
from gateway.cli.environment import Environment, read_environment
from gateway.cli.parser import ADMIN_LISTEN_DEFAULT, LISTEN_DEFAULT, PROGRAM, ExitCode
from gateway.cli.process import run_until_end
from gateway.cli.terminal import bold, fail
from gateway.config.errors import ConfigError
from gateway.config.settings import Settings
from gateway.config.values import parse_address
from gateway.server import Addresses, ListenError, run
from gateway.version import gateway_version

_STEADY = {"ttft": "lognormal_median:200ms,0.25", "gap": "15ms"}
_TAIL = {**_STEADY, "stall": "10%:lognormal_median:2s,0.1"}
REPLICAS = {"steady-1": _STEADY, "steady-2": _STEADY, "tail": _TAIL}
"""The profiles of the simulated replicas by their names."""

_ROOT = Path(__file__).resolve().parents[3]  # where the packages gateway and providers are
_START_S_MAX = 10.0
_END_S_MAX = 1.0
_REDRAW_S = 0.5
_LINE_S = 5.0


class _NoReplicas(Exception):  # never leaves this file
    """The simulated replicas do not run."""


def demo(arguments: argparse.Namespace) -> ExitCode:
    """Run the demo until Ctrl-C, or as long as asked."""
    try:
        environment = read_environment(os.environ)
    except ConfigError as error:
        return tell_problems(error)
    screen = _take_screen() if arguments.traffic else sys.stdout
    length_s = math.inf if arguments.seconds is None else arguments.seconds

    async def meanwhile(addresses: Addresses) -> None:
        if arguments.traffic:
            await _show_traffic(screen, addresses, key, arguments.seed, length_s)
        else:
            await asyncio.sleep(length_s)
        signal.raise_signal(signal.SIGINT)  # ends as with Ctrl-C

    try:
        with _replicas(arguments.seed) as ports:
            settings = demo_settings(ports, arguments.port, arguments.admin_port, environment)
            key = environment.key_in(settings)
            return run_until_end(run(settings, lambda addresses: _greet(screen, addresses, key, ports), meanwhile))
    except ListenError as error:
        fail(f"{error}; for free ports: {PROGRAM} demo --port 0, or name two: --port 8081 --admin-port 9091")
        return ExitCode.CANNOT_LISTEN
    except _NoReplicas:
        fail(f"the simulated replicas did not start within {_START_S_MAX:g} s")
        return ExitCode.FAILED


def demo_settings(
    replica_ports: Sequence[int], port: int | None, admin_port: int | None, environment: Environment
) -> Settings:
    """The demo's configuration: two models over the same replicas, one of them hedged.

    Args:
        replica_ports: of the replicas, in the order of `REPLICAS`.
        port: of the gateway, 0: any, None: as the environment says.
        admin_port: likewise.
        environment: says on which addresses to listen.
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
    hedge = {"cold_start_delay": "400ms"}  # with the default of 10 s nothing would be seen until 20 requests are done
    return Settings.model_validate(
        {
            **environment.settings,
            "listen": listen,
            "admin_listen": admin_listen,
            "drain_timeout": "300ms",  # a person has pressed Ctrl-C
            "models": [
                {"name": MODEL_ON, "replicas": rows, "hedge": hedge},
                {"name": MODEL_OFF, "replicas": rows, "hedge": {"policy": "off"}},
            ],
        }
    )


@contextlib.contextmanager
def _replicas(seed: int) -> Iterator[list[int]]:
    """The simulated replicas while inside; gives their ports.

    Raises:
        _NoReplicas: they do not run.
    """
    profiles = json.dumps(list(REPLICAS.values()))
    command = [sys.executable, "-m", "providers.simulated.fleet", "--seed", str(seed), profiles]
    pipe = subprocess.PIPE
    # A session of its own: Ctrl-C in a terminal goes to all processes of this one.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=_ROOT, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            ready, _, _ = select.select([process.stdout], [], [], _START_S_MAX)
            told = process.stdout.readline() if ready else b""
            if not told:
                raise _NoReplicas
            yield [port for port, _control in json.loads(told)]
        finally:
            process.stdin.close()
            try:
                process.wait(_END_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


def _take_screen() -> TextIO:
    """Standard output for the table alone: the log of requests, which goes there, too, would bury it."""
    screen = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return screen


def _greet(screen: TextIO, addresses: Addresses, key: str | None, replica_ports: Sequence[int]) -> None:
    base = f"http://{addresses.public.here}/v1"
    admin = "off"
    if addresses.admin is not None:
        admin = f"http://{addresses.admin.here}/admin/models what was learned, /metrics,\n"
        admin += f"            and as it happens: curl -N http://{addresses.admin.here}/admin/events"
    authorization = f" \\\n    -H 'authorization: Bearer {key}'" if key else ""
    replicas = ", ".join(f"{name} on port {port}" for name, port in zip(REPLICAS, replica_ports, strict=True))
    print(
        f"""{bold(f"{PROGRAM} {gateway_version()}: the demo is ready at {base}", screen)} (Ctrl-C ends it)

  replicas  {replicas}:
            first token after about 200 ms, but at the last one in ten takes 2 s
  models    {MODEL_ON} (hedged) and {MODEL_OFF} (not hedged), both over these replicas
  key       {f"{key}, made for this run" if key else "none is asked for"}
  admin     {admin}

With curl (the x-ttft headers say how the race went):
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
    """Send traffic and show what comes of it, at the end in full, whatever ends it."""
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    off, on, budget = ModeTally(), ModeTally(), None
    live = screen.isatty()
    drawn = 0

    def draw() -> None:
        nonlocal drawn
        title = f"{loop.time() - begin_s:.0f} s of {REQUESTS_PER_S:g} requests/s; TTFT as the client sees it"
        lines = [bold(title, screen), *table(off, on, budget)]
        text = "\n".join(lines)
        if live:
            text = (f"\x1b[{drawn}F\x1b[J" if drawn else "") + f"\x1b[?7l{text}\x1b[?7h"  # a wrapped line would be two
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
