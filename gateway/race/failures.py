"""Failures: the class of a failed attempt, the next step of its request, and the client's error. Pure.

The table of docs/failover.md in code, and the only place that turns a failure into a step: `classify` reads the error,
`next_step` decides with the state of the race. A policy refusal and an error that blames the request are answers;
everything else is tried elsewhere. The gateway holds the key and names the model: `providers.account_errors` has the
forms that no request can cause. Any other 4xx may be the caller's or the gateway's; `gateway.pool.rejections` judges by
evidence. A 401, a 402 and forms that are likely the gateway's are tried everywhere; other error objects are put to
replicas of the same pool, because a caller's own mistake is no reason to use another model. A 4xx without such an
object can come from anything on the way (a firewall, a proxy, another protocol on the port): other replicas are asked.
For statuses that most likely concern the request, one other replica is asked.

If this machine is out of files, ports, memory or connections, one other replica is tried: an idle connection to it may
be open, and ports and connections are counted per upstream. A third one would fail like the second.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from gateway.errors import GatewayError, Overloaded, RateLimited, UpstreamFailed
from gateway.hedging.outcomes import Outcome
from providers.account_errors import Blame, account_blame
from providers.error_reasons import blames_request, is_above_limit, is_refusal, is_too_long, names_tokens
from providers.errors import (
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

_RETRIED_4XX = {408, 425}
_CONFLICT = 409
_UNAUTHORIZED, _NO_PAYMENT = 401, 402  # of the gateway's key and account
_OBJECT_4XX = {403, 404}  # whose kind is no sign: OpenAI sends a 404 with `invalid_request_error`
_PASSED_4XX = {400, 413, 415, 422}  # of unclear ones, those that most likely concern the request
_ENGINE_FAILED = {"generation", "incomplete_generation"}  # TGI, with a 424
_PERMANENT_5XX = {501, 505}  # the same replica would send the same
_CLIENT_ERROR = "invalid_request_error"
_SHORTAGE_S = 5.0  # Retry-After of a shortage, whose end is unknown; as that of a full queue without a measured time


class RetryHint(enum.Enum):
    """A remedy besides another replica of the pool."""

    NONE = "none"
    SAME = "same"  # the same replica: the failure was transient
    ASK_ANEW = "ask_anew"  # the same replica first, in another request mode: it rejected the mode
    FALLBACK = "fallback"  # only another model: the prompt is too long for this one
    CONFIRM = "confirm"  # one other replica decides whether the request or the replica is at fault
    SIBLING = "sibling"  # the same, within the pool; a fallback only if nothing shows that the replica works
    OTHER = "other"  # one other replica, once in a request


class FailureClass(msgspec.Struct, frozen=True):
    """The classification of a failure.

    Attributes:
        outcome: outcome for statistics.
        answers: True if it answers the caller and is no fault of the replica; final if no remedy is left.
        hint: remedy to try.
        ours: True if the gateway's key, account or model name is most likely at fault.
    """

    outcome: Outcome
    answers: bool = False
    hint: RetryHint = RetryHint.NONE
    ours: bool = False


_BY_TYPE: Final[Mapping[type[UpstreamError], FailureClass]] = {
    Unsupported: FailureClass(Outcome.UNSUPPORTED),
    RequestModeRejected: FailureClass(Outcome.CLIENT_ERROR, answers=True, hint=RetryHint.ASK_ANEW),
    TimedOut: FailureClass(Outcome.TTFT_TIMEOUT),
    OutOfResources: FailureClass(Outcome.OUT_OF_RESOURCES, hint=RetryHint.OTHER),
}


def classify(error: UpstreamError) -> FailureClass:
    """Classify an attempt's failure before its first content."""
    known = _BY_TYPE.get(type(error))
    if known is not None:
        return known
    if is_refusal(error):
        return FailureClass(Outcome.MODEL_REFUSAL, answers=True)
    blame = account_blame(error)
    if error.judged or blame is Blame.CERTAIN:
        return FailureClass(Outcome.MISCONFIGURED, ours=True)
    if is_too_long(error):
        return FailureClass(Outcome.CLIENT_ERROR, answers=True, hint=RetryHint.FALLBACK)
    status = error.status
    if status is not None and 400 <= status < 500:
        is_likely = blame is Blame.LIKELY or status == _UNAUTHORIZED
        return FailureClass(Outcome.UNCLEAR_4XX, ours=True) if is_likely else _classify_4xx(error, status)
    transient = status not in _PERMANENT_5XX and error.should_retry is not False
    return FailureClass(Outcome.FAILED, hint=RetryHint.SAME if transient else RetryHint.NONE)


