"""The rules of the verdict: each finds its trouble in the facts of a table, and none in facts close to them."""

import pytest
from msgspec.structs import replace

from gateway.health.facts import Facts, Note
from gateway.health.finding import Trouble
from gateway.health.rules import RULES
from gateway.health.verdict import presences, verdict
from gateway.observe.state import PoolState
from health_cases import CASES, NOW_S, A, B, Case, facts, pool

_RULES = {rule.alert: rule for rule in RULES}


def _found(alert: str, given: Facts) -> list[str]:
    find = _RULES[alert].find
    assert find is not None
    return [found.sentence for found in find(given)]


@pytest.mark.parametrize("case", CASES, ids=[f"{case.alert}-{number}" for number, case in enumerate(CASES)])
def test_a_rule_finds_its_trouble_and_no_other(case: Case) -> None:
    """The sentence names the cause with numbers; close to the condition there is none."""
    assert _found(case.alert, case.finds) == [case.sentence]
    assert _found(case.alert, case.silent) == []


def test_each_rule_has_a_case() -> None:
    """The table has every rule but those that only Prometheus can judge."""
    assert {case.alert for case in CASES} == {rule.alert for rule in RULES if rule.find is not None}


@pytest.mark.parametrize("case", CASES, ids=[f"{case.alert}-{number}" for number, case in enumerate(CASES)])
def test_each_finding_can_be_written(case: Case) -> None:
    """Labels, value and command of a finding are complete, so that its alert and its metric exist."""
    find = _RULES[case.alert].find
    assert find is not None
    (found,) = find(case.finds)
    own = [name for name in _RULES[case.alert].labels if name != "instance"]
    assert sorted(found.labels) == sorted(own)
    assert found.value > 0
    *_, first = presences(case.finds, {})
    lasting = {key: each._replace(first_s=each.first_s - 10_000) for key, each in first.items()}
    written = [each for each in verdict(lasting, case.finds.now_s).findings if each.alert == case.alert]
    assert [each.sentence for each in written] == [case.sentence]
    assert "{" not in written[0].command.replace("'{\"", "")


def test_a_rejected_list_of_keys() -> None:
    """It is the same trouble as a rejected configuration: a restart would fail."""
    *_, present = presences(facts(keys=Note(NOW_S, "keys", "keys.jsonl:3:1: no JSON\nmore")), {})
    (found,) = verdict(present, facts().now_s).findings
    assert found.alert == "TtftReloadRejected"
    assert found.sentence == (
        "the list of keys was rejected at 06:00:00, the previous keys are in force; a restart would fail: "
        "keys.jsonl:3:1: no JSON"
    )


def test_without_trouble_all_is_well() -> None:
    """Two replicas in use and no traffic are no finding."""
    *_, present = presences(facts(), {})
    judged = verdict(present, facts().now_s)
    assert (judged.state.value, judged.sentence, judged.findings) == ("well", "well", [])


def test_a_replica_is_taken_out_only_while_another_is_well() -> None:
    """Where all are slow, or the others serve nothing, the command is to look, not to take one more out."""
    slow_a, slow_b = (replace(each, suspect=True) for each in (A, B))
    assert [('"out": true' in each.command) for each in _written(pool(slow_a, B))] == [True]
    assert [('"out": true' in each.command) for each in _written(pool(slow_a, slow_b))] == [False, False]
    assert [('"out": true' in each.command) for each in _written(pool(slow_a, replace(B, out=True)))] == [False]


def _written(given: PoolState) -> list[Trouble]:
    *_, first = presences(facts(given), {})
    lasting = {key: each._replace(first_s=each.first_s - 60) for key, each in first.items()}
    return [each for each in verdict(lasting, facts().now_s).findings if each.alert == "TtftReplicaSlow"]
