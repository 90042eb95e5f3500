"""The verdict: applies the rules to the facts, and remembers how long each trouble has lasted. Pure.

A trouble counts after its rule's time, and until it was absent for `_REST_S`: a replica that is suspect every other
moment is one trouble. Units: seconds of the Unix clock.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from gateway.health.facts import Facts
from gateway.health.finding import MODEL, Found, HealthState, Severity, Trouble, Verdict
from gateway.health.rules import RULES, Rule, anchor
from gateway.observe.process import ProcessValue

_REST_S: Final = 15.0
_FINDINGS_MAX: Final = 50
_ORDER: Final = tuple(Severity)
_SENTENCE_MAX: Final = 500

Key = tuple[str, tuple[tuple[str, str], ...]]
"""Alert, and its labels."""


class Presence(NamedTuple):
    """A trouble that is there, or was a moment ago.

    Attributes:
        rule: its rule.
        found: the newest result of the rule.
        first_s, last_s: times at which it was found first and last.
    """

    rule: Rule
    found: Found
    first_s: float
    last_s: float


_FINDS: Final = [(rule, rule.find) for rule in RULES if rule.find is not None]
_OF_MODELS: Final = [each for each in _FINDS if MODEL in each[0].labels]
_OF_ALL: Final = [each for each in _FINDS if MODEL not in each[0].labels]


def presences(facts: Facts, before: Mapping[Key, Presence]) -> Iterator[dict[Key, Presence]]:
    """Yield the troubles of this moment and of a moment ago: after each slice the same mapping, complete at the end."""
    now_s = facts.now_s
    present = {key: each for key, each in before.items() if now_s - each.last_s < _REST_S}
    for rules, parts in ((_OF_ALL, (facts,)), (_OF_MODELS, facts.parts())):
        for part in parts:
            for rule, find in rules:
                for found in find(part):
                    key = rule.alert, tuple(sorted(found.labels.items()))
                    first_s = present[key].first_s if key in present else now_s
                    present[key] = Presence(rule, found, first_s, now_s)
            yield present


def verdict(present: Mapping[Key, Presence], now_s: float, before: Verdict | None = None) -> Verdict:
    """Return the verdict on these troubles.

    Args:
        before: the previous verdict, for the time of the state.
    """
    lasting = [each for each in present.values() if each.last_s - each.first_s >= each.rule.holds_s]
    findings = sorted((_finding(each, now_s) for each in lasting), key=_harm)
    worst = findings[0].severity if findings else Severity.NOTE
    state = {
        Severity.PAGE: HealthState.FAILING,
        Severity.TICKET: HealthState.DEGRADED,
        Severity.NOTE: HealthState.WELL,
    }[worst]
    since_s = before.since_s if before is not None and before.state is state else now_s
    sentence = HealthState.WELL.value if state is HealthState.WELL else findings[0].sentence
    more = max(0, len(findings) - _FINDINGS_MAX)
    return Verdict(state, now_s, since_s, sentence, findings[:_FINDINGS_MAX], more)


def _harm(finding: Trouble) -> tuple[int, int, float]:
    return _ORDER.index(finding.severity), _INDEX[finding.alert], -finding.value


_INDEX: Final = {rule.alert: index for index, rule in enumerate(RULES)}


def _finding(each: Presence, now_s: float) -> Trouble:
    rule, found = each.rule, each.found
    severity = Severity.NOTE if now_s - each.first_s < rule.wait_s else rule.severity
    return Trouble(
        rule.alert,
        severity,
        found.sentence[:_SENTENCE_MAX],
        float(found.value),
        each.first_s,
        dict(found.labels),
        anchor(rule.section),
        found.command or rule.command.format_map({**found.labels, **found.names}),
    )


def values(judged: Verdict | None) -> Iterator[ProcessValue]:
    """Yield the metrics of a verdict; none before the first."""
    if judged is None:
        return
    text = "Verdict: 0 well, 1 degraded, 2 failing"
    yield ProcessValue("ttft_gateway_health", text, "gauge", float(tuple(HealthState).index(judged.state)))
    for finding in judged.findings:
        if finding.severity is not Severity.NOTE:
            labels = {"alert": finding.alert, **finding.labels}
            yield ProcessValue("ttft_gateway_trouble", "Figure of a trouble", "gauge", finding.value, labels)
