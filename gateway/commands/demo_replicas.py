"""The demo's simulated replicas: a process that says its ports in one JSON line and ends when its input does.

Started by demo.py, which holds the other end of the input: however that process ends, this one does, too. No units but
those in the profiles.
"""

import asyncio
import json
import sys

from providers.simulated.profile import parse_profile
from providers.simulated.server import SimulatedServer

_STEADY = {"ttft": "lognormal_median:200ms,0.25", "gap": "15ms"}
_TAIL = {**_STEADY, "stall": "10%:lognormal_median:2s,0.1"}


class _Input(asyncio.Protocol):
    """Waits for the end of the input."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def connection_lost(self, _error: Exception | None) -> None:
        self.ended.set()


async def serve(seed: int) -> None:
    """Run the replicas until the input ends."""
    profiles = [parse_profile(changes) for changes in (_STEADY, _STEADY, _TAIL)]
    servers = [SimulatedServer(profile, seed + number) for number, profile in enumerate(profiles)]
    for server in servers:
        await server.start()
    print(json.dumps([server.port for server in servers]), flush=True)
    _, waiting = await asyncio.get_running_loop().connect_read_pipe(_Input, sys.stdin)
    await waiting.ended.wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
