"""The verdict over time: order by harm, the time that a trouble must last, and its end."""

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.health.facts import Facts, Note
from gateway.health.finding import Verdict
from gateway.health.verdict import Key, Presence, presences, values, verdict
from health_cases import NOW_S, A, B, facts, minute, pool

_RELOAD = facts(reload=Note(NOW_S, "reload", "line 3"))
_FAILING = facts(minute=minute(requests=10, failed=5, errors={"upstream_error": 5}), reload=_RELOAD.reload)
_SUSPECT = facts(pool(replace(A, suspect=True), B))


def _judged(moments: Sequence[tuple[float, Facts]]) -> list[Verdict]:
    """Judge facts at times after the begin."""
    present: dict[Key, Presence] = {}
    judged: list[Verdict] = []
    for after_s, given in moments:
        now_s = NOW_S + after_s
        *_, present = presences(replace(given, now_s=now_s), present)
        judged.append(verdict(present, now_s, judged[-1] if judged else None))
    return judged


def test_the_most_harmful_trouble_is_first() -> None:
    """What callers notice comes before tickets, whatever was first."""
    before, after = _judged([(0, _RELOAD), (5, _FAILING)])
    assert (before.state.value, [each.alert for each in before.findings]) == ("degraded", ["TtftReloadRejected"])
    assert after.state.value == "failing"
    assert [each.alert for each in after.findings] == ["TtftRequestsFail", "TtftReloadRejected"]
    assert after.sentence == after.findings[0].sentence
    assert after.findings[1].since_s == NOW_S


def test_a_moment_is_no_trouble() -> None:
    """A replica that is suspect for one judgement is not reported; from the second on it is."""
    states = [each.state.value for each in _judged([(0, _SUSPECT), (5, facts()), (60, _SUSPECT), (65, _SUSPECT)])]
    assert states == ["well", "well", "well", "degraded"]


def test_a_trouble_that_comes_and_goes_is_one() -> None:
    """A suspect of every other judgement is reported, with its first time, until it was absent for 15 s."""
    judged = _judged([(0, _SUSPECT), (5, facts()), (10, _SUSPECT), (20, facts()), (24, facts()), (25, facts())])
    assert [each.state.value for each in judged] == ["well", "well", "degraded", "degraded", "degraded", "well"]
    assert {each.findings[0].since_s for each in judged[2:5]} == {NOW_S}


def test_the_state_has_its_time() -> None:
    """`since` is the begin of the state, not of the judgement."""
    judged = _judged([(0, facts()), (5, _RELOAD), (10, _RELOAD), (100, facts())])
    assert [each.since_s - NOW_S for each in judged] == [0, 5, 5, 100]


def test_a_switch_is_a_note_for_two_hours() -> None:
    """A replica that was taken out is mentioned, and becomes a ticket when it may have been forgotten."""
    out = facts(pool(replace(A, out=True), B))
    judged = _judged([(0, out), *((after_s, out) for after_s in range(10, 7_220, 10))])
    assert (judged[0].state.value, judged[0].findings[0].severity.value) == ("well", "note")
    assert judged[0].sentence == "well"
    late = [each for each in judged if each.state.value == "degraded"]
    assert late[0].at_s == NOW_S + 7_200


def test_the_metrics_are_the_verdict() -> None:
    """Each trouble is a series with its figure, without the notes."""
    noted = facts(pool(replace(A, out=True), B), minute=minute(requests=10, failed=5, errors={"upstream_error": 5}))
    (judged,) = _judged([(0, noted)])
    assert [(each.name, each.value, dict(each.labels)) for each in values(judged)] == [
        ("ttft_gateway_health", 2.0, {}),
        ("ttft_gateway_trouble", 0.5, {"alert": "TtftRequestsFail", "gen_ai_request_model": "m"}),
    ]
    assert list(values(None)) == []


def test_findings_are_bounded() -> None:
    """Of more than fifty troubles the rest is counted."""
    pools = [pool(replace(A, breaker="open"), model=f"m{number}") for number in range(60)]
    (judged,) = _judged([(0, facts(*pools))])
    assert (len(judged.findings), judged.more) == (50, 70)  # each model and its replica


def test_a_large_fleet_is_judged_in_slices() -> None:
    """No slice has the facts of more than a few models, and together they find what one pass over all would."""
    pools = [pool(replace(A, breaker="open") if number % 7 == 0 else A, B, model=f"m{number}") for number in range(100)]
    given = facts(*pools)
    slices = list(presences(given, {}))
    assert len(slices) == 1 + len(list(given.parts()))
    assert max(len(part.pools) for part in given.parts()) <= 16
    assert [pool for part in given.parts() for pool in part.pools] == pools
    labels = {label for _, labels in slices[-1] for label in labels}
    down = {name for name, pool_of in ((each.model, each) for each in pools) if pool_of.replicas[0].breaker == "open"}
    assert {value for name, value in labels if name == "gen_ai_request_model"} == down
