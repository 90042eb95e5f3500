"""Races in which the saving of a hedge is measured: a loser is read to its first token, or a hedge is withheld."""

from collections.abc import Callable

import pytest

from defaults import default_hedging, default_timeouts
from gateway.events import HedgeDenied, Result, Role
from gateway.race.race import Race
from scripted import ROLE, Outcome, RecordingClient, Scripted, Step, answer, run_race, text
from ttft_gateway.apis.errors import ConnectionCut
from ttft_gateway.hedging.measure import Instrument, MeasureShares
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.hedging.outcomes import Outcome as End
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool

_LOSERS, _HOLDOUT = MeasureShares(losers=1.0), MeasureShares(holdout=1.0)
_QUIET: list[Step] = [(0.01, ROLE), (900.0, text("z"))]


def race(
    primary: list[Step],
    backup: list[Step],
    shares: MeasureShares,
    during: Callable[[Race, RecordingClient, list[Pool]], None] | None = None,
) -> Outcome:
    """Race a primary against a backup that is asked after 0.2 s."""
    hedge = default_hedging(policy=Policy.STATIC, static_delay_s=0.2, budget=1.0, measure=shares)
    timeouts = default_timeouts(ttft_failover_s=3.0, ttft_max_s=20.0)
    return run_race(Scripted(primary), Scripted(backup), hedge=hedge, timeouts=timeouts, during=during)


def later(at_s: float, act: Callable[[Race], None]) -> Callable[[Race, RecordingClient, list[Pool]], None]:
    """Do something to a race after a time."""
    return lambda race, *_: race._runtime.loop.call_later(at_s, act, race)


def test_a_loser_is_read_to_its_first_token_and_the_client_does_not_wait() -> None:
    """The log has the TTFT of both; the client's answer ends as without the measurement."""
    told = race(answer(1.0), answer(0.1, "xy"), _LOSERS)
    loser, winner = told.report.attempts
    assert told.client.got == b"<role>xy<stop><done>"
    assert told.client.finished
    assert told.client.headers[b"x-ttft-measured"] == b"losers"
    assert (loser.outcome, winner.outcome) == (End.LOST, End.FINISHED)
    assert loser.content_s == pytest.approx(1.0)
    assert loser.end_s == pytest.approx(1.0)  # no further
    assert told.report.ttft_s == pytest.approx(0.3)
    assert told.report.total_s == pytest.approx(0.32, abs=0.01)  # the client's
    assert told.end_s == pytest.approx(1.0, abs=0.01)  # the record's
    measured = told.report.measured
    assert measured is not None
    assert (measured.instrument, measured.share, measured.drawn, measured.attempt, measured.observed) == (
        Instrument.LOSERS,
        1.0,
        True,
        0,
        True,
    )


def test_a_silent_loser_ends_with_its_ttft_timeout() -> None:
    """It is known to have taken longer."""
    told = race(_QUIET, answer(0.1), _LOSERS)
    assert told.report.attempts[0].content_s is None
    assert told.report.attempts[0].end_s == pytest.approx(3.0)
    assert told.report.measured is not None
    assert told.report.measured.observed


def test_a_loser_that_fails_ends() -> None:
    """Its replica is not blamed: the request was over."""
    told = race([(1.0, ConnectionCut("cut"))], answer(0.1), _LOSERS)
    assert told.report.attempts[0].end_s == pytest.approx(1.0)
    assert told.report.attempts[0].error is not None
    assert told.report.measured is not None
    assert told.report.measured.observed
    assert told.pools[0].replicas[0].breaker.failures == 0


def test_a_loser_outlives_a_client_that_leaves() -> None:
    """Else slow losers of short readers would be missing."""
    told = race(answer(1.0), answer(0.1, "x" * 100), _LOSERS, later(0.5, Race.client_gone))
    assert told.report.error == "client_gone"
    assert told.report.attempts[0].content_s == pytest.approx(1.0)
    assert told.report.total_s == pytest.approx(0.5)


@pytest.mark.parametrize("at_s", [0.31, 1.0])
def test_a_gateway_that_stops_ends_living_losers(at_s: float) -> None:
    """While the answer is sent, and after it; nothing is known then."""

    def stop(race: Race) -> None:
        race.shut_down()
        for loser in tuple(race._runtime.losers):
            loser.stop()

    told = race(answer(2.0), answer(0.1), _LOSERS, later(at_s, stop))
    assert told.end_s == pytest.approx(at_s)
    assert told.report.measured is not None
    assert not told.report.measured.observed
    assert told.report.status == (200 if at_s == 1.0 else 503)


def test_a_primary_that_wins_is_not_measured_further() -> None:
    """Its TTFT without the hedge is the one that the client saw."""
    told = race(answer(0.3), answer(5.0), _LOSERS)
    assert told.report.result is Result.BACKUP_LOST
    assert b"x-ttft-measured" not in told.client.headers
    assert told.report.measured is not None
    assert told.report.measured.drawn
    assert not told.report.measured.observed


def test_a_withheld_hedge_is_paid_for_and_not_sent() -> None:
    """The client waits as without hedging; the credits are gone, else another request would get them."""
    before: list[float] = []
    told = race(
        answer(1.0),
        answer(0.1),
        _HOLDOUT,
        lambda *race: before.append(race[2][0].budget.requests.credit),
    )
    assert [attempt.role for attempt in told.report.attempts] == [Role.PRIMARY]
    assert told.report.ttft_s == pytest.approx(1.0)
    assert told.report.denials == (Denial.HOLDOUT,)
    assert told.client.headers[b"x-ttft-measured"] == b"holdout"
    assert told.client.headers[b"x-ttft-denied"] == b"holdout"
    assert sum(isinstance(event, HedgeDenied) for event in told.events) == 1
    assert told.pools[0].budget.requests.credit == pytest.approx(before[0] - 1.0)


def test_a_failover_of_a_withheld_request_is_not_hedged() -> None:
    """Without hedging it would not be, either."""
    told = race([(1.0, ConnectionCut("cut"))], answer(1.0), _HOLDOUT)
    assert [attempt.role for attempt in told.report.attempts] == [Role.PRIMARY, Role.FAILOVER]


def test_nothing_is_drawn_without_shares() -> None:
    """The loser is cancelled immediately."""
    told = race(answer(1.0), answer(0.1), MeasureShares())
    assert told.report.measured is None
    assert told.report.attempts[0].end_s == pytest.approx(0.3)
