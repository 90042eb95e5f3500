"""Upstream errors as values: a failed attempt ends with one of these; nothing here is logged or retried.

    UpstreamError
    +-- ConnectError      no connection: refused, unreachable, DNS, TLS, connect timeout
    |   +-- OutOfResources       this machine is out of files, ports, memory or connections; nothing was sent
    +-- ConnectionCut     the connection or the body ended before the answer was complete
    +-- ProtocolError     the response is not HTTP or SSE within the gateway's bounds
    +-- TimedOut          no first content in time, a stall, or the total time is over
    +-- EmptyAnswer       a stream that was closed without content and without a finish_reason
    +-- BadStatus         the upstream answered with an error status
    |   +-- RequestModeRejected  the upstream rejects streaming or its options; the call may be sent without
    |   +-- LoopFound            a gateway rejects a call of another one, because gateways lead to each other
    +-- Unsupported       the upstream's API cannot serve this request; nothing was sent
    +-- ErrorFrame        an error object inside a 200
    +-- Diverged          a repeated answer that differs from the first one

Texts may come from the upstream: they are sent to the client, never to a log. Units: seconds, HTTP status codes.
"""

import re
from collections.abc import Sequence
from typing import Final

REDIRECTIONS: Final = range(300, 400)
"""Statuses that name another address. They are not followed: the key is for the configured one."""

LOOP: Final = 508
"""Status of a request that gateways send round."""

_REQUEST_ID_HEADERS: Final = frozenset({b"x-request-id", b"request-id", b"apim-request-id", b"x-ms-request-id"})
_ID_CHARS_MAX: Final = 200
_INVISIBLE: Final = re.compile("[^!-~]+")


class UpstreamError(Exception):
    """An attempt failed.

    Attributes:
        message: description for the client.
        label: name of the error in logs and metrics, from a closed set.
        status: the upstream's HTTP status, or the status its error frame implies; None if there is none.
        kind, param, code: `type`, `param` and `code` of the upstream's OpenAI-shaped error, None if absent.
        details: Anthropic's details of the error as JSON, None if absent.
        reason: reason in the details of Google's errors, None if absent.
        retry_after_s: the wait that the upstream requested, None if it requested none.
        should_retry: the upstream's `x-should-retry`, None if absent.
        judged: True if the replica is out because it rejects requests, so that the error is not the caller's.
    """

    label = "upstream_error"
    judged = False
    details: str | None = None

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        kind: str | None = None,
        param: str | None = None,
        code: str | None = None,
        reason: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = _valid_unicode(message)
        self.status = status
        self.kind = kind and _valid_unicode(kind)
        self.param = param and _valid_unicode(param)
        self.code = code and _valid_unicode(code)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry

    def redact(self, secrets: Sequence[str]) -> None:
        """Remove secrets from the upstream's texts: some servers quote the key that they reject."""
        self.message = redacted(self.message, secrets)
        self.kind = self.kind and redacted(self.kind, secrets)
        self.param = self.param and redacted(self.param, secrets)
        self.code = self.code and redacted(self.code, secrets)
        self.details = self.details and redacted(self.details, secrets)


def redacted(text: str, secrets: Sequence[str]) -> str:
    """Return an upstream's text without the secrets in it."""
    for secret in secrets:
        text = text.replace(secret, "****")
    return text


def shown_id(headers: Sequence[tuple[bytes, bytes]], secrets: Sequence[str]) -> str | None:
    """Return an upstream's request id as it may be shown; None if it sent none, or nothing is left of it.

    It becomes a response header. HTTP/2 carries bytes that HTTP/1.1 forbids, so only visible ASCII is left. Secrets are
    removed before and after that, because a secret may contain a space, or be interrupted by what is dropped.
    """
    for name, value in headers:
        if name in _REQUEST_ID_HEADERS:
            text = _INVISIBLE.sub("", redacted(value.decode("latin-1"), secrets))
            return redacted(text, secrets)[:_ID_CHARS_MAX] or None
    return None


def _valid_unicode(text: str) -> str:
    """Replace unpaired surrogates: UTF-8 cannot encode them, and the client would get no error at all."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class ConnectError(UpstreamError):
    """No connection could be made."""

    label = "connect"


class OutOfResources(ConnectError):
    """No connection could be made, because this machine is out of what one takes; no fault of the upstream."""

    label = "out_of_resources"


class ConnectionCut(UpstreamError):
    """The connection or the body ended before the answer was complete."""

    label = "cut"


class ProtocolError(UpstreamError):
    """The response is not HTTP or SSE within the gateway's bounds."""

    label = "protocol"


class TimedOut(UpstreamError):
    """No data arrived in time."""

    label = "timeout"


class EmptyAnswer(UpstreamError):
    """The stream ended without content and without a finish_reason."""

    label = "empty"


class BadStatus(UpstreamError):
    """The upstream answered with an error status."""

    label = "status"


class RequestModeRejected(BadStatus):
    """The upstream rejected streaming, or the option for token counts; the next request is sent without."""

    label = "stream_refused"

    def __init__(self, error: UpstreamError) -> None:
        super().__init__(error.message, status=error.status, kind=error.kind, param=error.param, code=error.code)


class LoopFound(BadStatus):
    """The upstream rejected a call that had come from another gateway, because gateways lead to each other.

    Each gateway on the way would repeat a retry, and the number of gateways is the caller's header: so it is the
    caller's answer, and no replica is blamed. Only the first gateway of a ring blames its replica.
    """

    label = "loop"

    def __init__(self, error: UpstreamError) -> None:
        super().__init__(
            error.message, status=error.status, kind=error.kind, code=error.code, should_retry=error.should_retry
        )


class Unsupported(UpstreamError):
    """The upstream's API has no counterpart for this request. Nothing was sent; another replica may serve it.

    Args:
        message: the unsupported part of the request, and a replacement.
        param: the unsupported request field, None if it is the whole API.
        code: the error code, None for `unsupported_api` or `unsupported_parameter`.
        details: see `UpstreamError`.
    """

    label = "unsuited"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, details: str | None = None
    ) -> None:
        status = 404 if param is None and code is None else 400  # 404: the upstream lacks the whole API
        super().__init__(message, status=status, kind="invalid_request_error", param=param, code=code)
        self.details = details


class ErrorFrame(UpstreamError):
    """An error object inside a 200."""

    label = "error_frame"


class Diverged(UpstreamError):
    """A second answer to the same call differs from the first one."""

    label = "diverged"
