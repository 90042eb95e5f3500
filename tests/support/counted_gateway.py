"""`python -m counted_gateway ARGV`: the gateway, which tells on a signal how many tasks and timers it has."""

import asyncio
import gc
import json
import signal
import sys

from gateway.__main__ import main

TELL = signal.SIGRTMIN  # the gateway uses or ignores SIGUSR1 and SIGUSR2


def tell(_number: int, _frame: object) -> None:
    """Write one line of JSON on stderr; the signal is handled on the loop's thread.

    uvloop has no list of its timers, so they are counted among all objects.
    """
    loop = asyncio.get_running_loop()
    gc.collect()
    timers = sum(type(each).__name__ == "TimerHandle" and not each.cancelled() for each in gc.get_objects())
    sys.stderr.write(json.dumps({"tasks": len(asyncio.all_tasks(loop)), "timers": timers}) + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(TELL, tell)
    raise SystemExit(main())
