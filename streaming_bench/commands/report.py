"""`report`: tables and plots of a result folder, made again from its requests, or ratios of two folders.

Files are checked against the manifest first, so that files changed after the run are not shown. No units.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from streaming_bench.compare import rendering as comparison
from streaming_bench.errors import BenchError
from streaming_bench.load import rendering as load
from streaming_bench.report import tables
from streaming_bench.report.records import Run, read_runs
from streaming_bench.report.results import Results, read_manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("folder", type=Path, help="result folder of `compare` or `load`")
    parser.add_argument("other", type=Path, nargs="?", help="second folder: print the first one's runs as ratios to it")
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="folder for tables and plots")


def run(args: argparse.Namespace) -> None:
    """Write and print the tables."""
    if args.out.resolve() in {path.resolve() for path in (args.folder, args.other) if path is not None}:
        raise BenchError(f"--out {args.out} is one of the result folders; name another folder")
    kind, small_print, runs = _read(args.folder)
    results = Results(args.out, args.argv, None)
    if args.other is None:
        render = comparison.render if kind == "compare" else load.render
        lines = render(results, runs, small_print)
    else:
        other_kind, other_print, others = _read(args.other)
        if other_kind != kind:
            raise BenchError(
                f"{args.folder} was written by {kind}, {args.other} by {other_kind}; name two folders of one kind"
            )
        lines = _beside(results, runs, others, f"{args.folder} ({small_print}) / {args.other} ({other_print})")
    results.close(kind="report")
    print("\n".join(lines))


def _read(folder: Path) -> tuple[str, str, list[Run]]:
    manifest = read_manifest(folder)
    kind = manifest.get("kind")
    if kind not in ("compare", "load"):
        raise BenchError(f"{folder} was not written by compare or load; name a folder of theirs")
    return str(kind), str(manifest.get("small_print", "")), read_runs(folder)


def _beside(results: Results, runs: Sequence[Run], others: Sequence[Run], title: str) -> list[str]:
    """Compare runs of the same name as ratios with intervals; an interval that contains 1 shows no difference."""
    pairs = {run.name: other for run in runs for other in others if other.name == run.name}
    if not pairs:
        names = ", ".join(other.name for other in others)
        raise BenchError(f"the folders have no run in common; the second has {names}")
    grids = tables.ratio_tables([run for run in runs if run.name in pairs], pairs)
    results.markdown("tables.md", "Two folders", title, *grids)
    return [title, *(line for grid in grids for line in ("", *grid.lines()))]
