"""The counts of what hedging saved, from the records of requests."""

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.events import Event, Role
from gateway.hedging.charges import Billed, Charge, Disposition
from gateway.hedging.measure import Instrument, Measured
from gateway.hedging.outcomes import Outcome
from gateway.observe.proof import Goal, ProofCounts, count_request
from gateway.process_events import HedgingMeasured
from gateway.proof.tally import Group, Tally
from sample_events import PRIMARY, REQUEST

_GOAL = Goal(2.0, 10.0)
_LOSERS = Measured(Instrument.LOSERS, 0.5, drawn=True, attempt=0, observed=True)
_LOSER_CHARGE = Charge(Disposition.LOSER, Billed.USED, 100, 0, 1, cost=0.5)
_BEATEN = replace(
    PRIMARY, outcome=Outcome.LOST, start_s=0.0, content_s=3.0, end_s=3.0, work_s=None, charge=_LOSER_CHARGE
)
_BACKUP = replace(PRIMARY, role=Role.BACKUP, outcome=Outcome.FINISHED)
_RACED = replace(REQUEST, ttft_s=0.4, work_s=None, gateway_s=0.1, queued_s=0.2, status=200, attempts=(_BEATEN, _BACKUP))


def counted(**changes: Any) -> Tally:
    """The counts of one request."""
    counts = Tally(*_GOAL)
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


def test_a_new_goal_starts_anew() -> None:
    """Misses above another bound cannot be added to the old ones."""
    counts = ProofCounts(lambda _: None)
    counts.goals = {_RACED.model: _GOAL}
    counts.on_event(_RACED)
    counts.goals = {_RACED.model: Goal(1.0, 10.0)}
    counts.on_event(_RACED)
    assert [tally.requests for tally in counts.tallies().values()] == [1]
