"""The consequences of failures: the next step of a request, and the client's error. Pure.

The second half of the table of docs/failover.md in code, and the only place that turns a failure into a step:
ttft_gateway/hedging/failures.py classifies the error, `next_step` decides with the state of the race.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

from gateway.errors import GatewayError, Overloaded, RateLimited, UpstreamFailed
from ttft_gateway.apis.error_reasons import is_too_long
from ttft_gateway.apis.errors import (
    BadStatus,
    ConnectionCut,
    EmptyAnswer,
    ErrorFrame,
    OutOfResources,
    ProtocolError,
    RequestModeRejected,
    TimedOut,
    Unsupported,
    UpstreamError,
)
from ttft_gateway.hedging.failures import FailureClass, RetryHint, asks_others, classify, has_error_object
from ttft_gateway.hedging.outcomes import Outcome

_CLIENT_ERROR = "invalid_request_error"
_SHORTAGE_S = 5.0  # Retry-After of a shortage, as of a full queue without a measured time: its end is unknown
_CODES: dict[type[UpstreamError], str] = {
    ConnectionCut: "upstream_cut",
    EmptyAnswer: "upstream_empty",
    ProtocolError: "upstream_protocol_error",
    ErrorFrame: "upstream_error",
}


def client_error(error: UpstreamError) -> GatewayError:
    """Build the client's error for one upstream failure, with the upstream's message if it concerns the caller."""
    status = error.status
    if isinstance(error, TimedOut):
        return UpstreamFailed(error.message, status=504, code="upstream_timeout", should_retry=False)
    if isinstance(error, OutOfResources):
        return Overloaded(error.message, _SHORTAGE_S)
    if isinstance(error, Unsupported):
        return UpstreamFailed(
            error.message,
            status=error.status or 400,
            kind=_CLIENT_ERROR,
            param=error.param,
            code=error.code or ("unsupported_api" if error.param is None else "unsupported_parameter"),
            details=error.details,
        )
    code = "context_length_exceeded" if is_too_long(error) else None
    if code is not None and status in (None, 500):
        return UpstreamFailed(error.message, status=400, kind=_CLIENT_ERROR, code=code)
    if status is None or not isinstance(error, (BadStatus, ErrorFrame)):
        return UpstreamFailed(error.message, status=502, code=_CODES.get(type(error), "upstream_error"))
    failure = classify(error)
    if failure.ours:
        return UpstreamFailed(
            f"the upstream rejected the gateway's own key, account or model name ({status}); "
            "your key and request are valid",
            status=502,
            code="upstream_misconfigured",
            should_retry=False,
        )
    if failure.outcome is Outcome.UNCLEAR_4XX and not failure.answers and not has_error_object(error):
        return UpstreamFailed(
            f"the upstream rejected the request with status {status} and without an error object; "
            "check the replica's base_url and key, and the proxies and firewalls on the way",
            status=502,
            code="upstream_rejected",
            should_retry=False,
        )
    return _passed_on(error, status, error.code or code)


def _passed_on(error: UpstreamError, status: int, code: str | None) -> GatewayError:
    """Build the client's error from an upstream's own; its 429 has another code than a 429 of the key's limits."""
    if status == 429:
        limited = RateLimited(error.message, retry_after_s=error.retry_after_s)
        limited.should_retry, limited.details = error.should_retry, error.details
        return limited
    return UpstreamFailed(
        error.message,
        status=status if 400 <= status < 600 else 502,
        kind=error.kind or "upstream_error",
        param=error.param,
        code=code,
        retry_after_s=error.retry_after_s,
        should_retry=error.should_retry,
        details=error.details,
    )


class NextStep(enum.Enum):
    """The consequence of a failed attempt for its request."""

    ANSWER = "answer"  # the failure is the client's answer
    RETRY = "retry"  # another attempt is sent where one may be
    RECOVER = "recover"  # another attempt continues the broken stream
    WAIT = "wait"  # other attempts may still bring content


class Standing(NamedTuple):
    """State of a race at the moment one of its attempts fails.

    Attributes:
        was_winner: the failed attempt had won.
        carried_on: the failed attempt was to continue a broken stream.
        recoverable: the bytes that the client has are recorded, so that its stream can be continued.
        committed: part of an answer was sent to the client.
        is_backup: the failed attempt was a hedge.
        live: attempts of its request that may still bring content.
        live_same_pool: such attempts in the pool of the failed one.
        all_overdue: every live attempt is overdue, and no retry waits.
    """

    was_winner: bool
    carried_on: bool
    recoverable: bool
    committed: bool
    is_backup: bool
    live: int
    live_same_pool: int
    all_overdue: bool


def next_step(failure: FailureClass, race: Standing) -> NextStep:
    """Return the next step after a failed attempt.

    | failed attempt | if | step |
    |---|---|---|
    | winner, or one that was to continue its stream | the stream can be continued | RECOVER |
    | the same | the client has part of its answer | ANSWER |
    | the same | the client has nothing yet | RETRY |
    | other, with an error caused by the caller | a refusal; none is live; no backup, and its pool is live | ANSWER |
    | other | none is live, or all live ones are overdue and no retry is pending | RETRY |
    | other | otherwise | WAIT |
    """
    if race.was_winner or race.carried_on:
        if race.recoverable:
            return NextStep.RECOVER
        return NextStep.ANSWER if race.committed else NextStep.RETRY
    if failure.answers and failure.hint is RetryHint.NONE:
        speaks_for_live = not race.is_backup and race.live_same_pool > 0
        if failure.outcome is Outcome.MODEL_REFUSAL or not race.live or speaks_for_live:
            return NextStep.ANSWER
    return NextStep.RETRY if not race.live or race.all_overdue else NextStep.WAIT


def final_error(errors: Sequence[UpstreamError], *, retry_helps: bool = False) -> GatewayError:
    """Build the client's error after every attempt failed.

    Only the failures of replicas that were fit for the request count, unless there are no other failures. Not fit are a
    replica with an API that cannot express the request, a replica that rejected the request mode, which the gateway has
    chosen, and a replica with a dead key or account. A 429 is returned only if all were rate-limited, with the smallest
    Retry-After; else a rejection that was to be confirmed; else the last failure that is not a 429. An error never has
    `x-should-retry: false` together with a Retry-After.

    Args:
        errors: errors of all attempts, at least one.
        retry_helps: True if a retry by the client may succeed (`GiveUp`).
    """
    errors = [error for error in errors if not isinstance(error, (RequestModeRejected, Unsupported))] or errors
    errors = [error for error in errors if not classify(error).ours] or errors
    limited = [error for error in errors if classify(error).outcome is Outcome.RATE_LIMITED]
    if len(limited) == len(errors):
        waits = [error.retry_after_s for error in limited if error.retry_after_s is not None]
        final = client_error(limited[-1])
        final.retry_after_s = min(waits, default=None)
        return final
    others = [error for error in errors if error not in limited]
    rejections = [error for error in others if asks_others(error)]
    final = client_error((rejections or others)[-1])
    if final.status >= 500 and final.retry_after_s is None and not retry_helps:
        final.should_retry = False  # the failures last: an SDK's retries would only multiply the load
    return final


def unusable(wait_s: float | None) -> GatewayError:
    """Build the client's error if no attempt was sent; `wait_s`: time until a replica may be used, None for never."""
    if wait_s is None:
        taken_out = "every replica of this model that supports the request is taken out; retry later"
        return UpstreamFailed(taken_out, status=502, code="upstream_error")
    waiting = "every replica of this model is rate-limited by its provider; retry later"
    return RateLimited(waiting, retry_after_s=wait_s)
