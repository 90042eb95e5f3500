"""`completion`: what bash, zsh and fish need to complete commands and options, made from the command line itself.

Owns the form of the three scripts. They run nothing of ours when a key is pressed. A value is completed where it is a
file or one of a few words; nobody can guess the others. No units.
"""

import argparse
import re
from collections.abc import Iterator

from gateway.command_line import PROGRAM, ExitCode, Parser, parsers

_NAME = PROGRAM.replace("-", "_")


def completion(arguments: argparse.Namespace) -> ExitCode:
    """Print the script of a shell."""
    lines = {"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell]
    print(*lines(parsers()[1]), sep="\n")
    return ExitCode.FINE


def _bash(commands: dict[str, Parser]) -> Iterator[str]:
    every = [(name, argument) for name, command in commands.items() for argument in command.arguments]
    files = [f"'{name} {argument.option_strings[-1]}'" for name, argument in every if _option(argument) == "file"]
    texts = [f"'{name} {argument.option_strings[-1]}'" for name, argument in every if _option(argument) == "text"]
    yield f"""_{_NAME}_files() {{
    compopt -o filenames 2> /dev/null
    local IFS=$'\\n'
    COMPREPLY=($(compgen -f -- "$1"))
}}

_{_NAME}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command= known= i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${{COMP_WORDS[i]}} != -* ]]; then
            command=${{COMP_WORDS[i]}}
            break
        fi
    done
    case "$command $before" in
        {" | ".join(files)}) _{_NAME}_files "$word"; return ;;
        {" | ".join(texts)}) return ;;
    esac
    case "$command" in
        '') known='{" ".join(commands)} --help' ;;"""
    for name, command in commands.items():
        words = [word for argument in command.arguments for word in (*argument.option_strings[-1:], *_choices(argument))]
        takes_file = any(_is_file(argument) for argument in command.arguments if not argument.option_strings)
        other = f" [[ $word == -* ]] || {{ _{_NAME}_files \"$word\"; return; }};" if takes_file else ""
        yield f"        {name}){other} known='{' '.join(words)}' ;;"
    yield f"""    esac
    COMPREPLY=($(compgen -W "$known" -- "$word"))
}}

complete -F _{_NAME} {PROGRAM}"""


def _zsh(commands: dict[str, Parser]) -> Iterator[str]:
    yield f"""#compdef {PROGRAM}
_{_NAME}() {{
    if (( CURRENT == 2 )); then
        local -a known=("""
    yield from (f"            {_quoted(f'{name}:{_summary(command)}')}" for name, command in commands.items())
    yield """        )
        _describe command known
        return
    fi
    shift words
    (( CURRENT-- ))
    case $words[1] in"""
    for name, command in commands.items():
        yield f"        {name}) _arguments {' '.join(_quoted(_zsh_argument(each)) for each in command.arguments)} ;;"
    yield f"""    esac
}}

if [[ $funcstack[1] == _{PROGRAM} ]]; then
    _{_NAME} "$@"
else
    compdef _{_NAME} {PROGRAM}
fi"""


def _zsh_argument(argument: argparse.Action) -> str:
    """What `_arguments` calls a specification."""
    action = "_files" if _is_file(argument) else f"({' '.join(_choices(argument))})" if _choices(argument) else " "
    value = f":{str(argument.metavar or argument.dest).replace(':', ' ')}:{action}"
    if not argument.option_strings:
        return value
    repeated = "*" if isinstance(argument, argparse._AppendAction) else ""
    text = re.sub(r"([\[\]])", r"\\\1", argument.help or "")
    return f"{repeated}{argument.option_strings[-1]}[{text}]" + (value if _option(argument) else "")


def _fish(commands: dict[str, Parser]) -> Iterator[str]:
    yield f"complete -c {PROGRAM} -f"
    for name, command in commands.items():
        yield f"complete -c {PROGRAM} -n __fish_use_subcommand -a {name} -d {_fish_quoted(_summary(command))}"
    for name, command in commands.items():
        here = f"complete -c {PROGRAM} -n '__fish_seen_subcommand_from {name}'"
        for argument in command.arguments:
            text = _fish_quoted(argument.help or "")
            if argument.option_strings:
                takes = {"file": " -r -F", "text": " -x", None: ""}[_option(argument)]
                yield f"{here} -l {argument.option_strings[-1].removeprefix('--')}{takes} -d {text}"
            elif _is_file(argument):
                yield f"{here} -F"
            else:
                yield f"{here} -a '{' '.join(_choices(argument))}' -d {text}"
