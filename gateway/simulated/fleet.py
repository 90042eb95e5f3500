"""Runs several simulated replicas in one process: `python -m gateway.simulated.fleet PROFILES`.

PROFILES is a JSON list with one profile for each replica, in the form of `profile.KEYS`. The process prints its ports
and control ports as one JSON line, and exits when its standard input ends, so that it never outlives its parent.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence

from gateway.simulated.profile import Profile, ProfileError, parse_profile
from gateway.simulated.server import SimulatedServer


class _InputEnd(asyncio.Protocol):
    """Waits for the end of the standard input."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    def connection_lost(self, _error: Exception | None) -> None:
        self.reached.set()


async def serve(profiles: Sequence[Profile], seed: int) -> None:
    """Run the replicas until the standard input ends.

    Args:
        profiles: one profile for each replica.
        seed: seed of the first replica; each next replica has the next seed.
    """
    servers = [SimulatedServer(profile, seed + number) for number, profile in enumerate(profiles)]
    for server in servers:
        await server.start(control_port=0)
    ports = [(server.port, server.control_port) for server in servers]
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()
    _, end = await asyncio.get_running_loop().connect_read_pipe(_InputEnd, sys.stdin)
    await end.reached.wait()


def main() -> None:
    """Run until the standard input ends."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.simulated.fleet",
        description="Several simulated replicas in one process, which ends when its standard input, a pipe, does.",
    )
    parser.add_argument("profiles", type=_profiles, help="a JSON list with one profile for each replica")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first replica, default 0")
    args = parser.parse_args()
    asyncio.run(serve(args.profiles, args.seed))


def _profiles(text: str) -> list[Profile]:
    try:
        return [parse_profile({**each}) for each in json.loads(text)]
    except ProfileError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    except (ValueError, TypeError) as error:
        message = f"""{text!r} is not a JSON list of profiles; write '[{{"ttft": "20ms"}}]'"""
        raise argparse.ArgumentTypeError(message) from error


if __name__ == "__main__":
    main()
