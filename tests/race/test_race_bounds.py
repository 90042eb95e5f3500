"""Bounds and rules of a race where two of them meet: lateness and failure, waits and deadlines, backups and bursts."""

import asyncio
import itertools

import pytest

from defaults import default_hedging, default_timeouts
from gateway.race.context import Caller, Model, Runtime
from gateway.race.deadlines import TimerQueue
from gateway.race.race import Race
from running import run_virtual
from scripted import DONE, RecordingClient, Scripted, Step, answer, run_race, status
from ttft_gateway.apis.base import Api, Call, Frame, FrameKind
from ttft_gateway.apis.errors import ConnectError
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

OFF = default_hedging(policy=Policy.OFF)
BIG = RequestFacts(prompt_tokens=1000.0)
SILENT: list[Step] = [(0.001, "headers")]
REFUSED: list[Step] = [(0.001, ConnectError("refused"))]


def test_what_is_overdue_is_not_waited_for_while_others_may_be_tried() -> None:
    """If the attempt that replaces an overdue one fails, the next is sent immediately, not after 120 s."""
    told = run_race(Scripted(SILENT), Scripted(REFUSED), Scripted(answer(0.1)), hedge=OFF)
    assert told.report.winner == "c"
    assert told.report.ttft_s == pytest.approx(10.1, abs=0.01)
    assert [attempt.outcome for attempt in told.report.attempts][:2] == [Outcome.TTFT_TIMEOUT, Outcome.FAILED]


def test_a_failed_backup_is_no_reason_to_hurry() -> None:
    """A primary that is not overdue is waited for when a replica fails a backup: its extra load is not made up for."""
    told = run_race(Scripted(answer(5.0)), Scripted(status(0.001, 503)), Scripted(answer(0.1)))
    assert told.report.winner == "a"
    assert len(told.report.attempts) == 2


def test_backups_keep_to_the_bound_on_bursts() -> None:
    """Three attempts in three seconds, and the fourth may not be a backup before that either."""
    down = status(0.1, 500)
    replicas = [Scripted(down), Scripted(down), Scripted(SILENT), Scripted(answer(0.1))]
    told = run_race(*replicas)
    assert [attempt.start_s for attempt in told.report.attempts] == pytest.approx([0.0, 0.1, 0.2, 3.0])
    assert told.report.winner == "d"


@pytest.mark.parametrize("streaming", [True, False])
def test_a_wait_for_a_provider_is_no_longer_than_the_client_waits(streaming: bool) -> None:
    """A Retry-After that ends after the caller's deadline is not waited out: the caller gets the 429 immediately."""

    def prepare(pools: list[Pool]) -> None:
        pools[0].replicas[0].breaker.cool_down(2.5)

    facts = RequestFacts(deadline_s=1.0)
    told = run_race(Scripted(answer(0.1)), streaming=streaming, facts=facts, prepare=prepare)
    assert told.client.error is not None
    assert (told.client.error.status, told.client.error.retry_after_s, told.end_s) == (429, 2.5, 0.0)


@pytest.mark.parametrize("read_timeout_s", [5e-324, 0.001, 1e308])
def test_signs_of_life_are_bounded_whatever_a_client_says(read_timeout_s: float) -> None:
    """A client with a timeout of a millisecond gets ten comments a second, not a thousand."""
    told = run_race(Scripted(answer(5.0)), facts=RequestFacts(read_timeout_s=read_timeout_s))
    assert told.client.finished
    assert len(told.client.alive_s) <= 51


@pytest.mark.parametrize(("deadline_s", "outcome"), [(0.2, Outcome.LOST), (21.0, Outcome.TTFT_TIMEOUT)])
def test_an_impatient_client_counts_against_no_replica(deadline_s: float, outcome: Outcome) -> None:
    """Only `ttft_failover` makes a replica late; a shorter timeout of the client does not."""
    silent = [Scripted(SILENT), Scripted(SILENT)]
    told = run_race(*silent, streaming=False, facts=RequestFacts(deadline_s=deadline_s), hedge=OFF)
    assert told.client.error is not None
    assert [attempt.outcome for attempt in told.report.attempts] == [outcome, Outcome.LOST]
    failures = [replica.breaker.failures for replica in told.pools[0].replicas]
    assert failures == [int(outcome is Outcome.TTFT_TIMEOUT), 0]


def test_another_models_word_on_a_request_does_not_end_its_race() -> None:
    """A fallback's 400 is final only if nothing else may answer: the requested model may well accept the request."""
    slow, strict = Scripted(answer(11.0)), Scripted(status(0.1, 400))
    told = run_race(slow, fallbacks=[strict], hedge=OFF)
    assert told.report.winner == "a"
    told = run_race(Scripted(status(0.1, 501)), fallbacks=[strict], hedge=OFF)
    assert told.client.error is not None
    assert told.client.error.status == 400


def test_a_siblings_word_on_a_request_ends_its_race() -> None:
    """An overdue replica is of the same model: its sibling's 400 is the answer, immediately."""
    told = run_race(Scripted(SILENT), Scripted(status(0.1, 400)), hedge=OFF)
    assert told.client.error is not None
    assert told.client.error.status == 400
    assert told.end_s == pytest.approx(10.1, abs=0.01)


def test_a_refusal_leaves_nothing_waiting() -> None:
    """A replica that answers with a policy refusal is neither busy with it nor late for it afterwards."""
    refusal = Frame(FrameKind.REFUSAL, b"I cannot")
    told = run_race(Scripted([(0.1, "headers"), (0.1, refusal), (0.2, DONE), (0.2, None)]), Scripted(SILENT), facts=BIG)
    pool = told.pools[0]
    assert told.report.attempts[0].outcome is Outcome.MODEL_REFUSAL
    assert pool.pending_tokens(pool.replicas[0]) == 0
    assert pool.loads.of[pool.replicas[0]].stalls.overdue_s(1e6) == 0


def test_replicas_that_refuse_go_on_being_asked() -> None:
    """Any number of refusals does not make a replica suspect: they are no samples of its TTFT."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        refusal = Frame(FrameKind.REFUSAL, b"I cannot")
        refusing = Scripted([(0.1, "headers"), (0.1, refusal), (0.2, DONE), (0.2, None)])
        pool = Pool("m", [Replica("a", refusing), Replica("b", Scripted(answer(0.1)))], OFF)
        model = Model("m", [pool], default_timeouts())
        call = Call(Api.CHAT, b"{}", {}, 1, "m", streaming=True)
        runtime = Runtime(loop, lambda _event: None, itertools.cycle([0.0, 0.5]).__next__, TimerQueue(loop))
        for n in range(40):
            client = RecordingClient()
            Race(model, call, BIG, client, Caller(f"req_{n}", "key", loop.time()), runtime).start()
            await client.over.wait()
            await asyncio.sleep(1.0)
        assert not pool.loads.is_suspect(pool.replicas[0], loop.time())
        assert len(refusing.streams) >= 10

    run_virtual(main())
