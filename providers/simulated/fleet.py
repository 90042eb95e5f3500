"""Several simulated replicas in one process, for whoever starts it: `python -m providers.simulated.fleet PROFILES`.

PROFILES is a JSON list, one profile each in the form of `profile.KEYS`. The process says its ports and control ports in
one JSON line and ends when its input does: however the other end of that pipe ends, this one does, too. No units but
those in the profiles.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence

from providers.simulated.profile import parse_profile
from providers.simulated.server import SimulatedServer


class _Input(asyncio.Protocol):
    """Waits for the end of the input."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def connection_lost(self, _error: Exception | None) -> None:
        self.ended.set()


async def serve(profiles: Sequence[Mapping[str, object]], seed: int) -> None:
    """Run the replicas until the input ends.

    Args:
        profiles: one for each replica.
        seed: of the first; each next one has the next seed.
    """
    servers = [SimulatedServer(parse_profile(each), seed + number) for number, each in enumerate(profiles)]
    for server in servers:
        await server.start(control_port=0)
    ports = [(server.port, server.control_port) for server in servers]
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()
    _, waiting = await asyncio.get_running_loop().connect_read_pipe(_Input, sys.stdin)
    await waiting.ended.wait()


def main() -> None:
    """Run until the input ends."""
    parser = argparse.ArgumentParser(prog="python -m providers.simulated.fleet", description="Simulated replicas.")
    parser.add_argument("profiles", type=json.loads, help="a JSON list of profiles")
    parser.add_argument("--seed", type=int, default=0, help="of the first replica")
    args = parser.parse_args()
    asyncio.run(serve(args.profiles, args.seed))


if __name__ == "__main__":
    main()
