"""Reads the error bodies and error frames of OpenAI-compatible servers.

One parser for all shapes: OpenAI and Azure (`innererror`), Gemini (`[{"error": ...}]`, `retryDelay`), OpenRouter
(`metadata`), Anthropic (`details`), Amazon (`Message`, `x-amzn-errortype`), llama.cpp, vLLM and SGLang
(`{"object": "error"}`), TGI (`error_type`), Ollama (`{"error": "text"}`) and FastAPI (`detail`). Bodies that are not
JSON are never quoted: they are HTML pages of proxies.

Units: seconds, HTTP status codes.
"""

from collections.abc import Mapping

import msgspec

from ttft_gateway.apis.base import Headers
from ttft_gateway.apis.errors import REDIRECTIONS, BadStatus, ErrorFrame
from ttft_gateway.apis.retry_after import retry_after_s, wait_s
from ttft_gateway.apis.tolerant_json import dumps, loads

_MESSAGE_CHARS_MAX = 4096
_OUTSIDE_BODY = ("header", "query", "path", "cookie")  # first words of FastAPI's places
_SHOULD_RETRY = {b"true": True, b"false": False}
_DETAILS_MAX = 16  # of Google's: RetryInfo has a wait, ErrorInfo a reason

_STATUS = {  # names of errors in frames, which have no HTTP status -> the status they imply
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "content_policy_violation": 400,
    "content_filter": 400,
    "BadRequestError": 400,
    "Bad Request": 400,
    "INVALID_ARGUMENT": 400,
    "validation": 422,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "UNAUTHENTICATED": 401,
    "permission_error": 403,
    "PERMISSION_DENIED": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "NotFoundError": 404,
    "NOT_FOUND": 404,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "RESOURCE_EXHAUSTED": 429,
    "overloaded": 429,  # TGI
    "server_error": 500,
    "api_error": 500,
    "internal_error": 500,
    "internal_server_error": 500,
    "InternalServerError": 500,
    "INTERNAL": 500,
    "generation": 500,  # TGI
    "incomplete_generation": 500,  # TGI
    "overloaded_error": 503,
    "service_unavailable": 503,
    "UNAVAILABLE": 503,
    "timeout": 504,
    "DEADLINE_EXCEEDED": 504,
}


class Problem(msgspec.Struct, frozen=True):
    """An error as its server described it; None for absent fields.

    Attributes:
        message: the text for people.
        kind, param, code: `type`, `param` and `code` of an OpenAI error object; a code that only repeats an HTTP status
            is in `status`.
        status: the HTTP status in the error, or the one that its code implies.
        retry_after_s: the requested wait.
        reason: the reason in Google's ErrorInfo.
        details: Anthropic's details as JSON.
    """

    message: str | None
    kind: str | None = None
    param: str | None = None
    code: str | None = None
    status: int | None = None
    retry_after_s: float | None = None
    reason: str | None = None
    details: str | None = None

    def frame(self) -> ErrorFrame:
        """Make the error of an error object inside a 200."""
        error = ErrorFrame(
            self.message or "the upstream sent an error without a message",
            status=self.status,
            kind=self.kind,
            param=self.param,
            code=self.code,
            reason=self.reason,
            retry_after_s=self.retry_after_s,
        )
        error.details = self.details
        return error


def bad_status(status: int, headers: Headers, body: bytes) -> BadStatus:
    """Read a response with an error status.

    Args:
        status: its status, which overrides the body's.
        headers: its headers, for `retry-after` in its forms, `x-should-retry` and Amazon's `x-amzn-errortype`.
        body: the body, which may be cut, empty or not JSON.
    """
    problem = problem_of(loads(body)) or Problem(None)
    wait = retry_after_s(headers)
    error = BadStatus(
        problem.message or f"the upstream answered with status {status} and {_state_of(status, body)}",
        status=status,
        kind=problem.kind or _amazon_type(headers),
        param=problem.param,
        code=problem.code,
        reason=problem.reason,
        retry_after_s=problem.retry_after_s if wait is None else wait,
        should_retry=_SHOULD_RETRY.get(dict(headers).get(b"x-should-retry", b"").strip().lower()),
    )
    error.details = problem.details
    return error


