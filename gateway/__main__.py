"""The command line: carries out what was typed. `ttft-gateway ...` and `python -m gateway ...` are the same.

Owns the process: its exit code, its event loop, its limit of open files, what it says on stderr. What can be typed is
command_line.py's. Each command imports what it needs when it runs, so that the light ones load no framework, and
nothing of providers before `foreign_module` has looked. Units: seconds.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

from gateway.command_line import CONFIG_FILE, CONFIG_VARIABLE, PROGRAM, ExitCode, parse
from gateway.version import gateway_version