def _classify_4xx(error: UpstreamError, status: int) -> FailureClass:
    """Classify a 4xx without a sign of the gateway's key, account or model name."""
    if is_above_limit(error):  # another replica may have a larger limit
        return FailureClass(Outcome.CLIENT_ERROR)
    if status == 429:
        return FailureClass(Outcome.RATE_LIMITED)
    is_conflict = status == _CONFLICT and not _has_object(error)  # with an object: of a stored conversation
    if status in _RETRIED_4XX or is_conflict or error.kind in _ENGINE_FAILED:
        return FailureClass(Outcome.FAILED, hint=RetryHint.SAME)
    is_no_sign = error.param == "model" or (status in _OBJECT_4XX and error.param is None)
    if blames_request(error) and not is_no_sign and status != _NO_PAYMENT:
        return FailureClass(Outcome.CLIENT_ERROR, answers=True)
    return _classify_unclear(error, status)


def _classify_unclear(error: UpstreamError, status: int) -> FailureClass:
    """Classify a 4xx that may be the caller's or the gateway's fault."""
    has_object = _has_object(error)
    if status == _NO_PAYMENT:
        return FailureClass(Outcome.UNCLEAR_4XX, ours=has_object)
    if status in _PASSED_4XX and error.param != "model":
        return FailureClass(Outcome.UNCLEAR_4XX, answers=True, hint=RetryHint.CONFIRM)
    if has_object or error.param == "model":
        return FailureClass(Outcome.UNCLEAR_4XX, answers=True, hint=RetryHint.SIBLING)
    return FailureClass(Outcome.UNCLEAR_4XX)


def asks_others(error: UpstreamError) -> bool:
    """Return True for a rejection that is the caller's answer unless another replica answers the request."""
    return classify(error).hint in (RetryHint.CONFIRM, RetryHint.SIBLING)


def limits_tokens(error: UpstreamError) -> bool:
    """Return True for a 429 about tokens: smaller requests may still fit."""
    return error.status == 429 and names_tokens(error)


def _has_object(error: UpstreamError) -> bool:
    """Return True if the upstream sent an error object of the protocol."""
    return error.kind is not None or error.code is not None


def client_error(error: UpstreamError) -> GatewayError:
    """Build the client's error for one upstream failure, with the upstream's message if it concerns the caller."""
    status = error.status
    if isinstance(error, TimedOut):
        return UpstreamFailed(error.message, status=504, code="upstream_timeout", should_retry=False)
    if isinstance(error, OutOfResources):
        return Overloaded(error.message, _SHORTAGE_S)
    if isinstance(error, Unsupported):
        code = "unsupported_api" if error.param is None else "unsupported_parameter"
        status, param = error.status or 400, error.param
        return UpstreamFailed(error.message, status=status, kind=_CLIENT_ERROR, param=param, code=error.code or code)
    if is_too_long(error) and status in (None, 500):
        return UpstreamFailed(error.message, status=400, kind=_CLIENT_ERROR, code="context_length_exceeded")
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
    if failure.outcome is Outcome.UNCLEAR_4XX and not failure.answers and not _has_object(error):
        return UpstreamFailed(
            f"the upstream rejected the request with status {status} and without an error object; "
            "check the replica's base_url and key, and the proxies and firewalls on the way",
            status=502,
            code="upstream_rejected",
            should_retry=False,
        )
    return _passed_on(error, status)


def _passed_on(error: UpstreamError, status: int) -> GatewayError:
    """Build the client's error from an upstream's own; a 429 has a code apart from that of the caller's key limits."""
    if status == 429:
        limited = RateLimited(error.message, retry_after_s=error.retry_after_s)
        limited.should_retry = error.should_retry
        return limited
    return UpstreamFailed(
        error.message,
        status=status if 400 <= status < 600 else 502,
        kind=error.kind or "upstream_error",
        param=error.param,
        code=error.code,
        retry_after_s=error.retry_after_s,
        should_retry=error.should_retry,
    )


class NextStep(enum.Enum):
    """The consequence of a failed attempt for its request."""

    ANSWER = "answer"  # the failure is the client's answer
    RETRY = "retry"  # another attempt is sent where one may be
    RECOVER = "recover"  # another attempt carries the broken stream on
    WAIT = "wait"  # other attempts may still bring content


class Standing(NamedTuple):
    """State of a race at the moment one of its attempts fails.

    Attributes:
        was_winner: the failed attempt had won.
        carried_on: the failed attempt was to carry a broken stream on.
        recoverable: the bytes that the client has are kept, so that its stream can be carried on.
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


_CODES: dict[type[UpstreamError], str] = {
    ConnectionCut: "upstream_cut",
    EmptyAnswer: "upstream_empty",
    ProtocolError: "upstream_protocol_error",
    ErrorFrame: "upstream_error",
}


def final_error(errors: Sequence[UpstreamError], *, retry_helps: bool = False) -> GatewayError:
    """Build the client's error after every attempt failed.

    Only the failures of replicas that were fit for the request count, unless there is no other: not that of a replica
    whose API cannot express it, not that of one that rejected the request mode, which the gateway has chosen, and not
    that of one whose key or account is dead. A 429 only if all were rate-limited, with the smallest Retry-After; else a
    rejection that was to be confirmed; else the last failure that is not a 429. Never `x-should-retry: false` together
    with a Retry-After.

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
