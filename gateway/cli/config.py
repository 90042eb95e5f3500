"""`check-config`, `print-config`, `config-schema`, and functions on configurations for the other commands.

Owns the search for the file, and warnings about valid settings that may be unintended. Loading and error messages
belong to gateway/config/loader.py. No units.
"""

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.cli.environment import read_environment
from gateway.cli.hedging import hedging_details, hedging_summary
from gateway.cli.parser import CONFIG_FILE, CONFIG_VARIABLE, PROGRAM, ExitCode
from gateway.cli.terminal import fail, warn
from gateway.config.discovered import PoolPlace, expected, pools, sources, with_rows
from gateway.config.errors import ConfigError
from gateway.config.key_list import read_keys
from gateway.config.loader import json_schema, load, masked
from gateway.config.replica_list import read_replicas
from gateway.config.settings import Replicas, Settings
from gateway.server.extras import missing_extra


def check_config(arguments: argparse.Namespace) -> ExitCode:
    """Report the problems of a file, or a summary if it is valid."""
    file = config_path(arguments.file or arguments.config, os.environ)
    if arguments.file is None and arguments.config is None and not file.exists():
        return report_no_file(file, "check-config FILE")
    return check_file(file, os.environ)


def check_file(file: Path, env: Mapping[str, str], *, to_run: bool = True) -> ExitCode:
    """Report the problems of a file, or a summary if it is valid.

    Args:
        file: the file.
        env: environment variables for `${NAME}` in it.
        to_run: False if packages that it needs may be missing here.
    """
    try:
        settings = load(file, env, read_environment(os.environ).settings)
    except ConfigError as error:
        return report_problems(error)
    if fault := missing_extra(settings):
        (fail if to_run else warn)(fault)
        if to_run:
            return ExitCode.BAD_CONFIG
    for caution in cautions(settings):
        warn(caution)
    try:
        listed = _listed(settings)
        keys = 0 if settings.keys_from is None else len(read_keys(Path(settings.keys_from), settings))
    except ConfigError as error:
        return report_problems(error)
    replicas = sum(len(pool.replicas) for model in with_rows(settings, listed).models for pool in pools(model))
    counts = [_count(len(settings.models), "model"), _count(replicas, "replica")]
    if keys:
        counts.append(f"{_count(keys, 'key')} of keys_from")
    if found := sources(settings):
        counts.append(f"{_count(len(found), 'source')} of further replicas")
    print(f"{file}: valid ({', '.join(counts)})")
    for model in (described := expected(settings, listed)).models:
        print(f"  {model.name}: {hedging_summary(described, model)}")
        for line in dict.fromkeys(hedging_details(described, model)):
            print(f"    {line}")
    return ExitCode.OK


def print_config(arguments: argparse.Namespace) -> ExitCode:
    """Print the settings in force."""
    file = config_path(arguments.file or arguments.config, os.environ)
    if arguments.file is None and arguments.config is None and not file.exists():
        return report_no_file(file, "print-config FILE")
    try:
        settings = load(file, os.environ, read_environment(os.environ).settings)
    except ConfigError as error:
        return report_problems(error)
    print(masked(settings), end="")
    return ExitCode.OK


def config_schema(_arguments: argparse.Namespace) -> ExitCode:
    """Print the JSON schema of the file."""
    print(json.dumps(json_schema(), indent=2))
    return ExitCode.OK


def config_path(named: str | None, env: Mapping[str, str]) -> Path:
    """Return the configuration file: the named one, else the one in the environment, else the one in this folder."""
    return Path(named or env.get(CONFIG_VARIABLE) or CONFIG_FILE)


def report_problems(error: ConfigError) -> ExitCode:
    """Report the problems of a configuration."""
    for problem in error.problems:
        fail(str(problem))
    return ExitCode.BAD_CONFIG


def report_no_file(file: Path, *commands: str) -> ExitCode:
    """Report that no file was named and none is in the usual place, with the commands that work."""
    run = "run" if len(commands) == 1 else "run one of"
    fail(
        "\n".join(
            [f"the configuration file {file} does not exist; {run}:", *(f"  {PROGRAM} {each}" for each in commands)]
        )
    )
    return ExitCode.BAD_CONFIG


def cautions(settings: Settings) -> Iterator[str]:
    """Return warnings about settings that are valid but may be unintended."""
    if not settings.needs_key:
        clients = "on this machine" if settings.listen.loopback else f"that can reach {settings.listen}"
        yield f"no keys are configured; every client {clients} has access"
    if settings.admin_listen is not None and not settings.admin_listen.loopback and settings.admin_key is None:
        yield (
            f"admin_listen {settings.admin_listen} is public and has no key; every client that can reach it can read "
            "usage and switch hedging off; set admin_key"
        )
    for model in settings.models:
        if "queue" in model.model_fields_set and model.concurrency is None:
            yield f"model {model.name} has a queue but no concurrency; requests are never queued"


def _listed(settings: Settings) -> dict[PoolPlace, Replicas]:
    """Return the replicas of the files that `discover` names, and warn of files that do not exist yet.

    Raises:
        ConfigError: a file is unreadable or invalid.
    """
    listed = {}
    for place, source in sources(settings).items():
        if source.file is not None and not Path(source.file).exists():
            warn(f"the file {source.file} does not exist; {place.model} gets no replicas from it until it does")
        elif source.file is not None:
            listed[place] = read_replicas(Path(source.file), os.environ, settings, place)
    return listed


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
