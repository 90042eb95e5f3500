"""The race in virtual time: winner, cancelled attempts and their times, the client's answer, the report."""

import pytest

from defaults import default_hedging, default_timeouts
from gateway.errors import UpstreamFailed
from gateway.events import ComponentFailed, HedgeDenied, HedgeFired, Result, Role
from gateway.race.race import Race
from scripted import (
    FINISH,
    HEDGED,
    ROLE,
    RecordingClient,
    Scripted,
    Step,
    answer,
    run_race,
    status,
    text,
)
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Denial, Outcome
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.hedging.plan import FirstEvent, Policy
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import BreakerState

OFF = default_hedging(policy=Policy.OFF)
SILENT: list[Step] = [(0.001, "headers"), (0.001, ROLE)]
COMPLETE = b"<role>ab<stop><done>"


def test_a_quick_primary_is_forwarded_whole_and_alone() -> None:
    """Nothing is raced when the primary is in time, and its events arrive as they came."""
    slow = Scripted(answer(0.05))
    told = run_race(slow, Scripted(answer(0.01)))
    assert told.client.got == COMPLETE
    assert told.client.finished
    assert (told.report.result, told.report.winner, len(told.report.attempts)) == (Result.PRIMARY, "a", 1)
    assert told.report.ttft_s == pytest.approx(0.05)
    assert told.report.attempts[0].headers_s == pytest.approx(0.001)
    assert told.client.headers[b"x-ttft-result"] == b"primary"
    assert told.client.headers[b"x-upstream-request-id"] == b"up-1"
    assert (told.report.never_hedged, told.report.attempts[0].hedge_after_s) == (None, 0.1)


def test_a_late_primary_is_raced_and_loses_at_the_winners_first_content() -> None:
    """The backup starts at the delay and wins at its first content; the primary is closed in that instant."""
    primary, backup = Scripted(answer(5.0, "xy")), Scripted(answer(0.05))
    told = run_race(primary, backup)
    assert told.client.got == COMPLETE
    assert backup.streams[0].opened_s == pytest.approx(0.1)
    assert primary.streams[0].closed_s == pytest.approx(0.15)
    assert told.report.result is Result.BACKUP_WON
    assert [attempt.outcome for attempt in told.report.attempts] == [Outcome.LOST, Outcome.FINISHED]
    assert [attempt.role for attempt in told.report.attempts] == [Role.PRIMARY, Role.BACKUP]
    assert sum(isinstance(event, HedgeFired) for event in told.events) == 1
    assert told.client.headers[b"x-ttft-attempts"] == b"2"


def test_headers_and_preamble_do_not_win() -> None:
    """A backup that has sent headers and a role is still beaten by the first content of the primary."""
    primary, backup = Scripted(answer(0.3)), Scripted([(0.001, "headers"), (0.001, ROLE), (9.0, text("x"))])
    told = run_race(primary, backup)
    assert told.report.winner == "a"
    assert told.report.result is Result.BACKUP_LOST
    assert backup.streams[0].closed_s == pytest.approx(0.3)


def test_a_policy_that_takes_headers_for_an_answer_never_races_a_flushing_server() -> None:
    """With the `headers` policy headers stop the timer, so a server that flushes immediately is never hedged."""
    hedge = default_hedging(policy=Policy.QUANTILE, answered_by=FirstEvent.HEADERS, budget=1.0, cold_start_delay_s=0.1)
    told = run_race(Scripted(answer(5.0)), Scripted(answer(0.01)), hedge=hedge)
    assert told.report.result is Result.PRIMARY


def test_a_client_that_leaves_cancels_every_attempt() -> None:
    """While waiting and in mid-stream alike, every upstream connection is closed in the same instant."""
    for at_s in (0.05, 0.15, 0.505):

        def during(race: Race, _client: RecordingClient, pools: list[Pool], at_s: float = at_s) -> None:
            del pools
            race._runtime.loop.call_at(at_s, race.client_gone)

        told = run_race(Scripted(answer(0.5)), Scripted(answer(3.0)), during=during)
        assert told.client.ends == 0
        assert told.report.error == "client_gone"
        assert told.end_s == pytest.approx(at_s, abs=0.002)


def test_budget_denies_and_asks_again() -> None:
    """Without credit no backup starts; the reason is emitted once and sent to the client."""
    hedge = default_hedging(policy=Policy.STATIC, static_delay_s=0.1, budget=0.0)
    told = run_race(Scripted(answer(2.0)), Scripted(answer(0.01)), hedge=hedge)
    assert told.report.result is Result.DENIED
    assert told.report.denials == (Denial.BUDGET,)
    assert sum(isinstance(event, HedgeDenied) for event in told.events) == 1
    assert told.client.headers[b"x-ttft-denied"] == b"budget"


