"""The caller's deadline of a stream: for its first content, and for each silence of content; in virtual time."""

import math
from typing import Any

import pytest

from defaults import default_hedging, default_timeouts
from gateway.events import RecoveryResult
from gateway.race.context import RecoveryMode
from gateway.race.deadlines import AttemptDeadlines
from gateway.race.race import Race
from recovering import ask, run
from scripted import DONE, FINISH, ROLE, RecordingClient, Scripted, Step, answer, run_race, status, text
from ttft_gateway.apis.base import Frame, FrameKind
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool

OFF = default_hedging(policy=Policy.OFF)
IN_TRANSIT_S = 0.02
FACTS = RequestFacts(deadline_s=0.8, read_timeout_s=0.8)
SILENT: list[Step] = [(0.001, "headers")]
WORDS: list[Step] = [(0.001, "headers"), (0.1, text("a")), (0.2, text("b"))]
PING = Frame(FrameKind.PREAMBLE, b"<ping>")


def after(at_s: float) -> list[Step]:
    """The end of an answer."""
    return [(at_s + 0.1, FINISH), (at_s + 0.1, DONE), (at_s + 0.1, None)]


def late(words: list[Step], *more: Step) -> list[Step]:
    """Some words, and what comes after a silence."""
    return [*words, *more]


@pytest.mark.parametrize(
    ("script", "end_s"),
    [
        (SILENT, 0.8),
        (late(SILENT, (0.1, ROLE), (0.5, PING), (0.7, PING)), 0.8),
        (WORDS, 1.0),
        (late(WORDS, (0.5, PING), (0.9, PING)), 1.0),
        (late(WORDS, (0.9, text("c"))), 1.7),
    ],
    ids=["nothing", "signs of life only", "two words", "two words, then signs of life", "a third word in time"],
)
def test_a_stream_ends_at_the_callers_deadline(script: list[Step], end_s: float) -> None:
    """Neither the gateway's keep-alives nor a replica's pings extend it, and no replica is blamed for it."""
    told = run_race(Scripted(script), hedge=OFF, facts=FACTS)
    error = told.client.error
    assert error is not None
    assert (error.status, error.code, error.should_retry) == (504, "upstream_timeout", False)
    assert told.end_s == pytest.approx(end_s + IN_TRANSIT_S, abs=1e-6)
    assert told.client.alive_s or PING.raw in told.client.got, "the client's library has not given up before"
    (attempt,) = told.report.attempts
    assert attempt.outcome is (Outcome.SILENT if told.client.got else Outcome.LOST)
    (replica,) = told.pools[0].replicas
    assert (replica.breaker.failures, replica.breaker.broken) == (0, 0)


def test_a_deadline_without_a_read_timeout_keeps_the_status() -> None:
    """A caller that sends `x-ttft-deadline` is sent nothing before it, so that the error has its status."""
    told = run_race(Scripted(SILENT), hedge=OFF, facts=RequestFacts(deadline_s=0.8))
    assert told.client.error is not None
    assert (told.client.alive_s, told.client.error.status) == ([], 504)


def test_a_longer_deadline_than_the_read_timeout_is_kept_alive() -> None:
    """A caller with a short read timeout may allow more time by `x-ttft-deadline`."""
    told = run_race(Scripted(answer(3.0)), hedge=OFF, facts=RequestFacts(deadline_s=5.0, read_timeout_s=0.8))
    assert told.client.finished
    assert told.client.alive_s == pytest.approx([0.64, 1.28, 1.92, 2.56])


TTFT_ONLY = RequestFacts(deadline_s=0.8, silence_s=math.inf)


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "whole"])
def test_a_limit_on_the_first_content_alone(streaming: bool) -> None:
    """It ends a request without content, in a whole answer too, and no silence after the first content."""
    silent = run_race(Scripted(SILENT), hedge=OFF, facts=TTFT_ONLY, streaming=streaming)
    assert silent.client.error is not None
    assert (silent.client.error.status, silent.client.error.code) == (504, "upstream_timeout")
    assert silent.end_s == pytest.approx(0.8, abs=IN_TRANSIT_S + 1e-6)
    pausing = run_race(
        Scripted([*WORDS, (3.0, text("c")), *after(3.0)]), hedge=OFF, facts=TTFT_ONLY, streaming=streaming
    )
    assert pausing.client.finished


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "whole"])
def test_a_limit_on_the_whole_answer(streaming: bool) -> None:
    """It ends an answer that still has content, and a longer one than configured has no effect."""
    words = [(0.1 * number, text("w")) for number in range(1, 40)]
    facts = RequestFacts(deadline_s=2.0, silence_s=math.inf, total_s=2.0)
    told = run_race(Scripted([*SILENT, *words]), hedge=OFF, facts=facts, streaming=streaming)
    assert told.client.error is not None
    assert told.client.error.status == 504
    assert told.end_s == pytest.approx(2.0)
    assert "within 2 s" in told.client.error.message
    short = default_timeouts(total_s=1.0)
    told = run_race(Scripted([*SILENT, *words]), hedge=OFF, facts=facts, streaming=streaming, timeouts=short)
    assert told.end_s == pytest.approx(1.0)


