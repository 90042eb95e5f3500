"""Settings from options instead of a file: `--model NAME --replica URL`, for `serve` and `probe`. No units."""

import argparse
from collections.abc import Mapping

from pydantic import SecretStr

from gateway.cli.environment import Environment
from gateway.cli.kinds import UNKNOWN
from gateway.config.errors import ConfigError, ConfigProblem
from gateway.config.loader import from_replicas
from gateway.config.settings import Settings
from gateway.config.values import secret_fault


def settings_of(arguments: argparse.Namespace, env: Mapping[str, str], environment: Environment) -> Settings:
    """Return settings with one model over the given replicas.

    Raises:
        ConfigError: an option is invalid.
    """
    nowhere = {"listen": "127.0.0.1:0", "admin_listen": "off"}  # `probe`
    others = {name: getattr(arguments, name, default) for name, default in nowhere.items()}
    settings = from_replicas(
        arguments.model,
        arguments.replica,
        kind=arguments.kind or UNKNOWN,
        others={
            **{name: value for name, value in others.items() if value is not None},
            "allow_anonymous": getattr(arguments, "allow_anonymous", False),
        },
        defaults=environment.settings,
    )
    if arguments.api_key_env is None:
        return settings
    key = env.get(arguments.api_key_env, "")
    if fault := secret_fault(key):
        fault = "the environment variable is not set" if arguments.api_key_env not in env else fault
        raise ConfigError((ConfigProblem(f"--api-key-env {arguments.api_key_env}", None, None, "", fault),))
    [model] = settings.models
    replicas = tuple(replica.model_copy(update={"api_key": SecretStr(key)}) for replica in model.replicas)
    return settings.model_copy(update={"models": (model.model_copy(update={"replicas": replicas}),)})
