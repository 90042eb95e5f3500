"""The command line of the bench: `ttft-bench ...` and `python -m streaming_bench ...` are the same.

Owns the list of commands; each is a module of its own with `add_arguments(parser)` and `run(args)`, and only the one
that is called is loaded. No units.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final

from streaming_bench.failures import BenchError
from streaming_bench.report.drawing import INSTALL, lacks_matplotlib
from streaming_bench.simulation.toml_table import ScenarioError

PROGRAM: Final = "ttft-bench"
COMMANDS: Final = {
    "compare": "compare policies with the real gateway over real sockets",
    "load": "measure any OpenAI-compatible endpoint, or two in turn",
    "report": "show a folder of results again, or two beside each other",
    "virtual": "compare policies on a workload in virtual time",
    "figures": "draw the pictures of docs/hedging.md",
    "seeds": "run published tables again, beside their figures",
    "sweep": "budgets, windows, accuracy and drift: what could be had, and what is",
    "golden": "write the small tables that the tests compare with",
}
"""Each command and its summary; its module in `commands` has its name."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: without the program's name; None for that of the process.

    Returns:
        The exit status: 0 fine, 1 it failed, 2 the command line cannot be understood, 130 Ctrl-C.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog=PROGRAM, description="What hedging buys, and its price.", allow_abbrev=False)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, summary in COMMANDS.items():
        about = f"{summary[0].upper()}{summary[1:]}."
        command = subparsers.add_parser(name, help=summary, description=about, allow_abbrev=False)
        if given[:1] == [name]:
            module = _module(parser, name)
            module.add_arguments(command)
            command.set_defaults(run=module.run, argv=given)
    args = parser.parse_args(given)
    try:
        args.run(args)
    except ScenarioError as error:
        parser.error(str(error))
    except BenchError as error:
        print(f"{PROGRAM} {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _module(parser: argparse.ArgumentParser, command: str) -> ModuleType:
    try:
        return importlib.import_module(f"streaming_bench.commands.{command}")
    except ModuleNotFoundError as error:
        if not lacks_matplotlib(error):
            raise
        parser.error(f"{command} draws pictures and needs matplotlib: {INSTALL}")


if __name__ == "__main__":
    sys.exit(main())
