"""What the environment says where a configuration is silent: where to listen, and whether to make up a key.

The image sets these variables, so that what runs in a container can be reached, and nobody calls it without a key.
Owns their meaning and the making of the key. No units.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import SecretStr
from pydantic_core import PydanticCustomError

from gateway.cli.parser import ADMIN_LISTEN_VARIABLE, LISTEN_VARIABLE, ONE_TIME_KEY_VARIABLE
from gateway.config.errors import ConfigError, ConfigProblem
from gateway.config.settings import Settings
from gateway.config.values import Address, parse_address

ONE_TIME_KEY = "one-time"  # its name in logs and metrics


@dataclass(frozen=True, slots=True)
class Environment:
    """What holds where the configuration does not say otherwise; None: the environment does not say either.

    Attributes:
        listen: where callers come in.
        admin_listen: where metrics and admin routes are.
        key: made for this run; in force where no keys are configured and anonymous callers are not let in.
    """

    listen: Address | None = None
    admin_listen: Address | Literal["off"] | None = None
    key: SecretStr | None = None

    @property
    def settings(self) -> dict[str, object]:
        """The same as it would stand in a configuration file."""
        keys = None if self.key is None else [{"name": ONE_TIME_KEY, "key": self.key}]
        every = {"listen": self.listen, "admin_listen": self.admin_listen, "keys": keys}
        return {name: value for name, value in every.items() if value is not None}

    def key_in(self, settings: Settings) -> str | None:
        """The key that was made, to be shown once, if it is in force."""
        return next((row.key.get_secret_value() for row in settings.keys if row.key == self.key), None)


def read_environment(env: Mapping[str, str]) -> Environment:
    """Read the variables, and make a key if they ask for one.

    Raises:
        ConfigError: a variable cannot be used.
    """
    admin_listen = env.get(ADMIN_LISTEN_VARIABLE)
    return Environment(
        _address(LISTEN_VARIABLE, env.get(LISTEN_VARIABLE)),
        "off" if admin_listen == "off" else _address(ADMIN_LISTEN_VARIABLE, admin_listen),
        _key(env.get(ONE_TIME_KEY_VARIABLE)),
    )


def _address(variable: str, text: str | None) -> Address | None:
    if not text:
        return None
    try:
        return parse_address(text)
    except PydanticCustomError:
        message = f'found "{text}", but an address is host:port; write for example 0.0.0.0:8080'
        raise ConfigError((ConfigProblem(variable, None, None, "", message),)) from None


def _key(text: str | None) -> SecretStr | None:
    if text not in (None, "", "true", "false"):
        message = f'found "{text}", but this is a switch; write true or false'
        raise ConfigError((ConfigProblem(ONE_TIME_KEY_VARIABLE, None, None, "", message),))
    return SecretStr(f"ttft-{secrets.token_hex(16)}") if text == "true" else None
