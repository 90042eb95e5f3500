"""Replicas that reject the request mode, which the gateway has chosen: streaming, or its options."""

from scripted import Scripted, Step, answer, run_race, status
from ttft_gateway.apis.errors import BadStatus, RequestModeRejected

REJECTED: list[Step] = [(0.01, RequestModeRejected(BadStatus("no stream", status=400, param="stream")))]


def test_the_failure_of_the_request_is_the_error() -> None:
    """A client gets the failure of the request, although its last attempt was rejected for its mode."""
    told = run_race(Scripted(status(0.01, 500)), Scripted(REJECTED, REJECTED, REJECTED))
    assert told.client.error is not None
    assert told.client.error.status == 500


def test_each_replica_may_reject_the_mode_first() -> None:
    """Three replicas are asked in another mode, because attempts that never began do not count as a burst."""
    failing = [Scripted(REJECTED, status(0.01, 500)) for _ in range(2)]
    told = run_race(*failing, Scripted(REJECTED, answer(0.01)))
    assert (told.report.winner, len(told.report.attempts)) == ("c", 6)
