"""Processes that answer each line of their input by a line of JSON, and end with their input. Units: seconds."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

from checkout import ROOT

_WAIT_S: Final = 60.0


class LineProcess:
    """A process that answers lines by lines of JSON."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, line: str) -> Any:
        """Send a line and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        return await self.read()

    async def read(self) -> Any:
        """Return what the next line contains."""
        assert self._process.stdout is not None
        async with asyncio.timeout(_WAIT_S):
            return json.loads(await self._process.stdout.readline())

    async def end(self) -> None:
        """Close the input and wait for the end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._process.wait()
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()


@contextlib.asynccontextmanager
async def process(module: str, *argv: str) -> AsyncIterator[LineProcess]:
    """Run `python -m MODULE ARGV` while inside, with the helpers of the tests."""
    folders = os.pathsep.join(str(ROOT / folder) for folder in ("", "tests/support", "tests/acceptance"))
    pipe = asyncio.subprocess.PIPE
    started = LineProcess(
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *argv),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": folders},
            stdin=pipe,
            stdout=pipe,
        )
    )
    try:
        yield started
    finally:
        await started.end()
