"""Classifies failed attempts: outcome, possible remedy, and the client's error. Pure.

The table of docs/failover.md in code. A client error and a policy refusal are answers; after any other failure another
replica is tried. An upstream's 401, 403 or 404 is the gateway's own fault, because the gateway holds the key and sends
the model name.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import UpstreamFailed
from gateway.hedging.outcomes import Outcome
from providers.error_reasons import is_refusal, is_too_long
from providers.errors import (
    BadStatus,
    ConnectionCut,
    EmptyAnswer,
    ErrorFrame,
    ProtocolError,
    RequestModeRejected,
    TimedOut,
    Unsupported,
    UpstreamError,
)

_RETRIED_4XX = {408, 409, 425}
_PERMANENT_5XX = {501, 505}  # the same replica would send the same
_CLIENT_ERROR = "invalid_request_error"
_NO_CREDIT = "insufficient_quota"  # OpenAI's 429 for an account without credit


class Remedy(enum.Enum):
    """A remedy besides another replica of the pool."""

    NONE = "none"
    SAME = "same"  # the same replica: the failure was transient
    ASK_ANEW = "ask_anew"  # the same replica first, in another request mode: it rejected the mode
    FALLBACK = "fallback"  # only another model: the prompt is too long for this one


@dataclass(frozen=True, slots=True)
class Verdict:
    """The classification of a failure.

    Attributes:
        outcome: outcome for statistics.
        answers: True if it answers the caller and is no fault of the replica; final if no remedy is left.
        remedy: remedy to try.
    """

    outcome: Outcome
    answers: bool = False
    remedy: Remedy = Remedy.NONE


def judge(error: UpstreamError) -> Verdict:
    """Classify an attempt's failure before its first content."""
    status = error.status
    if isinstance(error, Unsupported):
        return Verdict(Outcome.UNSUPPORTED, answers=False)
    if isinstance(error, RequestModeRejected):
        return Verdict(Outcome.CLIENT_ERROR, answers=True, remedy=Remedy.ASK_ANEW)
    if is_refusal(error):
        return Verdict(Outcome.MODEL_REFUSAL, answers=True)
    if status is not None and 400 <= status < 500:
        return _judge_4xx(error, status)
    if isinstance(error, TimedOut):
        return Verdict(Outcome.TTFT_TIMEOUT)
    transient = status not in _PERMANENT_5XX and error.should_retry is not False
    return Verdict(Outcome.FAILED, remedy=Remedy.SAME if transient else Remedy.NONE)


def _judge_4xx(error: UpstreamError, status: int) -> Verdict:
    if status == 429:
        return Verdict(Outcome.MISCONFIGURED if error.code == _NO_CREDIT else Outcome.RATE_LIMITED)
    if status in (401, 403, 404) and error.param in (None, "model"):
        return Verdict(Outcome.MISCONFIGURED)
    if status in _RETRIED_4XX:
        return Verdict(Outcome.FAILED, remedy=Remedy.SAME)
    if is_too_long(error):
        return Verdict(Outcome.CLIENT_ERROR, answers=True, remedy=Remedy.FALLBACK)
    return Verdict(Outcome.CLIENT_ERROR, answers=True)


def answer(error: UpstreamError) -> UpstreamFailed:
    """Build the client's error for one upstream failure, with the upstream's message if it concerns the caller."""
    status = error.status
    if isinstance(error, TimedOut):
        return UpstreamFailed(error.message, status=504, code="upstream_timeout", should_retry=False)
    if isinstance(error, Unsupported):
        code = "unsupported_api" if error.param is None else "unsupported_parameter"
        status, param = error.status or 400, error.param
        return UpstreamFailed(error.message, status=status, kind=_CLIENT_ERROR, param=param, code=error.code or code)
    if status is None or not isinstance(error, (BadStatus, ErrorFrame)):
        return UpstreamFailed(error.message, status=502, code=_CODES.get(type(error), "upstream_error"))
    if judge(error).outcome is Outcome.MISCONFIGURED:
        return UpstreamFailed(
            f"the upstream rejected the gateway's own key or model name ({status}); your key and request are valid",
            status=502,
            code="upstream_misconfigured",
            should_retry=False,
        )
    return UpstreamFailed(
        error.message,
        status=status if 400 <= status < 600 else 502,
        kind=error.kind or ("rate_limit_error" if status == 429 else "upstream_error"),
        param=error.param,
        code=error.code,
        retry_after_s=error.retry_after_s,
        should_retry=error.should_retry,
    )


_CODES: dict[type[UpstreamError], str] = {
    ConnectionCut: "upstream_cut",
    EmptyAnswer: "upstream_empty",
    ProtocolError: "upstream_protocol_error",
    ErrorFrame: "upstream_error",
}


def last_word(errors: Sequence[UpstreamError], *, spent: bool = False) -> UpstreamFailed:
    """Build the client's error after every attempt failed.

    A 429 only if all were rate-limited, with the smallest Retry-After; else the last failure that is not a 429 or a
    misconfiguration of one replica; never `x-should-retry: false` together with a Retry-After.

    Args:
        errors: errors of all attempts, at least one.
        spent: True if the retry budget prevented another attempt.
    """
    limited = [error for error in errors if judge(error).outcome is Outcome.RATE_LIMITED]
    if len(limited) == len(errors):
        waits = [error.retry_after_s for error in limited if error.retry_after_s is not None]
        final = answer(limited[-1])
        final.retry_after_s = min(waits, default=None)
        return final
    others = [error for error in errors if error not in limited]
    real = [error for error in others if judge(error).outcome is not Outcome.MISCONFIGURED]
    final = answer((real or others)[-1])
    if final.status >= 500 and final.retry_after_s is None and not spent:
        final.should_retry = False  # the gateway has retried already; an SDK's retries would only multiply the load
    return final
