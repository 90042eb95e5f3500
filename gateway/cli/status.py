"""`status`: prints the verdict on a running gateway: well, or what is wrong, ordered by harm.

Reads `GET /admin/health`. Exit code 0 means well, so that a script can wait for it. Units: none.
"""

import argparse
import http.client
import json
from collections.abc import Iterator

import msgspec

from gateway.cli.admin_client import ask_admin
from gateway.cli.parser import ADMIN_KEY_VARIABLE, ExitCode
from gateway.cli.terminal import fail

_MARKS = {"page": "!!", "ticket": " !", "note": " -"}


class _Finding(msgspec.Struct):
    severity: str
    sentence: str
    since: str
    runbook: str
    command: str = ""


class _Failure(msgspec.Struct):
    at: str
    error: str
    status: int | None = None


class _Replica(msgspec.Struct):
    model: str
    replica: str
    state: str
    last_failure: _Failure | None = None


class Health(msgspec.Struct):
    """The document of the admin address, as far as it is printed."""

    state: str
    since: str
    findings: list[_Finding] = []
    more: int = 0
    replicas: list[_Replica] = []


def status(arguments: argparse.Namespace) -> ExitCode:
    """Fetch the verdict and print it."""
    try:
        document = ask_admin(arguments.admin, "/admin/health")
        health = msgspec.json.decode(document, type=Health)
    except (OSError, http.client.HTTPException, ValueError) as error:
        fail(f"{arguments.admin} has no verdict ({error}); check --admin and ${ADMIN_KEY_VARIABLE}")
        return ExitCode.FAILED
    if arguments.json:
        print(json.dumps(msgspec.json.decode(document), indent=2))
    else:
        print("\n".join(as_text(health)))
    return ExitCode.OK if health.state == "well" else ExitCode.FAILED


def as_text(health: Health) -> Iterator[str]:
    """Yield the lines of a verdict."""
    yield f"{health.state} since {_clock(health.since)}"
    for finding in health.findings:
        yield f"{_MARKS[finding.severity]} {finding.sentence}"
        yield f"     since {_clock(finding.since)}; {finding.runbook}"
        if finding.command:
            yield f"     {finding.command}"
    if health.more:
        yield f"   {health.more} more"
    for replica in health.replicas:
        failure = replica.last_failure
        if failure is not None:
            status = "" if failure.status is None else f"{failure.status} "
            name = f"{replica.replica} of {replica.model}"
            yield f"   {name}: {replica.state}; last failure {_clock(failure.at)}: {status}{failure.error}"


def _clock(time: str) -> str:
    """Shorten a time of RFC 3339 to the second, without its offset, which is 0."""
    return time.replace("T", " ").removesuffix("+00:00") + " UTC"
