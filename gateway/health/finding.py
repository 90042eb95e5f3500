"""A finding: one trouble, as a rule has found it, and the verdict on all.

Units: seconds of the Unix clock.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

MODEL, REPLICA = "gen_ai_request_model", "replica"


class Severity(enum.Enum):
    """Harm of a finding; the value is the label of the alert."""

    PAGE = "page"
    """Callers are affected now."""
    TICKET = "ticket"
    """Callers are not affected, or will be later."""
    NOTE = "note"
    """No trouble: something to know."""


class HealthState(enum.Enum):
    """The verdict in one word; the member's order is the value of the metric."""

    WELL = "well"
    DEGRADED = "degraded"
    FAILING = "failing"


class Found(NamedTuple):
    """Result of a rule.

    Attributes:
        sentence: cause with numbers, without a full stop.
        value: its figure, above 0; a share unless the rule names another unit.
        labels: labels of the metric and of the alert.
        names: values of the command's names that are no labels.
        command: command instead of the rule's; "" for the rule's.
    """

    sentence: str
    value: float = 1.0
    labels: Mapping[str, str] = MappingProxyType({})
    names: Mapping[str, str] = MappingProxyType({})
    command: str = ""


class Trouble(msgspec.Struct, frozen=True):
    """One trouble in the verdict.

    Attributes:
        alert: name of its rule and alert.
        since_s: time at which it was first found.
        runbook: section of the runbook.
        command: command to look or to act; "" for none.
    """

    alert: str
    severity: Severity
    sentence: str
    value: float
    since_s: float
    labels: dict[str, str]
    runbook: str
    command: str


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on a gateway.

    Attributes:
        state: one word.
        at_s: time of the judgement.
        since_s: time since which the state is the same.
        sentence: "well", or the sentence of the most harmful finding.
        findings: troubles, ordered by harm; notes are last.
        more: number of further findings.
    """

    state: HealthState
    at_s: float
    since_s: float
    sentence: str
    findings: list[Trouble] = []
    more: int = 0
