"""Command-line parser: commands, options, their help, and exit codes. docs/cli.md describes them at length.

Owns parsing, the values of options, and the wording of errors. Runs no command, and imports only constants of the
gateway, so that help is fast. Units: seconds.
"""

import argparse
import enum
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import NoReturn

from gateway.config.addresses import ADMIN_LISTEN_DEFAULT, LISTEN_DEFAULT

PROGRAM = "ttft-gateway"
CONFIG_VARIABLE = "TTFT_GATEWAY_CONFIG"
CONFIG_FILE = "gateway.yaml"
LISTEN_VARIABLE = "TTFT_GATEWAY_LISTEN"
ADMIN_KEY_VARIABLE = "TTFT_GATEWAY_ADMIN_KEY"
ADMIN_LISTEN_VARIABLE = "TTFT_GATEWAY_ADMIN_LISTEN"
ONE_TIME_KEY_VARIABLE = "TTFT_GATEWAY_ONE_TIME_KEY"
STATE_VARIABLE = "STATE_DIRECTORY"  # set by systemd for a unit with StateDirectory=
SHELL_NAMES = ("bash", "zsh", "tcsh", "fish", "powershell")

_HELP = ("-h", "--help")
_CONFIG_HELP = f"configuration file (default: ${CONFIG_VARIABLE}, or ./{CONFIG_FILE})"


class ExitCode(enum.IntEnum):
    """Exit codes of the process; docs/cli.md has the same table."""

    OK = 0  # success; a server: stopped by a signal, and drained
    FAILED = 1  # unexpected failure; `probe`: a replica failed; `switchback`: it was not completed
    USAGE = 2  # invalid command line, extra `serve` missing; `probe`: it would cost too much, or no replica matches
    BAD_CONFIG = 3  # invalid configuration
    CANNOT_LISTEN = 4  # an address is in use or not local
    SECOND_CTRL_C = 130  # ended immediately by a second Ctrl-C, or by one before it was ready
    SECOND_SIGTERM = 143  # ended immediately by a second SIGTERM


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; `.command` is the command's name.

    Args:
        argv: arguments, without the program's name.

    Raises:
        SystemExit: with `ExitCode.USAGE` after an error message on stderr, or with 0 after help.
    """
    first = argv[0] if argv else ""
    if first == "--version":  # as everywhere
        argv, first = ["version", *argv[1:]], "version"
    parser, commands = parsers(first if first in _COMMANDS else None)
    if first not in (*_COMMANDS, *_HELP):
        _report_no_command(parser, commands, first)
    arguments, unknown = parser.parse_known_args(argv)
    command = commands[arguments.command]
    if unknown:
        option = unknown[0].partition("=")[0]
        if not option.startswith("-"):
            has_file = "config" not in arguments or arguments.config or getattr(arguments, "file", None)
            is_file = unknown[0].endswith((".yaml", ".yml")) and not has_file
            remedy = f"write --config {unknown[0]}" if is_file else "remove it"
            command.error(f"unexpected argument {unknown[0]}; {remedy}")
        command.error(f"unknown option {option}{_suggestion(option, options(command))}")
    if arguments.command == "serve":
        _check_serve(command, arguments)
    if arguments.command == "probe":
        _check_probe(command, arguments)
    return arguments


def _report_no_command(parser: "Parser", commands: dict[str, "Parser"], first: str) -> NoReturn:
    """Exit with the message for a command line that begins with no command."""
    if not first:
        parser.error(f"the command is missing; use one of: {', '.join(commands)}")
    elif first.partition("=")[0] in options(commands["serve"]):
        parser.error(f"{first} is before the command; write options after it: {PROGRAM} serve {first} ...")
    elif first.startswith("-"):
        parser.error(f"unknown option {first}{_suggestion(first, ['--help', '--version'])}")
    parser.error(f"unknown command {first}{_suggestion(first, list(commands))}")


def parsers(only: str | None = None) -> tuple["Parser", dict[str, "Parser"]]:
    """Return the parser of the program, and the parser of each command by name.

    Args:
        only: the one command that is parsed, which saves the time for the others; None for all.
    """
    parser = Parser(
        prog=PROGRAM,
        description="An OpenAI-compatible streaming gateway that races replicas on the first content token.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="same as the command version")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands: dict[str, Parser] = {}
    for name in _COMMANDS if only is None else (only,):
        summary, description, examples, add_arguments = _COMMANDS[name]
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
    """Return every long option of a command."""
    return ["--help", *re.findall(r"--[a-z-]+", command.format_usage())]


class Parser(argparse.ArgumentParser):
    """An argparse parser with errors that name the option for help."""

    @property
    def arguments(self) -> list[argparse.Action]:
        """Options and positional arguments of the command."""
        return self._actions

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}\nRun `{self.prog} --help` for usage.", file=sys.stderr)
        raise SystemExit(ExitCode.USAGE)


def _suggestion(typed: str, known: list[str]) -> str:
    near = get_close_matches(typed, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; use one of: {', '.join(known)}"


def _check_serve(command: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Check that models come from a file or from --model and --replica, never from both."""
    with_model = {
        "--replica": arguments.replica,
        "--kind": arguments.kind,
        "--api-key-env": arguments.api_key_env,
        "--listen": arguments.listen,
        "--admin-listen": arguments.admin_listen,
        "--allow-anonymous": arguments.allow_anonymous,
    }
    given = [option for option, value in with_model.items() if value]
    if arguments.model is None and given:
        command.error(f"{given[0]} needs --model NAME; with a configuration file, set it there")
    if arguments.model is not None and not arguments.replica:
        command.error("--model needs at least one replica; add --replica http://10.0.0.1:8000/v1")
    if arguments.model is not None and arguments.config:
        command.error("--config and --model cannot be combined; use --config alone, or --model with --replica")


