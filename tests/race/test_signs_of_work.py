"""Races that a sign of work decides: the queue of a thinking model is hedged, its reasoning is not."""

import asyncio
import json
from collections.abc import Callable

import pytest

from defaults import default_hedging, default_timeouts
from gateway.events import Role
from gateway.observe.logs import RequestLog
from gateway.race.context import RecoveryMode
from gateway.race.race import Race
from pooled import Seen, send
from scripted import DONE, FINISH, ROLE, RecordingClient, Scripted, Step, run_race, text
from ttft_gateway.apis.base import Frame, FrameKind, Phase
from ttft_gateway.apis.errors import ConnectError, ConnectionCut
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Denial, Outcome
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool

WORK = Frame(FrameKind.WORK, b"<thinking>", phase=Phase.THINKING)
THOUGHT_S = 60.0
UNHEDGED = default_hedging(policy=Policy.OFF)


def thinks(sign_s: float, thought_s: float = THOUGHT_S) -> list[Step]:
    """Headers immediately, a sign of work, silence, and one token of text."""
    end_s = sign_s + thought_s
    return [
        (0.001, "headers"),
        (0.001, ROLE),
        (sign_s, WORK),
        (end_s, text("a")),
        (end_s, FINISH),
        (end_s, DONE),
        (end_s, None),
    ]


def learned(after_headers_s: float = 0.3) -> Callable[[list[Pool]], None]:
    """Prepare pools that have seen hidden reasoning, and three signs of every replica."""

    def prepare(pools: list[Pool]) -> None:
        for pool in pools:
            pool.first_token.add_answer(hidden=True)
            for replica in pool.replicas * 3:
                pool.on_work(Seen(replica, 0.0, headers_s=0.0), None, after_headers_s)

    return prepare


def echoes(replica: str) -> Callable[[list[Pool]], None]:
    """Prepare pools of which one replica sends its signs with its headers."""

    def prepare(pools: list[Pool]) -> None:
        learned()(pools)
        for _ in range(40):
            pools[0].first_token.add_sign(replica, None, 0.0)

    return prepare


def test_the_queue_is_hedged_and_the_thought_is_not() -> None:
    """The backup begins to work first, and wins; nothing is started in the minute of its thought."""
    result = run_race(Scripted(thinks(5.0)), Scripted(thinks(0.2)), prepare=learned())
    primary, backup = result.report.attempts
    assert (primary.outcome, backup.outcome) == (Outcome.LOST, Outcome.FINISHED)
    assert primary.end_s == pytest.approx(0.3)  # at the backup's sign
    assert backup.role is Role.BACKUP
    times_s = [backup.start_s, backup.work_s, backup.content_s, result.report.work_s, result.report.ttft_s]
    assert times_s == pytest.approx([0.1, 0.2, 60.2, 0.3, 60.3])
    assert result.client.got == b"<role><thinking>a<stop><done>"


def test_a_primary_that_works_is_left_alone() -> None:
    """With its sign in time there is one attempt, however long it thinks: no hedge, no failover at its timeouts."""
    replicas = Scripted(thinks(0.05, 500.0)), Scripted(thinks(0.05))
    result = run_race(*replicas, prepare=learned(), timeouts=default_timeouts(ttft_failover_s=10, total_s=600))
    assert len(result.report.attempts) == 1
    assert result.client.finished
    assert result.client.begun_s == pytest.approx(500.05)  # nothing was sent before, so another replica could follow
    assert len(result.client.alive_s) > 30


def test_an_echoed_sign_decides_nothing() -> None:
    """A server that sends the sign with its headers is not believed: unhedged, for a reason that is named."""
    result = run_race(Scripted(thinks(0.001)), Scripted(thinks(0.001)), prepare=learned(after_headers_s=0.001))
    (attempt,) = result.report.attempts[:1]
    assert attempt.work_s is None
    assert result.report.never_hedged is Denial.HIDDEN_REASONING


def test_a_backup_goes_only_where_signs_are_informative() -> None:
    """A replica without informative signs could win only after its whole reasoning."""
    replicas = Scripted(thinks(5.0)), Scripted(thinks(0.0)), Scripted(thinks(0.2))
    result = run_race(*replicas, prepare=echoes("b"))
    assert [attempt.replica for attempt in result.report.attempts] == ["a", "c"]


def test_a_backup_stays_within_the_boundary_of_its_request() -> None:
    """A replica without informative signs is excluded; its boundary is not one that the request was sent into."""

    def prepare(pools: list[Pool]) -> None:
        echoes("b")(pools)
        for replica, boundary in zip(pools[0].replicas, ("eu", "us", "us"), strict=True):
            replica.boundary = boundary

    result = run_race(Scripted(thinks(5.0)), Scripted(thinks(0.0)), Scripted(thinks(0.2)), prepare=prepare)
    assert [attempt.replica for attempt in result.report.attempts] == ["a"]


