"""Finds calls that block the event loop: a file, a name look-up, a process (sleeping is ruff's business).

Owns one audit hook, installed by `forbid_blocking_calls` for the life of the process (Python has no way to remove
one). It raises only where the gateway's own code is on the stack of a running loop; tests and tools may block.
"""

import asyncio
import sys
from types import FrameType

from checkout import ROOT

OURS = tuple(str(ROOT / room) + "/" for room in ("gateway", "providers"))
_BLOCKING = {"open", "os.system", "socket.getaddrinfo", "socket.gethostbyname", "subprocess.Popen"}
_MEMORY = "/dev/shm"  # noqa: S108 # no disk


class BlockingCallError(AssertionError):
    """The gateway blocked its event loop."""


def forbid_blocking_calls() -> None:
    """Make every blocking call of the gateway inside a running loop raise BlockingCallError."""
    sys.addaudithook(_on_audit_event)


def _on_audit_event(event: str, args: tuple[object, ...]) -> None:
    """Check one audit event; modules being imported or quoted in a traceback are no business of the gateway's."""
    if event not in _BLOCKING or asyncio._get_running_loop() is None:  # get_running_loop() would raise in the hook
        return
    if event == "open" and (str(args[0]).endswith(".py") or "__pycache__" in str(args[0]) or args[0] == _MEMORY):
        return
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith(OURS):
            raise BlockingCallError(f"{event}{args} blocks the event loop: {frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
