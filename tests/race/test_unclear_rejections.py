"""4xx without an error object, in virtual time: another replica decides whether the request or the replica is wrong."""

import itertools
import random

import pytest

from defaults import default_hedging
from gateway.events import BreakerChanged, Role
from pooled import Seen
from providers.openai.chat import OpenAIChat
from running import run_virtual
from scripted import FINISH, ROLE, Scripted, Step, answer, bare_status, run_race, status
from traffic import poisson
from ttft_gateway.apis.base import Frame, FrameKind
from ttft_gateway.apis.errors import BadStatus
from ttft_gateway.hedging.failures import FailureClass, RetryHint, classify
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.limits.budget import RetryBudget
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import OPEN_S, Replica

OFF = default_hedging(policy=Policy.OFF)
QUICK = answer(0.05)
SILENT: list[Step] = [(0.001, "headers"), (0.001, ROLE)]
REFUSAL = Frame(FrameKind.REFUSAL, b"<no>")
BARE = (400, 402, 403, 404, 405, 410, 413, 421, 422, 424, 426, 431, 451, 499)
BLAMED = FailureClass(Outcome.CLIENT_ERROR, answers=True)
UNCLEAR = FailureClass(Outcome.UNCLEAR_4XX, answers=True, hint=RetryHint.CONFIRM)
OBJECTED = FailureClass(Outcome.UNCLEAR_4XX, answers=True, hint=RetryHint.SIBLING)
OURS = FailureClass(Outcome.UNCLEAR_4XX, ours=True)
PASSED = {400, 413, 415, 422}


@pytest.mark.parametrize("code", BARE)
def test_another_replica_answers_the_request(code: int) -> None:
    """The client gets the other replica's answer, and the first one's rejection counts as wrong."""
    result = run_race(Scripted(bare_status(0.01, code)), Scripted(QUICK), hedge=OFF)
    assert result.client.finished
    assert [(each.outcome, each.role) for each in result.report.attempts] == [
        (Outcome.WRONG_4XX, Role.PRIMARY),
        (Outcome.FINISHED, Role.FAILOVER),
    ]
    rejections = [result.pools[0].rejections(replica) for replica in result.pools[0].replicas]
    assert [len(each.requests) for each in rejections] == [1, 0]


@pytest.mark.parametrize("code", BARE)
def test_two_replicas_that_reject_it_are_right(code: int) -> None:
    """Rejections by all are the answer and count against none; where the request seems at fault, two are enough."""
    replicas = [Scripted(bare_status(0.01, code)) for _ in range(3)]
    result = run_race(*replicas, hedge=OFF)
    assert result.client.error is not None
    assert result.client.error.status == (code if code in PASSED else 502)
    assert result.client.error.code == (None if code in PASSED else "upstream_rejected")
    assert [each.outcome for each in result.report.attempts] == [Outcome.UNCLEAR_4XX] * (2 if code in PASSED else 3)
    assert all(replica.breaker.failures == 0 for replica in result.pools[0].replicas)


def test_a_fallback_decides_where_there_is_no_sibling() -> None:
    """A single replica's rejection is put to the first fallback."""
    result = run_race(Scripted(bare_status(0.01, 402)), fallbacks=[Scripted(QUICK)], hedge=OFF)
    assert result.client.finished
    assert result.report.attempts[0].outcome is Outcome.WRONG_4XX


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_pool_that_rejects_everything_has_a_fallback(code: int) -> None:
    """Rejections of the whole pool lead to the fallback."""
    rejecting = [Scripted(bare_status(0.01, code)) for _ in range(2)]
    result = run_race(*rejecting, fallbacks=[Scripted(QUICK)], hedge=OFF)
    assert result.client.finished


def test_a_short_wait_is_waited_out_after_a_rejection() -> None:
    """A replica that asked for a second is asked again where its sibling rejects the request."""
    limited = Scripted(status(0.01, 429, retry_after_s=1.0), QUICK)
    result = run_race(limited, Scripted(bare_status(0.01, 403)), hedge=OFF)
    assert result.client.finished


