"""`version`: versions of the gateway and of Python, event loop and operating system. Imports no framework. No units."""

import argparse
import platform

from gateway.cli.event_loop import loop_name
from gateway.cli.parser import PROGRAM, ExitCode
from gateway.version import VERSION


def version(_arguments: argparse.Namespace) -> ExitCode:
    """Print the version."""
    print(f"{PROGRAM} {VERSION} (Python {platform.python_version()}, {loop_name()}, {platform.system()})")
    return ExitCode.OK