def test_a_fallback_has_timeouts_of_its_own() -> None:
    """A silent fallback is given up after its own `ttft_max`, and a stream of it may pause for its own `stall`."""
    model, own = default_timeouts(ttft_max_s=90.0), default_timeouts(ttft_failover_s=1.0, ttft_max_s=3.0, stall_s=50.0)
    both: dict[str, Any] = {"hedge": OFF, "timeouts": model, "fallback_timeouts": own}
    failed = Scripted(status(0.5, 503))
    silent = run_race(failed, fallbacks=[Scripted(SILENT)], **both)
    assert silent.client.error is not None
    assert silent.end_s == pytest.approx(4.0, abs=0.2)  # the primary was asked twice
    pausing = run_race(failed, fallbacks=[Scripted([*WORDS, (40.0, text("c")), *after(40.0)])], **both)
    assert pausing.client.finished


def test_another_replica_is_asked_in_time() -> None:
    """At half of the deadline another attempt starts, and its answer comes within the deadline."""
    told = run_race(Scripted(SILENT), Scripted(answer(0.3)), hedge=OFF, facts=FACTS)
    assert told.client.finished
    assert told.report.ttft_s == pytest.approx(0.7, abs=1e-3)
    assert told.pools[0].replicas[0].breaker.failures == 0


def test_a_failure_before_the_deadline_has_its_own_error() -> None:
    """A pause that would end after the deadline is not begun: the caller gets the failure, and may retry."""
    told = run_race(Scripted(late(SILENT, *status(0.78, 503))), hedge=OFF, facts=FACTS)
    assert told.client.error is not None
    assert (told.client.error.status, told.client.error.should_retry) == (503, None)
    assert told.end_s == pytest.approx(0.78)


def test_a_client_that_is_slow_is_not_silent() -> None:
    """While the client does not read, the gateway does not either: that silence is no silence of the replica."""

    def during(race: Race, _client: RecordingClient, _pools: list[Pool]) -> None:
        race._runtime.loop.call_at(0.15, race.pause)
        race._runtime.loop.call_at(5.0, race.resume)

    script = late(WORDS, (5.5, text("c")), (5.5, FINISH), (5.5, DONE), (5.5, None))
    told = run_race(Scripted(script), hedge=OFF, facts=FACTS, during=during)
    assert told.client.finished


STALLS = {"ttft": "100ms", "gap": "10ms", "tokens": 20, "faults": ["stall:10,30s once"]}
STEADY = {"ttft": "100ms", "gap": "10ms", "tokens": 20}


@pytest.mark.parametrize("prefills", [True, False])
def test_a_silent_stream_is_carried_on_in_time(prefills: bool) -> None:
    """At half of the deadline another replica carries the answer on; the silent one is not blamed."""
    told = run(ask(), STALLS, STEADY, prefills=prefills, deadline_s=0.8)
    assert told.read.valid
    assert [attempt.outcome for attempt in told.report.attempts] == [Outcome.SILENT, Outcome.FINISHED]
    (recovery,) = told.report.recoveries
    assert recovery.result is RecoveryResult.RECOVERED
    assert recovery.gap_s < 0.8


def test_a_recovery_that_takes_too_long_ends_at_the_deadline() -> None:
    """The deadline counts from the last content that the client has, whatever the recovery has begun since."""
    slow = {**STEADY, "ttft": "5s"}
    told = run(ask(), STALLS, slow, prefills=True, deadline_s=0.8)
    assert told.read.error == "upstream_timeout"
    last_s = 0.1 + 9 * 0.01
    assert told.report.total_s == pytest.approx(last_s + 0.8 + IN_TRANSIT_S, abs=0.02)


def test_a_silent_stream_goes_on_if_nothing_can_replace_it() -> None:
    """Without another replica a stream is not given up before the deadline, so it may still go on."""
    script = late(WORDS, (0.9, text("c")), (0.9, FINISH), (0.9, DONE), (0.9, None))
    for facts in (FACTS, RequestFacts(deadline_s=0.8, attempts_max=1)):
        others = [] if facts is FACTS else [Scripted(answer(0.1))]
        told = run_race(Scripted(script), *others, hedge=OFF, facts=facts, recovery=RecoveryMode.REPLAY)
        assert told.client.got == b"abc<stop><done>"
        assert len(told.report.attempts) == 1


@pytest.mark.parametrize(
    ("expected_s", "deadline_s", "failover_s"),
    [
        (0.0, None, 10.0),  # unknown: ttft_failover
        (8.0, None, 24.0),  # three times the usual time
        (8.0, 600.0, 24.0),  # the default of OpenAI's SDKs
        (8.0, 30.0, 15.0),  # half of the deadline: another attempt is in time
        (8.0, 12.0, 24.0),  # another attempt would be too late as well
    ],
)
def test_hidden_reasoning_and_a_deadline(expected_s: float, deadline_s: float | None, failover_s: float) -> None:
    """Another attempt starts at half of the deadline, unless the usual time to content is longer than the rest."""
    own_s = 10.0 if deadline_s is None else min(10.0, deadline_s / 2)
    deadlines = AttemptDeadlines(0.0, 10.0, own_s, 120.0)
    deadlines.await_reasoning(expected_s, default_timeouts(), deadline_s)
    assert deadlines.failover_s == failover_s
