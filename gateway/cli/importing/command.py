"""`import`: converts the configuration file of another gateway, and reports what is not taken over. No units."""

import argparse
import os
from pathlib import Path

from gateway.cli.config import check_file, report_problems
from gateway.cli.importing.litellm import Imported, fault_of, from_litellm
from gateway.cli.importing.report import grouped
from gateway.cli.importing.source import NotReadable, read_source
from gateway.cli.parser import ExitCode
from gateway.cli.terminal import fail
from gateway.config.errors import ConfigError
from gateway.config.loader import read_text

PLACEHOLDERS = {
    "url": "https://placeholder.invalid/v1",
    "host": "https://placeholder.invalid",
    "version": "2024-10-21",
    "region": "us-east-1",
    "project": "placeholder",
    "resource": "placeholder",
}
"""Value for the check of a variable that is not set, by purpose; a secret has its name as value."""


def import_config(arguments: argparse.Namespace) -> ExitCode:
    """Write the file, and report its findings and the result of the check."""
    file, output = Path(arguments.file), Path(arguments.output)
    try:
        source = read_source(read_text(file))
    except ConfigError as error:
        return report_problems(error)
    except NotReadable as error:
        fail(f"{file}:{error.line}: {error.text}")
        return ExitCode.BAD_CONFIG
    if (fault := fault_of(source.data)) is not None:
        fail(f"{file}: {fault}")
        return ExitCode.BAD_CONFIG
    if output.exists() and (not arguments.force or output.samefile(file)):
        correction = (
            "name another file with --output"
            if output.samefile(file)
            else "add --force, or name another file with --output"
        )
        fail(f"{output} exists; {correction}")
        return ExitCode.USAGE
    imported = from_litellm(source, file.name)
    for line in grouped(imported.findings, str(file)):
        print(line)
    if not imported.lines:
        fail(f"{file}: no entry of model_list can be taken over; {output} is not written")
        return ExitCode.BAD_CONFIG
    return _write(imported, output, force=arguments.force)


def _write(imported: Imported, output: Path, *, force: bool) -> ExitCode:
    try:
        with output.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write("\n".join(imported.lines) + "\n")
    except OSError as error:
        fail(f"{output} cannot be written: {error.strerror}; name another file with --output")
        return ExitCode.FAILED
    env = {name: PLACEHOLDERS.get(purpose, f"placeholder-{name}") for name, purpose in imported.variables.items()}
    code = check_file(output, {**env, **{name: value for name, value in os.environ.items() if value}}, to_run=False)
    if missing := sorted(name for name in imported.variables if not os.environ.get(name)):
        print(f"set before the start: {', '.join(missing)}")
    return code