@pytest.mark.parametrize("code", [403, 422])
def test_a_rejection_does_not_prevent_a_failover(code: int) -> None:
    """After a rejection and a replica that is silent for 10 s, a third one answers."""
    result = run_race(Scripted(bare_status(0.01, code)), Scripted(SILENT), Scripted(QUICK), hedge=OFF)
    assert result.report.winner == "c"
    assert result.report.ttft_s == pytest.approx(10.1, abs=0.1)


@pytest.mark.parametrize("second", [SILENT, status(0.01, 500)])
def test_a_rejection_that_is_not_confirmed_is_the_answer(second: list[Step]) -> None:
    """A replica that fails or is silent says nothing against the caller's 422."""
    result = run_race(Scripted(bare_status(0.01, 422)), Scripted(second), hedge=OFF)
    assert result.client.error is not None
    assert result.client.error.status == 422
    assert result.end_s < 11.0


def test_second_opinions_use_no_retries() -> None:
    """The requests of one caller that are rejected everywhere take nothing from the retries of all."""
    budget = RetryBudget()
    while budget.take(0.0, unclear=True):
        pass
    assert budget.take(0.0)
    assert not budget.take(0.0, unclear=True)


def test_a_caller_with_prompts_too_large_for_one_replica_harms_no_other_caller() -> None:
    """A replica that answers other requests is not at fault, unless it comes to reject everything."""
    replica = Replica("a", Scripted())
    pool = Pool("m", [replica], OFF)
    pool.on_content(Seen(replica, 0.0, content_s=1.0), 1.0)
    assert [pool.rejections(replica).is_answering(now_s) for now_s in (1.0, 10.9, 11.0)] == [True, True, False]

    def prepare(pools: list[Pool]) -> None:
        pools[0].rejections(pools[0].replicas[0]).on_content(0.0)

    result = run_race(Scripted(bare_status(0.01, 413)), Scripted(QUICK), hedge=OFF, prepare=prepare)
    assert result.report.attempts[0].outcome is Outcome.WRONG_4XX
    assert result.pools[0].rejections(result.pools[0].replicas[0]).requests == {}


def test_a_clear_error_after_an_unclear_one_is_the_answer() -> None:
    """The second replica's own words go to the client."""
    clear = Scripted(status(0.01, 400, "invalid_value"))
    result = run_race(Scripted(bare_status(0.01, 403)), clear, Scripted(QUICK), hedge=OFF)
    assert result.client.error is not None
    assert (result.client.error.status, result.client.error.code) == (400, "invalid_value")
    assert [each.outcome for each in result.report.attempts] == [Outcome.UNCLEAR_4XX, Outcome.CLIENT_ERROR]


def test_a_refusal_of_the_model_proves_nothing() -> None:
    """A firewall and a model's policy may agree about a prompt."""
    refusing = Scripted([(0.02, REFUSAL), (0.03, FINISH), (0.04, None)])
    result = run_race(Scripted(bare_status(0.01, 403)), refusing, hedge=OFF)
    assert result.report.attempts[0].outcome is Outcome.UNCLEAR_4XX


def test_a_backup_that_wins_proves_the_primary_wrong() -> None:
    """The proof does not need a failover."""
    hedged = default_hedging(policy=Policy.STATIC, static_delay_s=0.1, budget=1.0)
    result = run_race(Scripted(bare_status(0.2, 403)), Scripted(answer(0.3)), hedge=hedged)
    assert result.client.finished
    assert [each.outcome for each in result.report.attempts] == [Outcome.WRONG_4XX, Outcome.FINISHED]


def test_the_third_proof_opens_the_breaker() -> None:
    """A replica that rejects what others answer is out after three requests, and its breaker's change is reported."""

    def prepare(pools: list[Pool]) -> None:
        judge = pools[0].rejections(pools[0].replicas[0])
        for number in range(2):
            judge.on_rejected(number, "key", (judge,), 0.0, disproved=True)

    result = run_race(Scripted(bare_status(0.01, 402)), Scripted(QUICK), hedge=OFF, prepare=prepare)
    [changed] = [event for event in result.events if isinstance(event, BreakerChanged)]
    assert (changed.replica, changed.state) == ("a", "open")
    assert result.report.attempts[0].outcome is Outcome.MISCONFIGURED


