"""Races under the policy `shadow`: hedges are decided and paid for, and nothing is sent."""

from collections.abc import Callable

import pytest

from defaults import default_hedging, default_timeouts
from gateway.events import ComponentFailed, HedgeDenied, Result, Role
from gateway.race.race import Race
from scripted import Outcome, RecordingClient, Scripted, Step, answer, run_race
from ttft_gateway.apis.errors import ConnectionCut
from ttft_gateway.hedging.measure import ShadowReason
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool

_SHADOW = default_hedging(policy=Policy.SHADOW, cold_start_delay_s=0.2, max_hedges=2, budget=1.0)


def race(
    primary: list[Step],
    backup: list[Step],
    during: Callable[[Race, RecordingClient, list[Pool]], None] | None = None,
) -> Outcome:
    """Race a primary; a hedge would be sent after 0.2 s."""
    timeouts = default_timeouts(ttft_failover_s=3.0, ttft_max_s=20.0)
    return run_race(Scripted(primary), Scripted(backup), hedge=_SHADOW, timeouts=timeouts, during=during)


def test_a_hedge_is_decided_and_not_sent() -> None:
    """The other replica receives nothing; the record has the replica, the time and the cost of the hedge."""
    credits_before: list[float] = []

    def note(_race: Race, _client: RecordingClient, pools: list[Pool]) -> None:
        credits_before.append(pools[0].budget.requests.credit)

    told = race(answer(1.0), answer(0.1), note)
    assert not told.replicas[1].streams
    assert [attempt.role for attempt in told.report.attempts] == [Role.PRIMARY]
    assert told.report.ttft_s == pytest.approx(1.0)
    assert told.client.headers[b"x-ttft-denied"] == b"shadow"
    assert (told.report.result, told.report.denials) == (Result.DENIED, (Denial.SHADOW,))
    assert sum(isinstance(event, HedgeDenied) for event in told.events) == 1
    shadow = told.report.shadow
    assert shadow is not None
    assert (shadow.attempt, shadow.replica, shadow.reason) == (0, "b", ShadowReason.COLD_START)
    assert shadow.after_s == told.report.shadow_s == pytest.approx(0.2)
    assert (shadow.gain_s, shadow.drawn_s) == (None, None)
    assert told.pools[0].budget.requests.credit == pytest.approx(credits_before[0] - 1.0)


def test_a_request_in_time_has_no_shadow() -> None:
    """Nothing is decided before the delay."""
    told = race(answer(0.1), answer(0.1))
    assert (told.report.shadow, told.report.denials) == (None, ())


def test_failovers_are_sent_and_not_hedged() -> None:
    """A failure has the same consequences as without hedging."""
    told = race([(1.0, ConnectionCut("cut"))], answer(1.0))
    assert [attempt.role for attempt in told.report.attempts] == [Role.PRIMARY, Role.FAILOVER]
    assert told.report.status == 200


def test_a_bug_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the description of the hedge fails, no hedge is sent either."""
    monkeypatch.setattr(Pool, "shadow", None)
    told = race(answer(1.0), answer(0.1))
    assert not told.replicas[1].streams
    assert told.report.denials == (Denial.SHADOW,)
    assert any(isinstance(event, ComponentFailed) for event in told.events)
