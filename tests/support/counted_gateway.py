"""`python -m counted_gateway ARGV`: the gateway, which tells on SIGUSR1 how many tasks and timers it has."""

import asyncio
import gc
import json
import signal
import sys
from typing import Any

from gateway.__main__ import main


def tell(_number: int, _frame: object) -> None:
    """One line of JSON on stderr; the signal is handled on the loop's thread."""
    loop: Any = asyncio.get_running_loop()
    gc.collect()
    timers = sum(not timer.cancelled() for timer in loop._scheduled)
    sys.stderr.write(json.dumps({"tasks": len(asyncio.all_tasks(loop)), "timers": timers}) + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    raise SystemExit(main())