def _state_of(status: int, body: bytes) -> str:
    """Return the description of a body without an error in it."""
    if status in REDIRECTIONS:
        return "redirects the request; check the replica's base_url, and the proxies on the way"
    return "a body without a readable error" if body else "an empty body"


def problem_of(value: object) -> Problem | None:
    """Return the error in a JSON document, None if it has none."""
    if isinstance(value, list) and value:  # Gemini
        value = value[0]
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if isinstance(error, dict):
        return _described(error)
    if error:
        text = value.get("message")  # next to an `error` that is only a title
        return _described({"message": text or error, "type": value.get("error_type"), "code": value.get("code")})
    if value.get("message"):
        return _described(value)
    if value.get("Message"):  # Amazon's
        return Problem(_message(value["Message"]))
    if value.get("detail"):
        return _detailed(value["detail"])
    return None


def _described(error: Mapping[str, object]) -> Problem:
    inner, metadata = error.get("innererror"), error.get("metadata")
    code, state = error.get("code"), error.get("status")
    if not code and isinstance(inner, dict):
        code = inner.get("code")
    if isinstance(metadata, dict) and ("flagged_input" in metadata or "reasons" in metadata):  # OpenRouter's moderation
        code = "content_policy_violation"
    kind = _named(error.get("type")) or (_text(state) if isinstance(state, str) else None)
    text, listed = error.get("message"), error.get("details")
    details = [item for item in listed[:_DETAILS_MAX] if isinstance(item, dict)] if isinstance(listed, list) else []
    numbers = (code, state, error.get("http_status_code"), error.get("status_code"))
    names = (code, kind)
    return Problem(
        _message(text) or _message(error.get("detail")),
        kind,
        _named(error.get("param")),
        None if _http_status(code) and not isinstance(code, str) else _text(code),
        next(filter(None, map(_http_status, numbers)), None) or next(filter(None, map(_implied, names)), None),
        next((wait_s(delay) for item in details if isinstance(delay := item.get("retryDelay"), str)), None),
        next((text for item in details if (text := _text(item.get("reason"))) is not None), None),
        _kept(listed),
    )


def _kept(details: object) -> str | None:
    """Return Anthropic's details, with the `error_code` that its SDKs read, as JSON; None for others and long ones."""
    if not isinstance(details, dict) or _text(details.get("error_code")) is None:
        return None
    text = dumps(details).decode()
    return text if len(text) <= _MESSAGE_CHARS_MAX else None


def _detailed(detail: object) -> Problem:
    """Read FastAPI's `detail`: a text, an error object, or a list of validation errors with places.

    A place outside the body, such as a missing header, is no `param`: the gateway sends headers and queries of its own.
    """
    if isinstance(detail, dict):
        error = detail.get("error")
        return _described(error if isinstance(error, dict) else detail)
    first = detail[0] if isinstance(detail, list) and detail else None
    location = first.get("loc") if isinstance(first, dict) else None
    if not isinstance(location, list) or not location or location[0] in _OUTSIDE_BODY:
        return Problem(_message(detail))
    return Problem(_message(detail), param=_text(location[-1]))


def _message(value: object) -> str | None:
    """Return the text for people, from a text or FastAPI's list of validation errors (Mistral wraps the list)."""
    if isinstance(value, dict):
        value = value.get("detail")
    if isinstance(value, list):
        texts = (item.get("msg") for item in value[:8] if isinstance(item, dict))
        value = "; ".join(text for text in texts if isinstance(text, str))
    return value[:_MESSAGE_CHARS_MAX] if isinstance(value, str) and value else None


def _text(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def _named(value: object) -> str | None:
    """Return a text, None also for LiteLLM's "None"."""
    text = _text(value)
    return None if text == "None" else text


def _http_status(value: object) -> int | None:
    """Return a number, or a text of digits, as a status if it is in the range of HTTP errors."""
    if isinstance(value, str) and len(value) == 3 and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and 400 <= value <= 599 else None


def _implied(name: object) -> int | None:
    return _STATUS.get(name) if isinstance(name, str) else None


def _amazon_type(headers: Headers) -> str | None:
    """Return the name of an error of Amazon's, which may be followed by a colon and an address."""
    value = dict(headers).get(b"x-amzn-errortype", b"").decode("latin-1")
    return value.partition(":")[0].strip() or None