def test_one_replica_with_signs_is_not_hedged_for_a_named_reason() -> None:
    """No other replica could win with a sign: the denial and the reason shown beforehand are the same."""
    result = run_race(Scripted(thinks(5.0)), Scripted(thinks(0.0)), prepare=echoes("b"))
    assert result.report.denials == (Denial.HIDDEN_REASONING,)
    (pool,) = result.pools
    assert pool.never_hedged(pool.replicas[0]) is Denial.HIDDEN_REASONING


def test_a_failure_after_the_sign_is_invisible_to_the_client() -> None:
    """The sign was not sent on, so the request is tried elsewhere and the client reads one whole answer."""
    cut: list[Step] = [*thinks(0.05)[:3], (20.0, ConnectError("cut"))]
    result = run_race(Scripted(cut), Scripted(thinks(0.05, 1.0)), prepare=learned())
    assert [attempt.role for attempt in result.report.attempts] == [Role.PRIMARY, Role.FAILOVER]
    assert result.client.got == b"<role><thinking>a<stop><done>"


def test_a_failure_after_the_sign_falls_back_to_a_complete_empty_answer() -> None:
    """An answer without content that was complete before the sign is held in reserve until there is a better one."""
    empty: list[Step] = [(0.001, "headers"), (0.2, FINISH), (0.2, DONE), (0.2, None)]
    fails: list[Step] = [*thinks(0.2)[:3], (5.0, ConnectError("cut"))]
    result = run_race(Scripted(empty), Scripted(fails), prepare=learned())
    assert [attempt.outcome for attempt in result.report.attempts] == [Outcome.EMPTY, Outcome.FAILED]
    assert result.client.finished


def test_a_refusal_after_the_sign_releases_its_prompt_once() -> None:
    """The prompts of other attempts still count as load of the replica."""
    refused = Frame(FrameKind.REFUSAL, b"no")
    steps: list[Step] = [*thinks(0.05)[:3], (1.0, refused), (1.0, FINISH), (1.0, DONE), (1.0, None)]
    facts = RequestFacts(prompt_tokens=1_000.0)

    def load(_race: Race, _client: RecordingClient, pools: list[Pool]) -> None:
        send(pools[0], 0, facts=facts)

    result = run_race(Scripted(steps), prepare=learned(), facts=facts, during=load, counted=False)
    assert result.pools[0].pending_tokens(result.pools[0].replicas[0]) == 1_000.0


@pytest.mark.parametrize(("pinged", "attempts"), [(True, 1), (False, 2)])
def test_a_thought_may_be_as_silent_as_configured(*, pinged: bool, attempts: int) -> None:
    """Pings are signs of life; without any event for `stall_thinking` the attempt has failed."""
    silent = thinks(0.05, 150.0)
    pings: list[Step] = [(30.0 * i, Frame(FrameKind.PREAMBLE, b"")) for i in range(1, 5)] if pinged else []
    primary = Scripted([*silent[:3], *pings, *silent[3:]])
    timeouts = default_timeouts(stall_thinking_s=40.0)
    result = run_race(primary, Scripted(thinks(0.05, 1.0)), prepare=learned(), timeouts=timeouts)
    assert len(result.report.attempts) == attempts
    assert result.client.finished


def test_silence_after_the_start_of_a_text_is_a_stall() -> None:
    """Such a sign announces text within `timeouts.stall`; only reasoning may be silent for minutes."""
    begins_text = Frame(FrameKind.WORK, b'data: {"type":"content_block_start","content_block":{"type":"text"}}\n\n')
    hangs: list[Step] = [(0.001, "headers"), (0.05, begins_text), (5_000.0, None)]
    result = run_race(Scripted(hangs), Scripted(thinks(0.05, 1.0)), prepare=learned(), streaming=False)
    assert [attempt.outcome for attempt in result.report.attempts] == [Outcome.TTFT_TIMEOUT, Outcome.FINISHED]
    assert result.report.attempts[1].start_s == pytest.approx(20.05)


def chunk(word: bytes, finish: bytes = b"null") -> bytes:
    """An event of a chat completion."""
    return b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":%b}]}\n\n' % (word, finish)


def test_a_recovery_may_think_as_long_as_the_first_attempt() -> None:
    """After its sign of work it is given the time of its phase; the log has the sign of the first attempt."""
    sign = Frame(FrameKind.WORK, b"", phase=Phase.THINKING)

    def thought(end_s: float, words: bytes, *ending: Step) -> list[Step]:
        return [(0.001, "headers"), (0.05, sign), (end_s, Frame(FrameKind.CONTENT, chunk(words))), *ending]

    finish: list[Step] = [(61.0, Frame(FrameKind.FINISH, chunk(b"", b'"stop"'))), (61.0, DONE), (61.0, None)]
    replicas = Scripted(thought(5.0, b"a", (5.1, ConnectionCut("cut")))), Scripted(thought(60.0, b"ab", *finish))
    result = run_race(*replicas, prepare=learned(), hedge=UNHEDGED, recovery=RecoveryMode.REPLAY)
    assert [attempt.role for attempt in result.report.attempts] == [Role.PRIMARY, Role.RECOVERY]
    assert result.client.finished
    assert (result.report.work_s, result.report.ttft_s) == pytest.approx((0.05, 5.0))


