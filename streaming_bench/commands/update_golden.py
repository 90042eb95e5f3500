"""`golden`: writes the small tables that the tests compare with. No units but those of the tables."""

import argparse
from pathlib import Path

from streaming_bench.golden import write_golden


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed behind the command."""
    parser.add_argument("folder", type=Path, help="tests/streaming_bench/golden")


def run(args: argparse.Namespace) -> None:
    """Write them."""
    write_golden(args.folder)
