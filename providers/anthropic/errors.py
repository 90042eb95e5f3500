"""Reads the error bodies and error events of Anthropic's Messages API.

`{"type": "error", "error": {"type": ..., "message": ...}}`, with an HTTP status or inside a stream, where the error's
type implies one. An account without credit (402, or a 400 with such a message) is no fault of the caller: it counts as
an exhausted quota, so that another replica is tried. Units: HTTP status codes.
"""

import re

from providers.base import Headers
from providers.errors import BadStatus, ErrorFrame
from providers.openai.errors import bad_status, problem_of
from providers.tolerant_json import loads

STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
QUOTA_CODE = "insufficient_quota"  # OpenAI's code

_names_no_credit = re.compile(r"credit balance is too low|specified API usage limits", re.IGNORECASE).search


def error_of(status: int, headers: Headers, body: bytes) -> BadStatus:
    """Read a response with an error status; see `WireProtocol.error`."""
    error = bad_status(status, headers, body)
    if status == 402 or (status == 400 and _names_no_credit(error.message)):
        error.status, error.kind, error.code = 429, "rate_limit_error", QUOTA_CODE
    return error


def frame_of(data: bytes) -> ErrorFrame:
    """Read an error event."""
    problem = problem_of(loads(data))
    if problem is None:
        return ErrorFrame("the upstream sent an error without a message")
    error = problem.frame()
    error.status = STATUS.get(error.kind or "", error.status)
    return error