def test_a_rejecting_replica_is_probed_ever_less_often() -> None:
    """Each probe with a bare 403 that another replica disproves doubles the next wait, up to its bound."""

    async def main() -> list[float]:
        rejecting, good = Scripted(bare_status(0.01, 403)), Scripted(*[answer(0.05)] * 400)
        pool = Pool("m", [Replica("a", rejecting), Replica("b", good)], OFF)
        pool.replicas[0].breaker.trip(0.0)
        await poisson(pool, 300, 5.0, random.Random(1), settle_s=10.0)
        return [stream.opened_s for stream in rejecting.streams]

    probes_s = run_virtual(main())
    waits_s = [after - before for before, after in itertools.pairwise(probes_s) if after - before > 1.0]
    assert [round(wait_s / OPEN_S) for wait_s in waits_s] == [2, 3, 3]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BadStatus("", status=400, kind="invalid_request_error"), FailureClass(Outcome.CLIENT_ERROR, answers=True)),
        (BadStatus("", status=400, kind="BadRequestError"), FailureClass(Outcome.CLIENT_ERROR, answers=True)),
        (BadStatus("", status=422, param="temperature"), FailureClass(Outcome.CLIENT_ERROR, answers=True)),
        (BadStatus("", status=400, kind="invalid_request_error", param="model"), OBJECTED),
        (BadStatus("", status=404, kind="invalid_request_error"), OBJECTED),
        (BadStatus("", status=403, kind="permission_error"), OBJECTED),
        (BadStatus("", status=405, code="not_allowed"), OBJECTED),
        (BadStatus("", status=424, kind="external_connector_error"), OBJECTED),
        (BadStatus("", status=404, kind="not_found_error", param="file_id"), BLAMED),
        (BadStatus("", status=409, kind="conflict_error"), OBJECTED),
        (BadStatus("", status=409), FailureClass(Outcome.FAILED, hint=RetryHint.SAME)),
        (BadStatus("", status=401, kind="auth_error"), OURS),
        (BadStatus("", status=401), OURS),
        (BadStatus("", status=413), FailureClass(Outcome.UNCLEAR_4XX, answers=True, hint=RetryHint.CONFIRM)),
        (BadStatus("", status=402, code="402x"), OURS),
        (BadStatus("", status=424, kind="generation"), FailureClass(Outcome.FAILED, hint=RetryHint.SAME)),
        (BadStatus("", status=403), FailureClass(Outcome.UNCLEAR_4XX)),
    ],
)
def test_an_error_object_decides(error: BadStatus, expected: FailureClass) -> None:
    """An error object that blames the request, the gateway's settings or the engine needs no second opinion."""
    assert classify(error) == expected


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        # engines: an error object, or FastAPI's list with a place in the body
        (400, b'{"error":{"message":"n: too high","type":"BadRequestError","param":null,"code":400}}', BLAMED),
        (400, b'{"error":{"message":"1 validation error","type":"Bad Request","param":null,"code":400}}', BLAMED),
        (400, b'{"object":"error","message":"no messages","type":"Bad Request","param":null,"code":400}', BLAMED),
        (422, b'{"error":"`n` must be 1","error_type":"validation"}', BLAMED),
        (422, b'{"detail":[{"loc":["body","messages",0,"role"],"msg":"Field required","type":"missing"}]}', BLAMED),
        # the gateway's own headers and base_url
        (422, b'{"detail":[{"loc":["header","x-tenant"],"msg":"Field required","type":"missing"}]}', UNCLEAR),
        (422, b'{"detail":[{"loc":["query","api-version"],"msg":"Field required","type":"missing"}]}', UNCLEAR),
        # API gateways and authenticating proxies send these shapes as well as engines
        (400, b'{"detail":"Invalid request"}', UNCLEAR),
        (400, b'{"message":"Invalid request"}', UNCLEAR),
        (400, b'{"error":"Invalid request"}', UNCLEAR),
        (422, b"Failed to deserialize the JSON body into the target type", UNCLEAR),
    ],
)
def test_bodies_of_real_servers(status: int, body: bytes, expected: FailureClass) -> None:
    """A body that names the request's fault is final; another shape costs one request to another replica."""
    assert classify(OpenAIChat().error(status, (), body)) == expected