def test_requests_that_may_not_be_hedged_are_not() -> None:
    """A reason against hedging keeps a late request alone."""
    told = run_race(Scripted(answer(2.0)), Scripted(answer(0.01)), facts=RequestFacts(hedge_off=Denial.OFF))
    assert len(told.report.attempts) == 1


@pytest.mark.parametrize(
    ("others", "hedge", "facts", "why"),
    [
        (1, HEDGED, RequestFacts(hedge_off=Denial.OFF), Denial.OFF),
        (1, OFF, RequestFacts(), Denial.OFF),
        (0, HEDGED, RequestFacts(), Denial.ONE_REPLICA),
    ],
)
def test_what_forbids_hedging_is_told(others: int, hedge: HedgeParameters, facts: RequestFacts, why: Denial) -> None:
    """If no delay is set the report has the reason, late or not."""
    told = run_race(*(Scripted(answer(0.05)) for _ in range(1 + others)), hedge=hedge, facts=facts)
    assert (told.report.never_hedged, told.report.attempts[0].hedge_after_s) == (why, None)


def test_fallbacks_answer_only_when_the_pool_is_used_up() -> None:
    """A fallback is asked after every replica has failed, never because one is slow."""
    down = status(0.01, 503)
    told = run_race(Scripted(down), Scripted(down), fallbacks=[Scripted(answer(0.01))])
    assert told.report.winner == "c"
    slow = run_race(Scripted(answer(1.0)), fallbacks=[Scripted(answer(0.01))])
    assert slow.report.winner == "a"
    assert slow.report.result is Result.PRIMARY


def test_tries_are_bounded_in_number_and_pace() -> None:
    """At most four upstream tries a request, and three in three seconds."""
    down = [Scripted(status(0.01, 503)) for _ in range(6)]
    told = run_race(*down, hedge=OFF)
    opened = sorted(stream.opened_s for endpoint in down for stream in endpoint.streams)
    assert len(opened) == 4
    assert opened[3] - opened[0] >= 3.0
    assert told.client.error is not None
    assert (told.client.error.status, told.client.error.should_retry) == (503, False)


def test_a_silent_replica_is_overdue_then_given_up() -> None:
    """After ttft_timeout another attempt starts; the last one is given up after ttft_timeout_last."""
    told = run_race(Scripted(SILENT), Scripted(answer(0.5)), hedge=OFF)
    assert told.report.winner == "b"
    assert told.report.ttft_s == pytest.approx(10.5, abs=0.01)
    assert told.report.attempts[0].outcome is Outcome.TTFT_TIMEOUT
    alone = run_race(Scripted(SILENT), hedge=OFF)
    assert alone.client.error is not None
    assert alone.client.error.status == 504
    assert alone.end_s == pytest.approx(120, abs=0.1)


def test_a_long_wait_gets_signs_of_life_only_for_streams() -> None:
    """A streaming client gets a keep-alive after 15 s and every 15 s; a non-streaming one gets none."""
    timeouts = default_timeouts(ttft_failover_s=1000, ttft_max_s=1000)
    assert run_race(Scripted(answer(50)), timeouts=timeouts).client.alive_s == pytest.approx([15, 30, 45])
    assert run_race(Scripted(answer(50)), timeouts=timeouts, streaming=False).client.alive_s == []


def test_a_slow_client_is_no_stall() -> None:
    """While the client does not read, silence is no stall of the upstream."""

    def during(race: Race, _client: RecordingClient, _pools: list[Pool]) -> None:
        race._runtime.loop.call_at(0.5, race.pause)
        race._runtime.loop.call_at(70, race.resume)

    steps: list[Step] = [(0.01, "headers"), (0.01, text("a")), (75, text("b")), (75, FINISH), (75, None)]
    told = run_race(Scripted(steps), during=during)
    assert told.client.got == b"ab<stop>"


def test_the_whole_request_has_a_limit() -> None:
    """A stream that trickles for ever ends with an error after total_timeout."""
    drip: list[Step] = [(float(i), text("x")) for i in range(1, 700)]
    told = run_race(Scripted(drip))
    assert told.end_s == pytest.approx(600, abs=0.01)
    assert told.client.error is not None


def test_a_clients_own_deadline_is_kept() -> None:
    """The caller's deadline limits a whole answer, or each silence of a stream; its read timeout the keep-alives."""
    drip: list[Step] = [(float(i), text("x")) for i in range(1, 700)]
    patient = RequestFacts(deadline_s=30.0)
    assert run_race(Scripted(drip), facts=patient, streaming=False).end_s == pytest.approx(30, abs=0.01)
    assert run_race(Scripted(drip), facts=patient).end_s == pytest.approx(600, abs=0.01)
    reading = RequestFacts(deadline_s=20.0, read_timeout_s=5.0)
    assert run_race(Scripted(answer(10)), facts=reading).client.alive_s == pytest.approx([4, 8])
    impatient = RequestFacts(deadline_s=5.0)
    told = run_race(Scripted(SILENT), Scripted(answer(1.0)), hedge=OFF, facts=impatient, streaming=False)
    assert told.report.ttft_s == pytest.approx(3.5, abs=0.01)


