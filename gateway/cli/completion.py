"""`completion`: what bash, zsh and fish need to complete commands and options, made from the command line itself.

Owns the form of the three scripts; they run nothing of ours when a key is pressed. A value is completed where it is a
file or one of a few words; others nobody can guess. No units.
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gateway.cli.parser import PROGRAM, ExitCode, Parser, parsers

_FUNCTION = "_" + PROGRAM.replace("-", "_")


@dataclass(frozen=True, slots=True)
class _Argument:
    """Something that can be typed behind a command.

    Attributes:
        option: as it is typed, "" for what stands by its place.
        takes: what its value is, or what stands there.
        words: the only ones possible, where takes is "word".
        text: what it is for.
    """

    option: str
    takes: Literal["nothing", "file", "word", "text"]
    words: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class _Command:
    """A command."""

    name: str
    text: str
    arguments: tuple[_Argument, ...]

    @property
    def words(self) -> list[str]:
        """Everything that can be typed behind it and is known."""
        options = [argument.option for argument in self.arguments if argument.option]
        return options + [word for argument in self.arguments if not argument.option for word in argument.words]

    @property
    def takes_file(self) -> bool:
        """Whether a file can stand behind it without an option."""
        return any(not argument.option and argument.takes == "file" for argument in self.arguments)

    def options(self, takes: str) -> list[str]:
        """Options with such a value, with the command before them."""
        return [f"{self.name} {each.option}" for each in self.arguments if each.option and each.takes == takes]


def completion(arguments: argparse.Namespace) -> ExitCode:
    """Print the script of a shell."""
    lines = {"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell]
    print(*lines([_command(*each) for each in parsers()[1].items()]), sep="\n")
    return ExitCode.OK


def _command(name: str, parser: Parser) -> _Command:
    summary = (parser.description or "").partition(". ")[0].rstrip(".")
    return _Command(name, summary, tuple(_argument(each) for each in parser.arguments))


def _argument(action: argparse.Action) -> _Argument:
    option = action.option_strings[-1] if action.option_strings else ""
    if action.choices is not None:
        return _Argument(option, "word", tuple(map(str, action.choices)), action.help or "")
    takes: Literal["nothing", "file", "text"] = "text" if action.nargs != 0 else "nothing"
    return _Argument(option, "file" if action.metavar == "FILE" else takes, (), action.help or "")


def _bash(commands: list[_Command]) -> Iterator[str]:
    def either(takes: str) -> str:
        return " | ".join(f"'{option}'" for command in commands for option in command.options(takes))

    yield f"""{_FUNCTION}_files() {{
    compopt -o filenames 2> /dev/null
    local IFS=$'\\n'
    COMPREPLY=($(compgen -f -- "$1"))
}}

{_FUNCTION}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command= known= i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${{COMP_WORDS[i]}} != -* ]]; then
            command=${{COMP_WORDS[i]}}
            break
        fi
    done
    case "$command $before" in
        {either("file")})
            {_FUNCTION}_files "$word"
            return ;;
        {either("text")})
            return ;;
    esac
    case "$command" in
        '') known='{" ".join(command.name for command in commands)} --help' ;;"""
    yield from (f"        {command.name}) known='{' '.join(command.words)}' ;;" for command in commands)
    yield f"""    esac
    case "$command $word" in
        *' -'*) ;;
        {" | ".join(f"'{command.name} '*" for command in commands if command.takes_file)})
            {_FUNCTION}_files "$word"
            return ;;
    esac
    COMPREPLY=($(compgen -W "$known" -- "$word"))
}}

complete -F {_FUNCTION} {PROGRAM}"""


def _zsh(commands: list[_Command]) -> Iterator[str]:
    yield f"""#compdef {PROGRAM}

{_FUNCTION}() {{
    if (( CURRENT == 2 )); then
        local -a known=("""
    yield from (f"            {_quoted(f'{command.name}:{command.text}')}" for command in commands)
    yield """        )
        _describe command known
        return
    fi
    shift words
    (( CURRENT-- ))
    case $words[1] in"""
    for command in commands:
        yield f"        {command.name}) _arguments {' '.join(map(_zsh_argument, command.arguments))} ;;"
    yield f"""    esac
}}

if [[ $funcstack[1] == _{PROGRAM} ]]; then
    {_FUNCTION} "$@"
else
    compdef {_FUNCTION} {PROGRAM}
fi"""


def _zsh_argument(argument: _Argument) -> str:
    """A specification as `_arguments` takes it."""
    value = {"nothing": "", "file": ":file:_files", "text": ":value: ", "word": f":word:({' '.join(argument.words)})"}
    text = re.sub(r"([\[\]])", r"\\\1", argument.text)
    option = f"*{argument.option}[{text}]" if argument.option else ""
    return _quoted(option + value[argument.takes])


def _fish(commands: list[_Command]) -> Iterator[str]:
    yield f"complete -c {PROGRAM} -f"
    for command in commands:
        yield f"complete -c {PROGRAM} -n __fish_use_subcommand -a {command.name} -d {_fish_quoted(command.text)}"
    value = {"nothing": "", "file": " -r -F", "text": " -x", "word": ""}
    for command in commands:
        for argument in command.arguments:
            option = f" -l {argument.option.removeprefix('--')}" if argument.option else ""
            takes = value[argument.takes] if argument.option or argument.takes == "word" else " -F"
            words = f" -a {_fish_quoted(' '.join(argument.words))}" if argument.words else ""
            seen = f"-n '__fish_seen_subcommand_from {command.name}'"
            yield f"complete -c {PROGRAM} {seen}{option}{takes}{words} -d {_fish_quoted(argument.text)}"


def _quoted(text: str) -> str:
    """For bash and zsh."""
    return "'" + text.replace("'", r"'\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", r"\\").replace("'", r"\'") + "'"