def _check_probe(command: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Check that replicas are names of a file, or URLs of one model."""
    urls = ["://" in replica for replica in arguments.replica or ()]
    if any(urls) and not all(urls):
        command.error("--replica has both names and URLs; give names of the configuration, or URLs alone")
    if any(urls) and arguments.model is None:
        command.error("--replica URL needs --model NAME: the model id that the replicas serve")
    if any(urls) and arguments.config:
        command.error("--config and --replica URL cannot be combined; give names of the configuration")
    for option, value in (("--kind", arguments.kind), ("--api-key-env", arguments.api_key_env)):
        if value and not any(urls):
            command.error(f"{option} needs --replica URL; with a configuration file, set it there")


def _serve_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("with a configuration file").add_argument
    add("--config", metavar="FILE", help=_CONFIG_HELP)
    add("--or-demo", action="store_true", help="run the demo if this file does not exist")
    add = command.add_argument_group("without a configuration file").add_argument
    add("--model", metavar="NAME", help='name of the model, as callers send it in "model"')
    add("--replica", metavar="URL", action="append", help="base URL of a replica; repeat for more")
    add("--kind", metavar="KIND", help="kind of the replicas: vllm, tgi, ... (default: the replicas are asked)")
    add("--api-key-env", metavar="NAME", help="environment variable with the key for the replicas")
    add("--listen", metavar="HOST:PORT", help=f"public address (default: {LISTEN_DEFAULT})")
    add(
        "--admin-listen",
        metavar="HOST:PORT",
        help=f"address of metrics and admin routes, or off (default: {ADMIN_LISTEN_DEFAULT})",
    )
    add("--allow-anonymous", action="store_true", help="serve callers without a key, also from other machines")


def _demo_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--traffic", action="store_true", help="send traffic, and compare hedging off and on")
    add("--seconds", metavar="N", type=seconds, help="end after N seconds")
    add("--port", metavar="PORT", type=port, help="public port (default: 8080; 0: any free port)")
    add("--admin-port", metavar="PORT", type=port, help="admin port (default: 8081; with --port 0: any free port)")
    add("--seed", metavar="N", type=int, default=1, help="seed of all random numbers (default: 1)")


def _file_arguments(command: argparse.ArgumentParser) -> None:
    which = command.add_mutually_exclusive_group()
    which.add_argument("file", metavar="FILE", nargs="?", help=_CONFIG_HELP)
    which.add_argument("--config", metavar="FILE", help="same as FILE")


def _import_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("source", choices=("litellm",), help="program whose file is imported")
    add("file", metavar="FILE", help="its configuration file")
    add("--output", metavar="FILE", default=CONFIG_FILE, help=f"file to write (default: {CONFIG_FILE})")
    add("--force", action="store_true", help="replace the file if it exists")


def _health_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=f"address of the gateway (default: ${LISTEN_VARIABLE}, or {LISTEN_DEFAULT})",
    )


def _probe_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--config", metavar="FILE", help=_CONFIG_HELP)
    add("--model", metavar="NAME", help="only the replicas of this model")
    add("--replica", metavar="NAME", action="append", help="only replicas with this name, or the base URL of one")
    add("--kind", metavar="KIND", help="kind of the replicas that are URLs (default: the replicas are asked)")
    add("--api-key-env", metavar="NAME", help="environment variable with the key for replicas that are URLs")
    add("--requests", metavar="N", type=whole(1, 20), default=3, help="complete answers per replica (default: 3)")
    add("--max-tokens", metavar="N", type=whole(1, 1000), default=8, help="tokens per answer (default: 8)")
    add("--yes", action="store_true", help="send more than a few requests or tokens")
    add("--json", action="store_true", help="print JSON instead of a table")


def _status_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--admin", metavar="URL", default=f"http://{ADMIN_LISTEN_DEFAULT}", help="admin address (default: %(default)s)")
    add("--json", action="store_true", help="print JSON instead of text")


def _prove_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--admin", metavar="URL", default=f"http://{ADMIN_LISTEN_DEFAULT}", help="admin address (default: %(default)s)")
    add("--model", metavar="NAME", help="only this model")
    add("--hours", metavar="N", type=whole(1, 24), help="the last hours (default: all)")
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--plot", metavar="FILE", help="write a picture, .png or .svg; needs matplotlib")


def _switchback_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    default = f"http://{ADMIN_LISTEN_DEFAULT}"
    command.set_defaults(admin_default=default)
    add("--admin", metavar="URL", action="append", help=f"admin address; repeat for each gateway (default: {default})")
    add("--model", metavar="NAME", help="only this model (default: every model)")
    add("--blocks", metavar="N", type=whole(6, 1000), default=40, help="blocks, an even number (default: 40)")
    add("--length", metavar="TIME", type=duration, default=600.0, help="length of a block (default: 10m)")
    add(
        "--washout",
        metavar="TIME",
        type=duration,
        help="time around a switch whose requests are not counted (default: a twentieth of --length)",
    )
    add("--seed", metavar="N", type=int, help="seed of the random order (default: random)")
    add("--json", action="store_true", help="print JSON instead of a table")


def _bundle_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--config", metavar="FILE", help=_CONFIG_HELP)
    add(
        "--admin",
        metavar="URL",
        help=f"admin address (default: of the configuration, or http://{ADMIN_LISTEN_DEFAULT})",
    )
    add("--log", metavar="FILE", help="log of the gateway, of which the last lines are taken")
    add("--seconds", metavar="N", type=seconds, default=5.0, help="time for which events are recorded (default: 5)")
    add("--output", metavar="FILE", help="archive to write (default: ttft-gateway-support-TIME.tar.gz)")


def _completion_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=SHELL_NAMES, help="shell that runs the script")


def _no_arguments(_command: argparse.ArgumentParser) -> None:
    pass


# name -> summary, description, examples, arguments
_COMMANDS: dict[str, tuple[str, str, tuple[str, ...], Callable[[argparse.ArgumentParser], None]]] = {
    "serve": (
        "run the gateway",
        "SIGTERM or Ctrl-C drains it; a second signal ends it at once.",
        (
            " --config gateway.yaml",
            " --model llama --replica http://10.0.0.1:8000/v1 --replica http://10.0.0.2:8000/v1",
            " --model gpt-4o-mini --replica https://api.openai.com/v1 --api-key-env OPENAI_API_KEY",
        ),
        _serve_arguments,
    ),
    "demo": (
        "run the gateway with three simulated replicas, one of them with slow outliers",
        "Needs no configuration; Ctrl-C ends it.",
        ("", " --traffic", " --traffic --seconds 20 --port 0"),
        _demo_arguments,
    ),
    "check-config": (
        "check a configuration file and report its problems",
        "Opens no connection.",
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
        "Editors use it for validation and completion.",
        (" > gateway.schema.json",),
        _no_arguments,
    ),
    "import": (
        "turn the configuration of LiteLLM's proxy into a configuration file",
        "Reports every line that it cannot take over. Copies no secret, and opens no connection.",
        (" litellm config.yaml", " litellm config.yaml --output gateway.yaml --force"),
        _import_arguments,
    ),
    "health": (
        "check the health of the gateway on this machine",
        "Exit code 0 means healthy; made for the health checks of containers.",
        ("", " --listen 0.0.0.0:9000"),
        _health_arguments,
    ),
    "status": (
        "report what is wrong with a running gateway, ordered by harm",
        f"Exit code 0 means well. The admin key comes from ${ADMIN_KEY_VARIABLE}.",
        ("", " --admin http://10.0.0.1:8081", " --json"),
        _status_arguments,
    ),
    "probe": (
        "measure each replica with a few requests, and report its limits and quirks",
        "Prints the maximum cost first.",
        (
            "",
            " --config gateway.yaml --model llama-70b",
            " --replica a --requests 10 --json",
            " --model llama --replica http://10.0.0.1:8000/v1 --replica http://10.0.0.2:8000/v1",
        ),
        _probe_arguments,
    ),
    "prove": (
        "report what hedging saved, measured on random requests of a running gateway",
        f"The admin key comes from ${ADMIN_KEY_VARIABLE}.",
        ("", " --model llama-70b --hours 24", " --plot hedging.png"),
        _prove_arguments,
    ),
    "switchback": (
        "report the total effect of hedging, by switching it on and off at random in blocks of time",
        f"The switches are restored at the end, and after Ctrl-C. The admin key comes from ${ADMIN_KEY_VARIABLE}.",
        (
            "",
            " --model llama-70b --blocks 40 --length 10m",
            " --admin http://10.0.0.1:8081 --admin http://10.0.0.2:8081",
        ),
        _switchback_arguments,
    ),
    "support-bundle": (
        "write versions, settings, state, metrics and log lines into an archive, without secrets",
        f"Works without a running gateway, too. The admin key comes from the configuration or ${ADMIN_KEY_VARIABLE}.",
        ("", " --config gateway.yaml --log gateway.log", " --admin http://10.0.0.1:8081 --output bundle.tar.gz"),
        _bundle_arguments,
    ),
    "completion": (
        "print a script that completes commands and options in a shell",
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
  0    success; a server was stopped by a signal, and drained
  1    unexpected failure; `probe`: a replica failed; `switchback`: it was not completed
  2    invalid command line; `probe`: it would cost too much, or no replica matches
  3    invalid configuration
  4    an address is in use or not local
  130  ended at once by a second Ctrl-C (or by one before it was ready)
  143  ended at once by a second SIGTERM"""


_SECONDS_MAX = 86400.0
_BLOCK_S_MAX = 7200.0
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def port(text: str) -> int:
    """Read a port; 0 is any free one."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port; write a number from 0 (any free port) to 65535")
    return int(text)


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a function that reads a whole number between two bounds."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} is out of range; write a whole number from {least} to {most}")
        return int(text)

    return read


def seconds(text: str) -> float:
    """Read a time in seconds, at most a day."""
    try:
        time_s = float(text)
    except ValueError:
        time_s = 0.0
    if not 0 < time_s <= _SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not a duration; write seconds, such as 20")
    return time_s


def duration(text: str) -> float:
    """Read a time with its unit, at most two hours."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text, re.ASCII)
    time_s = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < time_s <= _BLOCK_S_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not a duration of at most 2h; write for example 90s or 10m")
    return time_s
