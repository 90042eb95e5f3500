"""Rules of a reload: reading the settings again, settings that need a restart, and the text of a failure.

Units: none.
"""

import asyncio
import logging
from collections.abc import Callable

from gateway.config.errors import ConfigError
from gateway.config.settings import Settings
from gateway.errors import ReloadFailed

_FIXED = ("listen", "admin_listen", "learned_file", "share", "workers")  # what the start opens, reads and forks once

Reread = Callable[[], Settings]
"""Reads the settings again, in a thread; raises `ConfigError`."""


async def read_again(reread: Reread | None) -> Settings:
    """Read the settings again.

    Raises:
        ConfigError: they are invalid.
        ReloadFailed: there is nothing to read.
    """
    if reread is None:
        raise ReloadFailed("there is no configuration file: the gateway was started with options; restart it")
    return await asyncio.to_thread(reread)


def check_reload(old: Settings, new: Settings) -> None:
    """Check that a reload can apply all changes.

    Raises:
        ReloadFailed: a change needs a restart.
    """
    fixed = [name for name in _FIXED if getattr(new, name) != getattr(old, name)]
    if fixed:
        raise ReloadFailed(
            f"{' and '.join(fixed)} changed; restart the gateway to apply this file (no setting was changed)"
        )


def reload_fault(error: Exception) -> str:
    """Return the text of a failed reload; a bug must not stop the running gateway."""
    if isinstance(error, ConfigError | ReloadFailed):
        return str(error)
    logging.getLogger(__name__).error("the new configuration could not be applied", exc_info=error)
    return f"the reload failed with an internal error ({type(error).__name__}); see the gateway's log"
