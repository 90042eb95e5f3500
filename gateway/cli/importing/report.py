"""Collects the findings of an import, and the environment variables that replace literal secrets. No units."""

import enum
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from gateway.cli.importing.source import ForeignFile
from gateway.config.document import Loc, path

_REFERENCE = re.compile(r"os\.environ/([A-Za-z_][A-Za-z0-9_]*)")


class Consequence(enum.IntEnum):
    """The consequence of a finding; the order is the order of the report."""

    LOST = 0
    CHANGED = 1
    IDLE = 2

    @property
    def title(self) -> str:
        """Title of the group in the report."""
        return ("Lost", "Changed", "Without effect here")[self]


class Finding(msgspec.Struct, frozen=True, order=True):
    """A line of the foreign file that is not taken over, or taken over with a change. Never quotes a secret.

    Attributes:
        group: consequence.
        line: line in the foreign file.
        text: setting, reason, and correction where there is one.
    """

    group: Consequence
    line: int
    text: str


def grouped(findings: Sequence[Finding], file: str) -> Iterator[str]:
    """Yield the lines of the report: each group with its title, its findings by line.

    Args:
        findings: findings in order.
        file: name of the foreign file.
    """
    for group, each in groupby(findings, lambda finding: finding.group):
        yield f"{group.title}:"
        yield from (f"  {file}:{finding.line}: {finding.text}" for finding in each)


class Report:
    """Findings and variables of one import.

    Attributes:
        findings: all findings, in the order in which they were found.
        variables: names of the environment variables in the written file, each with the name's purpose: `url`,
            `version`, `secret` or the setting of an address.
    """

    def __init__(self, source: ForeignFile, used: frozenset[str] = frozenset()) -> None:
        """Start a report.

        Args:
            source: the foreign file.
            used: names of variables in it, which no new variable may have.
        """
        self._source = source
        self._used = used
        self._literals: dict[str, str] = {}
        self.findings: list[Finding] = []
        self.variables: dict[str, str] = {}

    def line(self, loc: Loc) -> int:
        """Return the line of a value."""
        return self._source.line(loc)

    def add(self, loc: Loc, text: str, group: Consequence = Consequence.CHANGED) -> None:
        """Add a finding about a setting that is taken over with a change; its text follows the setting's path."""
        self.findings.append(Finding(group, self._source.line(loc), f"{setting(loc)} {text}"))

    def skip(self, loc: Loc, reason: str) -> None:
        """Add a finding about a setting that is lost."""
        self.add(loc, f"is not taken over: {reason}", Consequence.LOST)

    def idle(self, loc: Loc, reason: str) -> None:
        """Add a finding about a setting that the gateway does not need."""
        self.add(loc, f"is not needed: {reason}", Consequence.IDLE)

    def variable(self, name: str, purpose: str = "secret") -> str:
        """Return the reference to a variable in the written file."""
        self.variables.setdefault(name, purpose)
        return f"${{{name}}}"

    def secret(self, value: str, loc: Loc, name: str) -> str:
        """Return the reference that replaces a secret; a literal one gets a variable, the same one for equal secrets.

        Args:
            value: `os.environ/NAME`, or the secret itself.
            loc: path of the setting.
            name: variable for a literal secret.
        """
        if found := reference(value):
            return self.variable(found)
        if value not in self._literals:
            taken = {*self._used, *self._literals.values()}
            names = [name, *(f"{name}_{number}" for number in range(2, len(taken) + 3))]
            self._literals[value] = next(each for each in names if each not in taken)
        self.add(
            loc, f"is a literal secret; it is not copied: set the environment variable {self._literals[value]} to it"
        )
        return self.variable(self._literals[value])


def reference(value: object) -> str | None:
    """Return the name of the variable in `os.environ/NAME`; None for another value."""
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return match[1] if match else None


def references(data: object) -> frozenset[str]:
    """Return the names of all variables in a foreign file."""
    if isinstance(data, dict):
        return frozenset().union(*(references(value) for value in data.values()))
    if isinstance(data, list):
        return frozenset().union(*(references(value) for value in data))
    found = reference(data)
    return frozenset({found} if found else ())


def setting(loc: Loc) -> str:
    """Format a path as `model_list[0].litellm_params.rpm`, printable in one line."""
    return re.sub(r"[^!-~]", "?", path(loc))[:120]
