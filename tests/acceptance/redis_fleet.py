"""The fleets of fleet.py over a real Redis or Valkey server: pools in virtual time, with the server's functions.

Prints one line for each fleet; the exit code is 1 if a bound does not hold. Arguments choose workloads: F1 W5.
"""

import sys
import tempfile
from pathlib import Path

import fleet as fleets
from redis_server import redis_server
from share_engines import ServerEngine
from streaming_bench.simulation import fleet as simulated


def main() -> int:
    """Run the fleets on the workloads of the command line, or all; return the exit code."""
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder)) as server:
        engine = ServerEngine(server.socket)

        def emptied() -> ServerEngine:
            engine.lose()
            return engine

        vars(simulated)["ShareHub"] = emptied
        try:
            return fleets.main(sys.argv[1:])
        finally:
            engine.close()


if __name__ == "__main__":
    raise SystemExit(main())
