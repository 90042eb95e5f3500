"""Requests while this machine is out of files, ports, memory or connections: no replica is blamed."""

import errno
import os
import random

import pytest

from defaults import default_hedging
from gateway.errors import Overloaded
from gateway.events import AttemptFailed, BreakerChanged
from providers.transport.origin import too_many, unreachable
from running import run_virtual
from scripted import Scripted, Step, answer, run_race, status
from traffic import poisson
from ttft_gateway.apis.errors import ConnectError
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import BreakerState, Replica

OFF = default_hedging(policy=Policy.OFF)
NUMBERS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOMEM, errno.ENOBUFS)
ERRORS = {
    **{errno.errorcode[number]: unreachable(OSError(number, os.strerror(number))) for number in NUMBERS},
    "connections": too_many(7),
}
SHORT: list[Step] = [(0.001, ERRORS["EMFILE"])]
GOOD = answer(0.05)


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_a_flood_that_takes_every_file_takes_no_replica_out(error: ConnectError) -> None:
    """After twenty requests without a connection both breakers are closed, and the next request is served."""

    async def main() -> tuple[list[int], set[BreakerState]]:
        failing: list[Step] = [(0.001, error)]
        replicas = [Replica(name, Scripted(failing)) for name in "ab"]
        pool = Pool("m", replicas, OFF)
        ended = await poisson(pool, 20, 5.0, random.Random(1), settle_s=1.0)
        states = {replica.breaker.state for replica in replicas}
        for replica in replicas:
            replica.endpoint = Scripted(GOOD)
        ended += await poisson(pool, 1, 5.0, random.Random(1), settle_s=1.0)
        return [end.status for end in ended], states

    statuses, states = run_virtual(main())
    assert statuses == [503] * 20 + [200]
    assert states == {BreakerState.CLOSED}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_the_caller_learns_of_the_shortage(error: ConnectError) -> None:
    """The answer is a 503 with a Retry-After that names the gateway; the log has an outcome of its own, and no bill."""
    told = run_race(Scripted([(0.001, error)]), hedge=OFF)
    assert isinstance(told.client.error, Overloaded)
    assert told.client.error.message == error.message
    assert told.client.error.message.startswith("the gateway ")
    assert (told.client.error.status, told.client.error.code) == (503, "overloaded")
    assert told.client.error.retry_after_s == 5.0
    assert told.client.error.should_retry is None
    (failed,) = [event for event in told.events if isinstance(event, AttemptFailed)]
    assert (failed.outcome, failed.error) == (Outcome.OUT_OF_RESOURCES, "out_of_resources")
    assert not any(isinstance(event, BreakerChanged) for event in told.events)
    (attempt,) = told.report.attempts
    assert attempt.charge is not None
    assert (attempt.charge.prompt_tokens, attempt.charge.completion_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("scripts", "tried", "expected"),
    [
        ([SHORT, GOOD, GOOD], "ab", 200),  # an idle connection to the other replica
        ([SHORT, SHORT, GOOD], "ab", 503),  # a third attempt would need a file like the second
        ([SHORT], "a", 503),  # no second attempt on the same replica either
        ([SHORT, status(0.01, 500), GOOD], "abc", 200),  # a failure of a replica is tried elsewhere as ever
        ([status(0.01, 500), SHORT, GOOD], "abc", 200),
        ([SHORT, status(0.01, 429)], "abb", 503),  # no 429, because not all replicas are rate-limited
    ],
)
def test_one_other_replica_is_tried(scripts: list[list[Step]], tried: str, expected: int) -> None:
    """A shortage sends a request to one other replica and no further."""
    told = run_race(*[Scripted(script) for script in scripts], hedge=OFF)
    assert "".join(attempt.replica for attempt in told.report.attempts) == tried
    assert told.report.status == expected


def test_a_fallback_has_connections_of_its_own() -> None:
    """The one other replica may belong to a fallback: ports and connections are counted per upstream."""
    told = run_race(Scripted(SHORT), fallbacks=[Scripted(GOOD), Scripted(GOOD)], hedge=OFF)
    assert [attempt.replica for attempt in told.report.attempts] == ["a", "b"]
    assert told.report.status == 200


def test_a_backup_without_a_connection_changes_nothing() -> None:
    """The primary is waited for, and the budget has the backup's tokens again."""
    told = run_race(Scripted(answer(0.5)), Scripted(SHORT))
    assert told.report.winner == "a"
    assert told.report.attempts[1].outcome is Outcome.OUT_OF_RESOURCES
    spared = run_race(Scripted(answer(0.05)), Scripted(SHORT))
    assert told.pools[0].budget.requests.credit == spared.pools[0].budget.requests.credit
