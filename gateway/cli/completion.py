"""`completion`: scripts that complete commands and options in a shell, generated from the parser by shtab. No units."""

import argparse

import shtab

from gateway.cli.parser import PROGRAM, ExitCode, parsers


def completion(arguments: argparse.Namespace) -> ExitCode:
    """Print the completion script of a shell; values with the metavar FILE complete to file names."""
    parser, commands = parsers()
    for command in commands.values():
        for action in command.arguments:
            if action.metavar == "FILE":
                vars(action)["complete"] = shtab.FILE
    parser.prog = PROGRAM
    print(shtab.complete(parser, shell=arguments.shell))
    return ExitCode.OK
