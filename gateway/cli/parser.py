"""What can be typed: commands, options, their help, and how a process can end. docs/cli.md says the same at length.

Owns parsing and the wording of its errors; runs nothing and imports nothing of the gateway, so that help is instant.
Units: seconds.
"""

import argparse
import enum
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import NoReturn

PROGRAM = "ttft-gateway"
CONFIG_VARIABLE = "TTFT_GATEWAY_CONFIG"
CONFIG_FILE = "gateway.yaml"
LISTEN_VARIABLE = "TTFT_GATEWAY_LISTEN"
ADMIN_LISTEN_VARIABLE = "TTFT_GATEWAY_ADMIN_LISTEN"
ONE_TIME_KEY_VARIABLE = "TTFT_GATEWAY_ONE_TIME_KEY"
LISTEN_DEFAULT = "127.0.0.1:8080"
ADMIN_LISTEN_DEFAULT = "127.0.0.1:8081"
SHELL_NAMES = ("bash", "zsh", "tcsh", "fish", "powershell")

_HELP = ("-h", "--help")
_SECONDS_MAX = 86400.0


class ExitCode(enum.IntEnum):
    """How a process ends; docs/cli.md has the same table."""

    OK = 0  # done; a server: told to stop, and drained
    FAILED = 1  # something unexpected; `probe`: a replica failed
    USAGE = 2  # the command line cannot be understood; `probe`: it asks for too much
    BAD_CONFIG = 3  # the configuration cannot be used
    CANNOT_LISTEN = 4  # an address is taken or not ours
    SECOND_CTRL_C = 130  # ended at once by a second Ctrl-C, or by one before it was ready
    SECOND_SIGTERM = 143  # ended at once by a second SIGTERM


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; `.command` is the command's name.

    Args:
        argv: without the program's name.

    Raises:
        SystemExit: with `ExitCode.USAGE` after a message on stderr, with 0 after help.
    """
    parser, commands = parsers()
    first = argv[0] if argv else ""
    if first == "--version":  # as everywhere
        argv = ["version", *argv[1:]]
    elif not first:
        parser.error(f"a command is missing; there are: {', '.join(commands)}")
    elif first.partition("=")[0] in options(commands["serve"]) and first not in _HELP:
        parser.error(f"{first} stands before a command; options follow it: {PROGRAM} serve {first} ...")
    elif first.startswith("-") and first not in _HELP:
        parser.error(f"there is no option {first}{_meant(first, ['--help', '--version'])}")
    elif first not in (*commands, *_HELP):
        parser.error(f"there is no command {first}{_meant(first, list(commands))}")
    arguments, unknown = parser.parse_known_args(argv)
    command = commands[arguments.command]
    if unknown:
        option = unknown[0].partition("=")[0]
        if not option.startswith("-"):
            command.error(f"{unknown[0]} is one argument too many")
        command.error(f"there is no option {option}{_meant(option, options(command))}")
    if arguments.command == "serve":
        _check_serve(command, arguments)
    return arguments


def parsers() -> tuple["Parser", dict[str, "Parser"]]:
    """The parser of everything, and each command's own by its name."""
    parser = Parser(
        prog=PROGRAM,
        description="An OpenAI-compatible streaming gateway that races replicas on the first content token.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="the same as the command version")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands: dict[str, Parser] = {}
    for name, (summary, description, examples, add_arguments) in _COMMANDS.items():
        command = commands[name] = subparsers.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}. {description}".rstrip(),
            epilog="\n".join(("examples:", *(f"  {PROGRAM} {name}{example}" for example in examples))),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add_arguments(command)
    return parser, commands


def options(command: argparse.ArgumentParser) -> list[str]:
    """Every long option of a command."""
    return ["--help", *re.findall(r"--[a-z-]+", command.format_usage())]


class Parser(argparse.ArgumentParser):
    """argparse with errors that say where to look next."""

    @property
    def arguments(self) -> list[argparse.Action]:
        """Everything that can be typed behind the command."""
        return self._actions

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}\nEverything there is to type: {self.prog} --help", file=sys.stderr)
        raise SystemExit(ExitCode.USAGE)


def _meant(typed: str, known: list[str]) -> str:
    near = get_close_matches(typed, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(known)}"


def _check_serve(command: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """What is served comes from a file or from --model and --replica, never from both."""
    beside_model = {
        "--replica": arguments.replica,
        "--kind": arguments.kind,
        "--api-key-env": arguments.api_key_env,
        "--listen": arguments.listen,
        "--admin-listen": arguments.admin_listen,
        "--allow-anonymous": arguments.allow_anonymous,
    }
    given = [option for option, value in beside_model.items() if value]
    if arguments.model is None and given:
        command.error(f"{given[0]} goes with --model NAME; with a configuration file, write it there")
    if arguments.model is not None and not arguments.replica:
        command.error("--model needs at least one replica: --replica http://10.0.0.1:8000/v1")
    if arguments.model is not None and arguments.config:
        command.error("--config and --model exclude each other: a configuration file names its models")


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port; write a number from 0 (any free one) to 65535")
    return int(text)


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} is out of range; write a whole number from {least} to {most}")
        return int(text)

    return read


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text} is no length of time; write seconds, such as 20")
    return seconds


