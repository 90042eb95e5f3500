"""`version`: version of the gateway, of Python, and the operating system. Imports no framework. No units."""

import argparse
import platform

from gateway.cli.parser import PROGRAM, ExitCode
from gateway.version import gateway_version


def version(_arguments: argparse.Namespace) -> ExitCode:
    """Print the version."""
    print(f"{PROGRAM} {gateway_version()} (Python {platform.python_version()}, {platform.system()})")
    return ExitCode.OK
