"""The settings of one caller's key. Units: requests and tokens per minute; counts."""

from pydantic import ConfigDict, Field, SecretStr

from gateway.config.section import Section
from gateway.config.values import Count, Name, Secret, Switch


class KeySettings(Section):
    """A caller's key. With `key_file`, `key` and `previous_key` are the lines of the file."""

    model_config = ConfigDict(
        defer_build=True,  # each is built once, as a part of the whole
        json_schema_extra={"required": ["name"], "oneOf": [{"required": ["key"]}, {"required": ["key_file"]}]},
    )

    name: Name = Field(examples=["team-a"])
    """Name of the key in logs and metrics."""
    key: Secret = Field(examples=["${TEAM_A_KEY}"])
    """Secret that callers send as `Authorization: Bearer ...`."""
    key_file: str | None = None
    """File with the secret, instead of `key`; a second line is `previous_key`. Relative to the configuration file."""
    previous_key: Secret | None = Field(default=None, examples=["${TEAM_A_OLD_KEY}"])
    """Secret that was replaced and is still valid; unset: none."""
    models: tuple[str, ...] | None = Field(default=None, min_length=1, examples=["[llama-70b]"])
    """Models that the key may use; unset: all."""
    requests_per_min: Count | None = None
    """Requests per minute; unset: no limit."""
    tokens_per_min: Count | None = None
    """Tokens per minute, of prompts and answers together; unset: no limit."""
    concurrency: Count | None = None
    """Concurrent requests, queued ones included; unset: no limit."""
    hedge: Switch = True
    """Hedge the key's late requests."""
    attempts_max: Count = Field(default=4, le=4, examples=["1"])
    """Maximum number of upstream attempts of a request, hedges and failed ones included."""

    @property
    def without_secrets(self) -> "KeySettings":
        """The settings with the same secrets for every key: what stays the same when a secret is replaced."""
        return self.model_copy(update={"key": SecretStr(""), "key_file": None, "previous_key": None})
