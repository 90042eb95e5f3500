"""Reads the error events of Anthropic's Messages API.

`{"type": "error", "error": {"type": ..., "message": ...}}`, whose type implies a status. Units: HTTP status codes.
"""

from ttft_gateway.apis.errors import ErrorFrame
from ttft_gateway.apis.openai.errors import problem_of
from ttft_gateway.apis.tolerant_json import loads

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


def frame_of(data: bytes) -> ErrorFrame:
    """Read an error event."""
    problem = problem_of(loads(data))
    if problem is None:
        return ErrorFrame("the upstream sent an error without a message")
    error = problem.frame()
    error.status = STATUS.get(error.kind or "", error.status)
    return error
