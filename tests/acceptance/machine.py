"""The load of this machine, so that a time that was measured during other work is not judged; Linux. Units: seconds."""

import asyncio
from pathlib import Path
from typing import Final

_WINDOW_S: Final = 0.5
_BUSY_MAX: Final = 0.1  # share of the processors' time


async def busy_share() -> float:
    """Return the share of the processors' time that is used, while the caller waits."""
    before = _times()
    await asyncio.sleep(_WINDOW_S)
    idle, total = (after - earlier for after, earlier in zip(_times(), before, strict=True))
    return 1 - idle / max(1, total)


async def is_idle() -> bool:
    """Return True if nothing else runs."""
    return await busy_share() <= _BUSY_MAX


def _times() -> tuple[int, int]:
    """Return the idle time and all time of all processors, in ticks."""
    fields = [int(each) for each in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)
