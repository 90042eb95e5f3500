"""`serve`: settings from a file or from options, then the gateway until a signal ends it.

Owns the messages at start: addresses, models, and warnings, such as an unreachable replica (no error, because the
replica may start later). The gateway itself belongs to gateway/server/process.py. Units: seconds.
"""

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Iterator
from functools import partial
from urllib.parse import unquote, urlsplit

from gateway.cli.config import cautions, config_path, report_no_file, report_problems
from gateway.cli.environment import read_environment
from gateway.cli.hedging import hedging_summary, is_hedged
from gateway.cli.kinds import detect_kinds
from gateway.cli.options import settings_of
from gateway.cli.parser import PROGRAM, ExitCode, parse
from gateway.cli.process import run_until_end, stderr_off_loop
from gateway.cli.terminal import bold, fail, warn
from gateway.cli.workers import serve_with_workers, worker_count
from gateway.config.discovered import expected, name_of, pools
from gateway.config.errors import ConfigError
from gateway.config.loader import load
from gateway.config.settings import ModelSettings, ReplicaSettings, Settings
from gateway.server.extras import missing_extra
from gateway.server.hot_restart import Predecessor, predecessor
from gateway.server.http_server import ListenError
from gateway.server.process import Addresses, run
from gateway.server.sockets import InheritError
from gateway.version import VERSION

_CONNECT_S_MAX = 1.0
_CONNECTS_MAX = 50  # concurrent ones
_LISTED_MAX = 20  # models or replicas; further ones are only counted


def serve(arguments: argparse.Namespace) -> ExitCode:
    """Run the gateway."""
    try:
        return _serve(arguments, predecessor(os.environ))
    except ConfigError as error:
        return report_problems(error)
    except InheritError as error:
        fail(str(error))
        return ExitCode.CANNOT_LISTEN


def _serve(arguments: argparse.Namespace, before: Predecessor) -> ExitCode:
    """Run the gateway with the sockets that it inherits.

    Raises:
        InheritError: such a socket is not used.
        ConfigError: the configuration or the list of keys cannot be used.
    """
    file = config_path(arguments.config, os.environ)
    if arguments.model is None and arguments.config is None and not file.exists():
        replicas = "--replica http://10.0.0.1:8000/v1 --replica http://10.0.0.2:8000/v1"
        ways = ("serve --config FILE", f"serve --model llama {replicas}", "demo")
        return _demo() if arguments.or_demo else report_no_file(file, *ways)
    gc.disable()  # until the start is over: settings and topology leave no garbage, and a search takes a fifth of it
    environment = read_environment(os.environ)
    read = partial(load, file, os.environ, environment.settings)
    settings = read() if arguments.model is None else settings_of(arguments, os.environ, environment)
    if fault := missing_extra(settings):
        fail(fault)
        return ExitCode.BAD_CONFIG
    if arguments.model is not None and arguments.kind is None:
        with stderr_off_loop():
            settings = detect_kinds(settings)

    def on_ready(addresses: Addresses) -> None:
        for line in _introduction(settings, addresses, environment.key_in(settings)):
            print(line, file=sys.stderr)
        for caution in cautions(settings):
            warn(caution)

    async def meanwhile(_addresses: Addresses) -> None:
        try:
            await _warn_of_unreachable(settings)
            await asyncio.Event().wait()
        finally:
            wait_s = settings.drain_timeout_s
            print(
                f"stopping: running requests have {wait_s:g} s to finish; send the signal again to end them now",
                file=sys.stderr,
                flush=True,
            )

    reread = read if arguments.model is None else None
    try:
        if (count := worker_count(settings.workers)) > 1:
            if sys.platform != "linux":
                fail(f"workers is {count}, but several workers need Linux; write `workers: 1`")
                return ExitCode.BAD_CONFIG
            return serve_with_workers(count, settings, on_ready, meanwhile, reread, before)
        return run_until_end(run(settings, on_ready, meanwhile, reread, before=before))
    except ListenError as error:
        names = "`listen` or `admin_listen`" if arguments.model is None else "`--listen` or `--admin-listen`"
        fail(f"{error}; stop the process that listens there, or change {names}")
        return ExitCode.CANNOT_LISTEN


def _demo() -> ExitCode:
    from gateway.cli.demo.command import demo

    return demo(parse(["demo"]))


def _introduction(settings: Settings, addresses: Addresses, generated_key: str | None) -> Iterator[str]:
    yield bold(f"{PROGRAM} {VERSION} is ready at http://{addresses.public}/v1", sys.stderr)
    described = expected(settings, {})  # once: it describes all models
    for model, shown in zip(settings.models[:_LISTED_MAX], described.models, strict=False):
        yield f"  {model.name}: {_shown_names(model)}; {hedging_summary(described, shown)}"
    if more := described.models[_LISTED_MAX:]:
        unhedged = sum(not is_hedged(described, model) for model in more)
        yield f"  and {len(more)} more models" + (f", {unhedged} of them without hedging" if unhedged else "")
    if generated_key is not None:
        yield f"  key {generated_key}, generated for this run because no keys are configured"
    if addresses.admin is not None:
        yield f"  admin at http://{addresses.admin} (live page; /metrics, /admin/models, /admin/hedging, /admin/events)"


def _shown_names(model: ModelSettings) -> str:
    pools_shown = []
    for pool in pools(model):
        names = [f"{row.name} (backup_only)" if row.backup_only else row.name for row in pool.replicas]
        pools_shown.append(", ".join([*names, *([] if pool.discover is None else [name_of(pool.discover)])]))
    return " then ".join(pools_shown)


async def _warn_of_unreachable(settings: Settings) -> None:
    """Connect to each replica once, and warn of those that are unreachable."""
    replicas = {
        urlsplit(replica.base_url).netloc: (model, replica)
        for model in settings.models
        for pool in pools(model)
        for replica in pool.replicas
    }
    connecting = asyncio.Semaphore(_CONNECTS_MAX)
    faults: list[str] = []

    async def check(model: ModelSettings, replica: ReplicaSettings) -> None:
        async with connecting:
            fault = await _connect_fault(replica.base_url)
        if fault is not None:
            faults.append(f"replica {replica.name} of {model.name} at {replica.base_url} cannot be reached: {fault}")

    async with asyncio.TaskGroup() as tasks:
        for model, replica in replicas.values():
            tasks.create_task(check(model, replica))
    for fault in sorted(faults)[:_LISTED_MAX]:
        warn(f"{fault}; the gateway uses it as soon as it accepts connections")
    if len(faults) > _LISTED_MAX:
        warn(f"and {len(faults) - _LISTED_MAX} more replicas cannot be reached")


async def _connect_fault(base_url: str) -> str | None:
    """Return why a server does not accept connections, None if it does."""
    url = urlsplit(base_url)
    loop = asyncio.get_running_loop()
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_CONNECT_S_MAX):
            if url.scheme == "http+unix":
                transport, _ = await loop.create_unix_connection(asyncio.Protocol, unquote(url.netloc))
            else:
                transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
    except TimeoutError:
        return f"no connection within {_CONNECT_S_MAX:g} s"
    except OSError as error:
        return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
    transport.abort()
    return None
