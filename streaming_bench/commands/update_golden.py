"""`update-golden`: writes the golden tables of the tests and prints the changes. Units: as in the tables."""

import argparse
from pathlib import Path

from streaming_bench.golden import write_golden


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("folder", type=Path, help="folder for the tables: tests/streaming_bench/golden")


def run(args: argparse.Namespace) -> None:
    """Write the tables, and print the TTFT and the hedges of each changed row before and after."""
    print("\n".join(write_golden(args.folder)) or "all rows are unchanged")
