"""Environment variables with defaults for the configuration: addresses to listen on, and a one-time key.

The image sets these variables, so that a gateway in a container is reachable, and requires a key.
Owns their meaning and the generation of the key. No units.
"""

import secrets
from collections.abc import Mapping
from typing import Literal

import msgspec
from pydantic import SecretStr
from pydantic_core import PydanticCustomError

from gateway.cli.event_loop import LOOP_VARIABLE
from gateway.cli.parser import ADMIN_LISTEN_VARIABLE, LISTEN_VARIABLE, ONE_TIME_KEY_VARIABLE, STATE_VARIABLE
from gateway.config.errors import ConfigError, ConfigProblem
from gateway.config.settings import Settings
from gateway.config.values import Address, parse_address

ONE_TIME_KEY = "one-time"  # name of the key in logs and metrics


class Environment(msgspec.Struct, frozen=True):
    """Defaults for settings that the configuration does not set; None where a variable is not set.

    Attributes:
        listen: public address.
        admin_listen: address of metrics and admin routes.
        learned_file: file of learned state, in the service's state directory.
        key: key generated for this run; used if no keys are configured and anonymous callers are not allowed.
    """

    listen: Address | None = None
    admin_listen: Address | Literal["off"] | None = None
    learned_file: str | None = None
    key: SecretStr | None = None

    @property
    def settings(self) -> dict[str, object]:
        """The defaults as top-level settings of a configuration file."""
        keys = None if self.key is None else [{"name": ONE_TIME_KEY, "key": self.key}]
        every = {
            "listen": self.listen,
            "admin_listen": self.admin_listen,
            "learned_file": self.learned_file,
            "keys": keys,
        }
        return {name: value for name, value in every.items() if value is not None}

    def key_in(self, settings: Settings) -> str | None:
        """Return the generated key, to be shown once, or None if the settings do not use it."""
        return next((each.key.get_secret_value() for each in settings.keys if each.key == self.key), None)


def read_environment(env: Mapping[str, str]) -> Environment:
    """Read the variables, and generate a key if they require one.

    Raises:
        ConfigError: a variable is invalid.
    """
    _check_loop(env.get(LOOP_VARIABLE))
    admin_listen = env.get(ADMIN_LISTEN_VARIABLE)
    return Environment(
        _address(LISTEN_VARIABLE, env.get(LISTEN_VARIABLE)),
        "off" if admin_listen == "off" else _address(ADMIN_LISTEN_VARIABLE, admin_listen),
        _learned_file(env.get(STATE_VARIABLE)),
        _key(env.get(ONE_TIME_KEY_VARIABLE)),
    )


def _check_loop(text: str | None) -> None:
    if text not in (None, "", "asyncio"):
        message = f'found "{text}", but asyncio is the only value; write asyncio, or remove the variable for uvloop'
        raise ConfigError((ConfigProblem(LOOP_VARIABLE, None, None, "", message),))


def _address(variable: str, text: str | None) -> Address | None:
    if not text:
        return None
    try:
        return parse_address(text)
    except PydanticCustomError:
        message = f'found "{text}", but an address must be host:port; write for example 0.0.0.0:8080'
        raise ConfigError((ConfigProblem(variable, None, None, "", message),)) from None


def _learned_file(directories: str | None) -> str | None:
    """Return the file in the first state directory; systemd separates several by colons."""
    directory = (directories or "").partition(":")[0]
    return f"{directory}/learned.json" if directory.startswith("/") else None


def _key(text: str | None) -> SecretStr | None:
    if text not in (None, "", "true", "false"):
        message = f'found "{text}", but a boolean is expected; write true or false'
        raise ConfigError((ConfigProblem(ONE_TIME_KEY_VARIABLE, None, None, "", message),))
    return SecretStr(f"ttft-{secrets.token_hex(16)}") if text == "true" else None