def test_losers_are_censored_and_never_count_against_a_replica() -> None:
    """A loser adds a censored sample, no event, and no signal to its breaker."""
    told = run_race(Scripted(answer(5.0)), Scripted(answer(0.05)))
    pool = told.pools[0]
    first = pool.replicas[0]
    ttft = pool.learning.ttft
    assert (ttft["a"].event_count(1.0), ttft["a"].count(1.0)) == (0, 1)
    assert (ttft["b"].event_count(1.0), ttft["b"].count(1.0)) == (1, 1)
    assert first.breaker.state is BreakerState.CLOSED
    assert first.breaker.failures == 0


@pytest.mark.parametrize("method", ["begin", "pick", "delay_s", "decide", "on_content", "on_end", "on_sent"])
def test_a_part_that_raises_costs_no_answer(method: str) -> None:
    """An exception in any part of the brain fails no request; it is counted."""

    def prepare(pools: list[Pool]) -> None:
        def broken(*_args: object, **_named: object) -> None:
            raise ZeroDivisionError

        setattr(pools[0].picker if method == "pick" else pools[0], method, broken)

    told = run_race(Scripted(answer(1.0)), Scripted(answer(0.05)), prepare=prepare, counted=False)
    assert told.client.got == COMPLETE
    assert any(isinstance(event, ComponentFailed) for event in told.events)


def test_two_hedges_when_two_are_allowed() -> None:
    """With max_hedges 2 a late backup is raced as well, and all but one are cancelled."""
    hedge = default_hedging(policy=Policy.STATIC, static_delay_s=0.1, budget=1.0, max_hedges=2)
    told = run_race(Scripted(answer(5.0)), Scripted(answer(5.0)), Scripted(answer(0.05)), hedge=hedge)
    assert told.report.winner == "c"
    assert [attempt.outcome for attempt in told.report.attempts] == [Outcome.LOST, Outcome.LOST, Outcome.FINISHED]


def test_an_answer_that_makes_no_sense_is_one_failed_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a client cannot assemble the answer, the request is reported once, with the client's error."""
    error = UpstreamFailed("the pieces do not fit", status=502, code="upstream_protocol_error")

    def during(race: Race, client: RecordingClient, _pools: list[Pool]) -> None:
        monkeypatch.setattr(client, "finish", lambda: race.give_up(error))

    told = run_race(Scripted(answer(0.05)), streaming=False, during=during)
    assert told.client.error is error
    assert (told.report.status, told.report.error) == (502, "upstream_protocol_error")
    assert told.report.winner == "a"


@pytest.mark.parametrize(("code", "outcome"), [(429, Outcome.RATE_LIMITED), (400, Outcome.CLIENT_ERROR)])
def test_what_an_overdue_replica_answers_is_what_counts(code: int, outcome: Outcome) -> None:
    """A late 429 cools its replica down and a late 400 is the caller's: neither is a timeout to the breaker."""
    overdue = Scripted(status(12.0, code, retry_after_s=60.0))
    told = run_race(overdue, Scripted(answer(5.0)), hedge=OFF)
    assert told.report.attempts[0].outcome is outcome
    breaker = told.pools[0].replicas[0].breaker
    assert breaker.failures == 0
    assert (breaker.cooling_until_s > 60.0) is (code == 429)


def test_an_answer_that_comes_whole_is_asked_for_once() -> None:
    """Without a stream there is no first token to be late: only the total time ends the wait."""
    told = run_race(Scripted(answer(200.0)), Scripted(answer(0.01)), hedge=OFF, streaming=False, assemble=False)
    assert (told.report.status, told.report.winner, len(told.report.attempts)) == (200, "a", 1)
    told = run_race(Scripted(SILENT), Scripted(answer(0.01)), hedge=OFF, streaming=False, assemble=False)
    assert told.report.status == 504
    assert told.end_s == pytest.approx(default_timeouts().total_s)


def test_an_answer_that_comes_as_a_whole_teaches_nothing_of_first_tokens() -> None:
    """The time of a whole body is no TTFT: nothing is learned from it."""
    told = run_race(
        Scripted(answer(5.0)), Scripted(answer(0.05)), facts=RequestFacts(timed=False, hedge_off=Denial.OFF)
    )
    assert told.pools[0].learning.ttft["a"].count(1.0) == 0
    assert told.pools[0].learning.predictor.predict("a", 0.0, 0.0, 10.0) is None
