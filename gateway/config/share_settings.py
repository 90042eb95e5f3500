"""The settings of the server over which several gateways share. No units."""

from typing import Literal

from pydantic import Field

from gateway.config.section import Section
from gateway.config.values import EngineUrl, Name, Secret

WhenAwayName = Literal["share", "alone", "refuse"]


class ShareSettings(Section):
    """A Redis or Valkey server, version 7 or later, over which gateways share limits and loads."""

    url: EngineUrl = Field(examples=["rediss://valkey.internal:6379/0"])
    """URL of the server, without user and password."""
    user: Name | None = Field(default=None, examples=["gateway"])
    """User at the server; unset: the default user."""
    password: Secret | None = Field(default=None, examples=["${REDIS_PASSWORD}"])
    """Password of the user; unset: no login."""
    password_file: str | None = None
    """File with the password, instead of `password`; relative to the configuration file."""
    ca_file: str | None = Field(default=None, examples=["/etc/ssl/internal-ca.pem"])
    """Certificate authorities to trust, in PEM form; unset: those of the system. Relative to the configuration file."""
    fleet: Name = "default"
    """Name that gateways have in common if they share with each other."""
    when_away: WhenAwayName = "share"
    """Part of each limit that a gateway uses while the server is away: `share` (0.9, divided by the number of
    gateways), `alone` (all) or `refuse` (none)."""
