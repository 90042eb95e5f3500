"""Which version this is: the installed distribution's, or that of a checkout that is not installed.

Apart from everything else so that `ttft-gateway version` loads nothing. No units.
"""

from importlib.metadata import PackageNotFoundError, version


def gateway_version() -> str:
    """The version as the distribution states it; "0.0.0" where none is installed."""
    try:
        return version("ttft-gateway")
    except PackageNotFoundError:
        return "0.0.0"