def _serve_arguments(command: argparse.ArgumentParser) -> None:
    from_file = command.add_argument_group("with a configuration file")
    from_file.add_argument("--config", metavar="FILE", help=f"default: ${CONFIG_VARIABLE}, or {CONFIG_FILE} here")
    from_file.add_argument("--or-demo", action="store_true", help="where there is no such file, run the demo instead")
    without = command.add_argument_group("without one")
    without.add_argument("--model", metavar="NAME", help='what callers put in "model"')
    without.add_argument("--replica", metavar="URL", action="append", help="a server with that model; repeat for more")
    without.add_argument("--kind", metavar="KIND", help="what the replicas are: vllm, tgi, ... (default: openai)")
    without.add_argument("--api-key-env", metavar="NAME", help="environment variable with the key for the replicas")
    without.add_argument("--listen", metavar="HOST:PORT", help=f"where callers come in (default: {LISTEN_DEFAULT})")
    without.add_argument(
        "--admin-listen",
        metavar="HOST:PORT",
        help=f"metrics and admin routes, or off (default: {ADMIN_LISTEN_DEFAULT})",
    )
    without.add_argument(
        "--allow-anonymous", action="store_true", help="serve callers without a key, also from other machines"
    )


def _demo_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--traffic", action="store_true", help="send traffic and compare hedging off with on")
    command.add_argument("--seconds", metavar="N", type=_seconds, help="end by itself after so long")
    command.add_argument("--port", metavar="PORT", type=_port, help="default: 8080; 0: any")
    command.add_argument("--admin-port", metavar="PORT", type=_port, help="default: 8081, or any with --port 0")
    command.add_argument("--seed", metavar="N", type=int, default=1, help="of everything random (default: 1)")


def _file_arguments(command: argparse.ArgumentParser) -> None:
    which = command.add_mutually_exclusive_group()
    which.add_argument("file", metavar="FILE", nargs="?", help=f"default: ${CONFIG_VARIABLE}, or {CONFIG_FILE} here")
    which.add_argument("--config", metavar="FILE", help="the same")


def _health_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--listen", metavar="HOST:PORT", help=f"where it listens (default: ${LISTEN_VARIABLE}, or {LISTEN_DEFAULT})"
    )


def _probe_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", help=f"default: ${CONFIG_VARIABLE}, or {CONFIG_FILE} here")
    command.add_argument("--model", metavar="NAME", help="only the replicas of this model")
    command.add_argument("--replica", metavar="NAME", help="only replicas with this name")
    command.add_argument(
        "--requests", metavar="N", type=_whole(1, 20), default=3, help="whole answers of each replica (default: 3)"
    )
    command.add_argument(
        "--max-tokens", metavar="N", type=_whole(1, 1000), default=8, help="of each of these answers (default: 8)"
    )
    command.add_argument("--yes", action="store_true", help="also where that is more than a few requests or tokens")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _completion_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=SHELL_NAMES, help="the shell that runs the script")


def _no_arguments(_command: argparse.ArgumentParser) -> None:
    pass


# name -> summary, description, examples, arguments
_COMMANDS: dict[str, tuple[str, str, tuple[str, ...], Callable[[argparse.ArgumentParser], None]]] = {
    "serve": (
        "run the gateway",
        "SIGTERM or Ctrl-C drains it; a second one ends it at once.",
        (
            " --config gateway.yaml",
            " --model llama --replica http://10.0.0.1:8000/v1 --replica http://10.0.0.2:8000/v1",
            " --model gpt-4o-mini --replica https://api.openai.com/v1 --kind openai --api-key-env OPENAI_API_KEY",
        ),
        _serve_arguments,
    ),
    "demo": (
        "run the gateway before three simulated replicas, one with a bad tail",
        "Needs nothing; Ctrl-C ends it.",
        ("", " --traffic", " --traffic --seconds 20 --port 0"),
        _demo_arguments,
    ),
    "check-config": (
        "say what is wrong with a configuration file",
        "Connects to nothing.",
        (" gateway.yaml",),
        _file_arguments,
    ),
    "print-config": (
        "print the settings in force, defaults included, secrets masked",
        "",
        (" gateway.yaml",),
        _file_arguments,
    ),
    "config-schema": (
        "print the JSON schema of the configuration file",
        "Editors check and complete by it.",
        (" > gateway.schema.json",),
        _no_arguments,
    ),
    "health": (
        "ask the gateway on this machine whether it is well",
        "Exit code 0 says that it is; made for the health checks of containers.",
        ("", " --listen 0.0.0.0:9000"),
        _health_arguments,
    ),
    "probe": (
        "measure each replica with a few requests, and tell its limits and quirks",
        "Says first what that costs at most.",
        ("", " --config gateway.yaml --model llama-70b", " --replica a --requests 10 --json"),
        _probe_arguments,
    ),
    "completion": (
        "print what completes commands and options in a shell",
        "",
        (
            " bash > ~/.local/share/bash-completion/completions/ttft-gateway",
            " zsh > ~/.zfunc/_ttft-gateway",
            " fish > ~/.config/fish/completions/ttft-gateway.fish",
        ),
        _completion_arguments,
    ),
    "version": ("print the version", "", ("",), _no_arguments),
}

_EXIT_CODES = """exit codes:
  0    done; a server was told to stop, and drained
  1    something unexpected; `probe`: a replica failed
  2    the command line cannot be understood; `probe`: it asks for too much
  3    the configuration cannot be used
  4    an address cannot be listened on
  130  ended at once by a second Ctrl-C (or by one before it was ready)
  143  ended at once by a second SIGTERM"""
