"""The outcome of a failed attempt, from its error, and the remedy to try. Pure.

The first half of the table of docs/failover.md in code, for the gateway and for the client library; outcomes.py has the
effects of an outcome, and gateway/race/failures.py the next step of a request. A policy refusal and an error that
blames the request are answers; everything else is tried elsewhere. The gateway holds the key and names the model:
`ttft_gateway.apis.account_errors` has the forms that no request can cause. Any other 4xx may be the caller's or the
gateway's; `ttft_gateway.pool.rejections` judges by evidence. A 401, a 402 and forms that are likely the gateway's are
tried everywhere; other error objects are put to replicas of the same pool, because a caller's own mistake is no reason
to use another model. A 4xx without such an object can come from anything on the way (a firewall, a proxy, another
protocol on the port): other replicas are asked. For statuses that most likely concern the request, one other replica is
asked.

If this machine is out of files, ports, memory or connections, one other replica is tried: an idle connection to it may
be open, and ports and connections are counted per upstream. A third one would fail like the second.
"""

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from ttft_gateway.apis.account_errors import Blame, account_blame
from ttft_gateway.apis.error_reasons import blames_request, is_above_limit, is_refusal, is_too_long, names_tokens
from ttft_gateway.apis.errors import (
    LOOP,
    REDIRECTIONS,
    LoopFound,
    OutOfResources,
    RequestModeRejected,
    TimedOut,
    Unsupported,
    UpstreamError,
)
from ttft_gateway.hedging.outcomes import Outcome

_RETRIED_4XX = {408, 425}
_CONFLICT = 409
_UNAUTHORIZED, _NO_PAYMENT = 401, 402  # of the gateway's key and account
_OBJECT_4XX = {403, 404}  # the kind of the object is no sign: OpenAI sends a 404 with `invalid_request_error`
_PASSED_4XX = {400, 413, 415, 422}  # unclear 4xx that most likely concern the request
_ENGINE_FAILED = {"generation", "incomplete_generation"}  # TGI, with a 424
_PERMANENT_5XX = {501, 505, LOOP}  # the same replica would send the same


class RetryHint(enum.Enum):
    """A remedy besides another replica of the pool."""

    NONE = "none"
    SAME = "same"  # the same replica: the failure was transient
    OTHER_MODE = "other_mode"  # the same replica first, in another request mode: it rejected the mode
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
    RequestModeRejected: FailureClass(Outcome.CLIENT_ERROR, answers=True, hint=RetryHint.OTHER_MODE),
    LoopFound: FailureClass(Outcome.CLIENT_ERROR, answers=True),
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
    is_permanent = status in _PERMANENT_5XX or status in REDIRECTIONS
    transient = not is_permanent and error.should_retry is not False
    return FailureClass(Outcome.FAILED, hint=RetryHint.SAME if transient else RetryHint.NONE)


def asks_others(error: UpstreamError) -> bool:
    """Return True for a rejection that is the caller's answer unless another replica answers the request."""
    return classify(error).hint in (RetryHint.CONFIRM, RetryHint.SIBLING)


def limits_tokens(error: UpstreamError) -> bool:
    """Return True for a 429 about tokens: smaller requests may still fit."""
    return error.status == 429 and names_tokens(error)


def has_error_object(error: UpstreamError) -> bool:
    """Return True if the upstream sent an error object of the protocol."""
    return error.kind is not None or error.code is not None


def _classify_4xx(error: UpstreamError, status: int) -> FailureClass:
    """Classify a 4xx without a sign of the gateway's key, account or model name."""
    if is_above_limit(error):  # another replica may have a larger limit
        return FailureClass(Outcome.CLIENT_ERROR)
    if status == 429:
        return FailureClass(Outcome.RATE_LIMITED)
    is_conflict = status == _CONFLICT and not has_error_object(error)  # with an object: of a stored conversation
    if status in _RETRIED_4XX or is_conflict or error.kind in _ENGINE_FAILED:
        return FailureClass(Outcome.FAILED, hint=RetryHint.SAME)
    is_no_sign = error.param == "model" or (status in _OBJECT_4XX and error.param is None)
    if blames_request(error) and not is_no_sign and status != _NO_PAYMENT:
        return FailureClass(Outcome.CLIENT_ERROR, answers=True)
    return _classify_unclear(error, status)


def _classify_unclear(error: UpstreamError, status: int) -> FailureClass:
    """Classify a 4xx that may be the caller's or the gateway's fault."""
    has_object = has_error_object(error)
    if status == _NO_PAYMENT:
        return FailureClass(Outcome.UNCLEAR_4XX, ours=has_object)
    if status in _PASSED_4XX and error.param != "model":
        return FailureClass(Outcome.UNCLEAR_4XX, answers=True, hint=RetryHint.CONFIRM)
    if has_object or error.param == "model":
        return FailureClass(Outcome.UNCLEAR_4XX, answers=True, hint=RetryHint.SIBLING)
    return FailureClass(Outcome.UNCLEAR_4XX)