def test_a_broken_answer_reports_its_sign_beside_its_first_token() -> None:
    """As the log of an answer that was cut has `ttft_ms`, it has `work_ms`."""
    cut: list[Step] = [*thinks(0.05, 1.0)[:4], (2.0, ConnectionCut("cut"))]
    report = run_race(Scripted(cut), prepare=learned()).report
    assert (report.work_s, report.ttft_s) == pytest.approx((0.05, 1.05))


def test_a_late_sign_ends_the_race_with_a_failover_under_way() -> None:
    """The overdue primary shows work after a second attempt has begun: that one is cancelled, and no replica failed."""
    replicas = Scripted(thinks(12.0)), Scripted(thinks(30.0))
    result = run_race(*replicas, prepare=learned(), timeouts=default_timeouts(ttft_failover_s=10.0), hedge=UNHEDGED)
    assert [attempt.outcome for attempt in result.report.attempts] == [Outcome.FINISHED, Outcome.LOST]


def test_the_client_may_leave_during_the_thought() -> None:
    """Everything is cancelled, once."""

    def leave(race: Race, _client: RecordingClient, _pools: list[Pool]) -> None:
        asyncio.get_running_loop().call_later(30.0, race.client_gone)

    result = run_race(Scripted(thinks(0.05)), Scripted(thinks(0.05)), prepare=learned(), during=leave)
    assert [attempt.outcome for attempt in result.report.attempts] == [Outcome.CLIENT_GONE]


def test_signs_and_contents_are_not_mixed() -> None:
    """The change of the timed event restarts the learning: a law of minutes does not hold for signs."""

    def prepare(pools: list[Pool]) -> None:
        learning = pools[0].learning
        for number in range(40):
            learning.add_content("a", 60.0, 60.0, float(number))
        learned()(pools)

    result = run_race(Scripted(thinks(0.05)), Scripted(thinks(0.05)), prepare=prepare)
    assert result.pools[0].learning.ttft["a"].quantile(0.99, 70.0) == pytest.approx(0.05, rel=0.02)


def test_the_log_names_the_sign_that_was_timed() -> None:
    """`work_ms` in addition to `ttft_ms`, for the request and its attempt; absent where content was timed."""
    batches: list[bytes] = []
    log = RequestLog(batches.append, lambda: 0.0)
    races = (run_race(Scripted(thinks(0.05)), prepare=learned()), run_race(Scripted(thinks(0.05))))
    log.on_events([race.report for race in races])
    timed, untimed = map(json.loads, batches[0].splitlines())
    assert (timed["work_ms"], timed["ttft_ms"]) == (50.0, 60_050.0)
    assert timed["attempts"][0]["work_ms"] == 50.0
    assert "work_ms" not in untimed
    assert "work_ms" not in untimed["attempts"][0]


def test_a_thought_without_signs_is_not_tried_twice() -> None:
    """Hidden reasoning in chat completions: no failover at `ttft_failover`, and no error at `ttft_max`."""

    def prepare(pools: list[Pool]) -> None:
        pools[0].first_token.add_answer(hidden=True)
        for number in range(40):
            pools[0].learning.predictor.add("a", 60.0, 0.0, 0.0, float(number))

    silent: list[Step] = [step for step in thinks(0.1, 150.0) if step[1] is not WORK]
    timeouts = default_timeouts(ttft_failover_s=10.0, ttft_max_s=120.0)
    result = run_race(Scripted(silent), Scripted(silent), prepare=prepare, timeouts=timeouts)
    assert [attempt.outcome for attempt in result.report.attempts] == [Outcome.FINISHED]


def test_a_thought_without_signs_is_tried_again_when_it_is_overdue() -> None:
    """Three times the usual time to content: a replica that holds requests does not keep them for ten minutes."""

    def prepare(pools: list[Pool]) -> None:
        pools[0].first_token.add_answer(hidden=True)
        for number in range(40):
            pools[0].learning.predictor.add("a", 20.0, 0.0, 0.0, float(number))

    hangs: list[Step] = [(0.01, "headers"), (2_000.0, None)]
    quick = [step for step in thinks(0.1, 20.0) if step[1] is not WORK]
    result = run_race(Scripted(hangs), Scripted(quick), prepare=prepare)
    assert [attempt.outcome for attempt in result.report.attempts] == [Outcome.TTFT_TIMEOUT, Outcome.FINISHED]
    assert result.report.attempts[1].start_s == pytest.approx(60.0, rel=0.02)


def test_the_first_thought_of_all_is_not_hedged() -> None:
    """Before any answer is complete, a sign apart from the headers ends hedging; one with the headers does not."""
    for sign_s, attempts in ((0.05, 1), (0.002, 2)):
        result = run_race(Scripted(thinks(sign_s, 5.0)), Scripted(thinks(sign_s, 5.0)))
        assert len(result.report.attempts) == attempts
