"""The counts of what hedging saved, from the records of requests."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gateway.events import Event, Role
from gateway.observe.proof import Goal, ProofCounts, count_request
from gateway.process_events import HedgingMeasured
from gateway.proof.shadow import shadow_report
from gateway.proof.tally import Group, Tally
from sample_events import PRIMARY, REQUEST, SHADOWED
from ttft_gateway.hedging.charges import Billed, Charge, Disposition
from ttft_gateway.hedging.measure import Instrument, Measured, Shadow, ShadowReason
from ttft_gateway.hedging.outcomes import Outcome

_GOAL = Goal(2.0, 10.0)
_LOSERS = Measured(Instrument.LOSERS, 0.5, drawn=True, attempt=0, observed=True)
_LOSER_CHARGE = Charge(Disposition.LOSER, Billed.USED, 100, 0, 1, cost=0.5)
_BEATEN = replace(
    PRIMARY, outcome=Outcome.LOST, start_s=0.0, content_s=3.0, end_s=3.0, work_s=None, charge=_LOSER_CHARGE
)
_BACKUP = replace(PRIMARY, role=Role.BACKUP, outcome=Outcome.FINISHED)
_RACED = replace(REQUEST, ttft_s=0.4, work_s=None, gateway_s=0.1, queued_s=0.2, status=200, attempts=(_BEATEN, _BACKUP))

_SHADOW = Shadow(0, "b", ShadowReason.LATE, 0.15, 120, None, expected_s=0.09, gain_s=0.1, drawn_s=0.02)


def counted(**changes: Any) -> Tally:
    """The counts of one request."""
    counts = _GOAL.tally()
    count_request(replace(_RACED, **changes), counts)
    return counts


def groups(counts: Tally) -> dict[Group, object]:
    """The sum of TTFTs of each group with requests."""
    return {group: pytest.approx(times.sum_s) for group, times in counts.groups.items() if times.count}


def test_a_loser_that_was_read_has_both_times() -> None:
    """Without the hedge the client would have waited from its arrival, in the queue too."""
    counts = counted(measured=_LOSERS)
    assert groups(counts) == {Group.BEATEN: 0.4, Group.READ_WITH: 0.4, Group.READ_WITHOUT: 3.3}
    assert (counts.hedges, counts.tokens, counts.cost) == (1, 101, 0.5)


def test_groups() -> None:
    """Each request is in the group of what is known about it."""
    assert groups(counted(measured=replace(_LOSERS, drawn=False, observed=False))) == {Group.BEATEN: 0.4}
    assert groups(counted(measured=None)) == {Group.UNMEASURED: 0.4}
    assert groups(counted(measured=None, attempts=(_BACKUP,))) == {Group.SAME: 0.4}
    won = replace(_BEATEN, outcome=Outcome.FINISHED)
    assert groups(counted(measured=_LOSERS, attempts=(won, _BEATEN))) == {Group.SAME: 0.4}
    held = replace(_LOSERS, instrument=Instrument.HOLDOUT)
    assert groups(counted(measured=held)) == {Group.WITHHELD: 0.4}
    assert groups(counted(measured=replace(held, drawn=False))) == {Group.GRANTED: 0.4}


def test_no_token_is_the_longest_wait_and_a_mistake_of_the_caller_none() -> None:
    """A client that left before its first token never got one."""
    assert groups(counted(measured=None, attempts=(_BACKUP,), ttft_s=None, status=499)) == {Group.SAME: 10.0}
    assert groups(counted(ttft_s=None, status=400)) == {}


def test_a_line_an_hour_and_the_last_hours() -> None:
    """Only models with a goal are counted; hours are counted apart."""
    told: list[Event] = []
    counts = ProofCounts(told.append)
    counts.on_event(_RACED)
    assert counts.tallies() == {}
    counts.goals = {_RACED.model: _GOAL}
    for hour in range(30):
        counts.on_event(replace(_RACED, at_s=3600.0 * hour + 1.0, measured=_LOSERS))
    assert [tally.requests for tally in counts.tallies().values()] == [30]
    assert [tally.requests for tally in counts.tallies(3).values()] == [3]
    assert [tally.requests for tally in counts.tallies(24).values()] == [24]
    assert sum(isinstance(event, HedgingMeasured) for event in told) == 29
    values = {(value.name, value.labels["group"]): value.value for value in counts.values()}
    assert values["ttft_gateway_proof_misses", "read_without"] == 30


def test_a_model_in_shadow_has_observed_and_predicted_times() -> None:
    """With the hedge after 0.1502 s: a backup by the curve, and one as late as the primary (0.2 s of 0.18 s)."""
    told: list[Event] = []
    counts = ProofCounts(told.append)
    counts.goals = {REQUEST.model: Goal(0.18, 10.0, is_shadow=True)}
    for at_s in (0.0, 3600.0):
        counts.on_event(replace(SHADOWED, at_s=at_s))
        counts.on_event(replace(REQUEST, at_s=at_s))
    counts.on_event(replace(SHADOWED, shadow=replace(_SHADOW, drawn_s=None, expected_s=None)))
    assert not told  # no line in the log
    (tally,) = counts.tallies().values()
    report = shadow_report("m", tally)
    assert (report.requests, report.hedges, report.unpredicted, report.reasons) == (5, 3, 1, {"late": 3})
    assert (report.tokens, report.cost) == (360, 0.5)
    assert (report.misses.observed, report.misses.independent, report.misses.correlated) == (5, 3, 5)
    assert report.mean_ms.observed == pytest.approx(200.0)
    assert report.mean_ms.independent == pytest.approx((3 * 200.0 + 2 * 170.2) / 5, rel=0.001)
    assert report.late_ms == pytest.approx(49.8)
    assert report.p95_ms.observed == pytest.approx(200.0, rel=0.003)


def test_a_prediction_is_never_later_than_what_was_observed() -> None:
    """A backup cannot make a request slower; one that is as slow saves nothing."""
    tally = Goal(0.18, 10.0, is_shadow=True).tally()
    count_request(replace(SHADOWED, shadow=replace(_SHADOW, drawn_s=5.0)), tally)
    assert tally.shadow is not None
    assert tally.shadow.independent.sum_s == tally.shadow.correlated.sum_s == pytest.approx(0.2)


def test_counts_of_models_in_shadow_add_up() -> None:
    """Two gateways with one request each have the counts of one with both."""
    one, both = (Goal(0.18, 10.0, is_shadow=True).tally() for _ in range(2))
    count_request(SHADOWED, one)
    for _ in range(2):
        count_request(SHADOWED, both)
    one.merge(msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=Tally))
    assert shadow_report("m", one) == shadow_report("m", both)


def test_a_new_goal_starts_anew() -> None:
    """Misses above another bound cannot be added to the old ones."""
    counts = ProofCounts(lambda _: None)
    counts.goals = {_RACED.model: _GOAL}
    counts.on_event(_RACED)
    counts.goals = {_RACED.model: Goal(1.0, 10.0)}
    counts.on_event(_RACED)
    assert [tally.requests for tally in counts.tallies().values()] == [1]
