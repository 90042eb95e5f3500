"""The command line: `ttft-gateway ...` and `python -m gateway ...` are the same.

Imports only the module of the command, so that `version` loads no framework, after a check that the package
`providers` is this project's. Parsing belongs to gateway/cli/parser.py. No units.
"""

import argparse
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.cli.parser import PROGRAM, ExitCode, parse

_COMMANDS = {  # command -> module in gateway.cli, function in it
    "serve": ("serve", "serve"),
    "demo": ("demo.command", "demo"),
    "check-config": ("config", "check_config"),
    "print-config": ("config", "print_config"),
    "config-schema": ("config", "config_schema"),
    "import": ("importing.command", "import_config"),
    "health": ("health", "health"),
    "status": ("status", "status"),
    "probe": ("probe.command", "probe"),
    "prove": ("prove", "prove"),
    "switchback": ("switchback.command", "switchback"),
    "support-bundle": ("support.command", "support_bundle"),
    "completion": ("completion", "completion"),
    "version": ("version", "version"),
}


def main(argv: Sequence[str] | None = None) -> ExitCode:
    """Run a command line.

    Args:
        argv: arguments, without the program's name; None for the arguments of the process.
    """
    arguments = parse(sys.argv[1:] if argv is None else argv)
    if (fault := foreign_providers()) is not None:
        print(f"{PROGRAM}: {fault}", file=sys.stderr)
        return ExitCode.FAILED
    module, function = _COMMANDS[arguments.command]
    # Plugins of pydantic would receive secrets of the settings, and looking for them opens a file per distribution.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        gc.disable()  # imports leave no garbage, and looking for it takes a fifth of the start
        imported = importlib.import_module(f"gateway.cli.{module}")
        gc.freeze()
        gc.enable()
        command: Callable[[argparse.Namespace], ExitCode] = getattr(imported, function)
        code = command(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return ExitCode.SECOND_CTRL_C
    except BrokenPipeError:  # the reader of the output has closed it, as in `ttft-gateway config-schema | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    return code


def foreign_providers() -> str | None:
    """Return an error message if `import providers` would import a foreign module, else None.

    A distribution called `providers` exists on the package index. Installed into the same folder, it overwrites files
    of this project; its __init__.py reveals it, because this project's is empty.
    """
    ours = Path(__file__).resolve().parents[1] / "providers" / "__init__.py"
    spec = importlib.util.find_spec("providers")
    found = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
    if found == ours and not ours.stat().st_size:
        return None
    return (
        f"the module `providers` is {found or 'missing'} instead of this gateway's ({ours}), because another "
        "distribution has the same name; run `pip uninstall providers`, then install ttft-gateway again"
    )


if __name__ == "__main__":
    sys.exit(main())
