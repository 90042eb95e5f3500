"""Command line of the bench: `ttft-bench ...` and `python -m streaming_bench ...` are the same.

Owns the lists of commands. Each command is a module with `add_arguments(parser)` and `run(args)`; only the module of
the command that runs is loaded. The commands of `streaming_bench.research` repeat the measurements of the
documentation; they exist in a checkout and are not installed with the wheel. No units.
"""

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final

from streaming_bench.arguments import DefaultsFormatter
from streaming_bench.errors import BenchError
from streaming_bench.report.optional_plots import INSTALL, missing_library
from streaming_bench.simulation.toml_section import ScenarioError

PROGRAM: Final = "ttft-bench"
COMMANDS: Final = {
    "compare": "compare hedging policies: the real gateway, simulated replicas, real sockets",
    "load": "measure one OpenAI-compatible endpoint, or two in turn",
    "report": "rebuild the tables and plots of a result folder, or compare two folders",
    "replay": "compute from a log of real requests what hedging would have saved and cost",
    "simulate": "compare hedging policies on a simulated workload, in virtual time",
}
"""Summary of each command; the module in `commands` has the command's name with underscores."""
RESEARCH: Final = {
    "judge": "check that hedging does no harm on simulated workloads",
    "peers": "compare the default policy with other published rules for hedging, in virtual time",
    "reproduce": "rerun published tables and print them next to the published figures",
    "sweep": "simulate a range of budgets, windows, accuracies and a changing load",
    "docs-figures": "draw the plots of docs/hedging.md",
    "update-golden": "write the golden tables of the tests",
}
"""Summary of each command of a checkout; the module is in `research.commands`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: arguments without the program's name; None for the arguments of the process.

    Returns:
        The exit status: 0 for success, 1 for a failure, 2 for a wrong command line, 130 for Ctrl-C.
    """
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # also while modules are imported
        return 130


def _run(given: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Measures what hedged requests gain and cost.", allow_abbrev=False
    )
    is_checkout = importlib.util.find_spec("streaming_bench.research") is not None
    if given and given[0] in RESEARCH and not is_checkout:
        parser.error(f"{given[0]} repeats measurements of the documentation; run it in a checkout of the sources")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, summary in (COMMANDS | RESEARCH if is_checkout else COMMANDS).items():
        about = f"{summary[0].upper()}{summary[1:]}."
        command = subparsers.add_parser(
            name, help=summary, description=about, allow_abbrev=False, formatter_class=DefaultsFormatter
        )
        if given[:1] == [name]:
            module = _module(parser, name)
            module.add_arguments(command)
            command.set_defaults(run=module.run, argv=given)
    args = parser.parse_args(given)
    try:
        args.run(args)
        sys.stdout.flush()
    except ScenarioError as error:
        parser.error(str(error))
    except BenchError as error:
        print(f"{PROGRAM} {args.command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of the output has closed it, as in `ttft-bench replay FILE | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _module(parser: argparse.ArgumentParser, command: str) -> ModuleType:
    try:
        folder = "research.commands" if command in RESEARCH else "commands"
        return importlib.import_module(f"streaming_bench.{folder}.{command.replace('-', '_')}")
    except ModuleNotFoundError as error:
        library = missing_library(error)
        if library is None:
            raise
        parser.error(f"{command} needs {library}; install it: {INSTALL}")


if __name__ == "__main__":
    sys.exit(main())
