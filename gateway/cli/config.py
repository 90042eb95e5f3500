"""`check-config`, `print-config`, `config-schema`, and what the other commands need of a configuration.

Owns where the file is looked for and what may look unintended in settings that are right. What is wrong, and how that
is said, is config_file.py's. No units.
"""

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.cli.environment import read_environment
from gateway.cli.parser import CONFIG_FILE, CONFIG_VARIABLE, PROGRAM, ExitCode
from gateway.cli.terminal import fail, warn
from gateway.config.errors import ConfigError
from gateway.config.loader import json_schema, load, masked
from gateway.config.settings import ModelSettings, Replicas, Settings


def check_config(arguments: argparse.Namespace) -> ExitCode:
    """Say what is wrong with a file, or what it holds."""
    file = config_path(arguments.file or arguments.config, os.environ)
    try:
        settings = load(file, os.environ, read_environment(os.environ).settings)
    except ConfigError as error:
        return tell_problems(error)
    for caution in cautions(settings):
        warn(caution)
    replicas = sum(len(pool) for model in settings.models for pool in pools(model))
    print(f"{file}: fine ({_count(len(settings.models), 'model')}, {_count(replicas, 'replica')})")
    return ExitCode.OK


def print_config(arguments: argparse.Namespace) -> ExitCode:
    """Print the settings in force."""
    try:
        file = config_path(arguments.file or arguments.config, os.environ)
        settings = load(file, os.environ, read_environment(os.environ).settings)
    except ConfigError as error:
        return tell_problems(error)
    print(masked(settings), end="")
    return ExitCode.OK


def config_schema(_arguments: argparse.Namespace) -> ExitCode:
    """Print the JSON schema of the file."""
    print(json.dumps(json_schema(), indent=2))
    return ExitCode.OK


def config_path(named: str | None, env: Mapping[str, str]) -> Path:
    """Where the configuration file is: as named, else as the environment says, else in the current folder."""
    return Path(named or env.get(CONFIG_VARIABLE) or CONFIG_FILE)


def pools(model: ModelSettings) -> list[Replicas]:
    """The replicas of a model, then those of each of its fallbacks."""
    return [model.replicas, *(fallback.replicas for fallback in model.fallbacks)]


def tell_problems(error: ConfigError) -> ExitCode:
    """Say what is wrong with a configuration."""
    for problem in error.problems:
        fail(str(problem))
    return ExitCode.BAD_CONFIG


def no_file(file: Path) -> ExitCode:
    """Say what to type where nothing was named and no file is in its usual place."""
    fail(
        f"there is no {file} here, and nothing else was named. One of these:\n"
        f"  {PROGRAM} serve --config FILE\n"
        f"  {PROGRAM} serve --model llama --replica http://10.0.0.1:8000/v1 --replica http://10.0.0.2:8000/v1\n"
        f"  {PROGRAM} demo"
    )
    return ExitCode.BAD_CONFIG


def cautions(settings: Settings) -> Iterator[str]:
    """What is allowed, and may not be intended."""
    if not settings.keys:
        who = "on this machine" if settings.listen.loopback else f"who can reach {settings.listen}"
        yield f"no keys are configured: anybody {who} may call"
    if settings.admin_listen is not None and not settings.admin_listen.loopback:
        yield f"anybody who can reach {settings.admin_listen} may switch hedging off and read what is served to whom"
    for model in settings.models:
        if len(model.replicas) == 1 and settings.hedge_of(model).policy != "off":
            yield f"model {model.name} has one replica: there is nothing to hedge with"
        if "queue" in model.model_fields_set and model.concurrency is None:
            yield f"model {model.name} has a queue and no concurrency: nobody ever waits in it"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
