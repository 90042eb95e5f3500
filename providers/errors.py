"""What can go wrong upstream, as values: an attempt ends with one of these, nothing here is logged or retried.

    UpstreamError
    +-- ConnectError      no connection: refused, unreachable, DNS, TLS, connect timeout
    +-- ConnectionCut     the connection ended before the answer was complete
    +-- ProtocolError     what came is not HTTP or SSE within our bounds
    +-- TimedOut          no first content, a stall, or the total time is over
    +-- EmptyAnswer       a stream that ended without content and without a finish_reason
    +-- BadStatus         the upstream answered with an error status
    |   +-- RequestModeRejected of the request it minded how it was asked, and is asked in another way from now on
    +-- Unsupported          this upstream cannot be asked for this at all; nothing was sent
    +-- ErrorFrame        an error object inside a 200
    +-- Diverged          an answer that is not the one it had to be

Texts may come from the upstream: they go to the client, never to a log. Units: seconds, HTTP status codes.
"""

from collections.abc import Sequence


class UpstreamError(Exception):
    """An attempt failed.

    Attributes:
        message: what happened, for the client.
        label: a closed set of words for logs and metrics.
        status: the upstream's HTTP status, or the status its error frame implies; None when there was none.
        kind, param, code: `type`, `param` and `code` of the upstream's OpenAI-shaped error, None where absent.
        retry_after_s: how long the upstream asked to wait, None when it did not say.
        should_retry: the upstream's own `x-should-retry`, None when absent.
    """

    label = "upstream_error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        kind: str | None = None,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = _valid_unicode(message)
        self.status = status
        self.kind = kind and _valid_unicode(kind)
        self.param = param and _valid_unicode(param)
        self.code = code and _valid_unicode(code)
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry

    def redact(self, secrets: Sequence[str]) -> None:
        """Take secrets out of the upstream's words: some servers quote the key that they do not like."""
        self.message = redacted(self.message, secrets)
        self.kind = self.kind and redacted(self.kind, secrets)
        self.param = self.param and redacted(self.param, secrets)
        self.code = self.code and redacted(self.code, secrets)


def redacted(text: str, secrets: Sequence[str]) -> str:
    """What an upstream said, without the secrets in it."""
    for secret in secrets:
        text = text.replace(secret, "****")
    return text


def _valid_unicode(text: str) -> str:
    """The text without halves of surrogate pairs: no UTF-8 can say them, and a client would get no error at all."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class ConnectError(UpstreamError):
    """No connection could be made."""

    label = "connect"


class ConnectionCut(UpstreamError):
    """The connection ended before the answer was complete."""

    label = "cut"


class ProtocolError(UpstreamError):
    """What came is not HTTP or SSE within our bounds."""

    label = "protocol"


class TimedOut(UpstreamError):
    """Nothing came in time."""

    label = "timeout"


class EmptyAnswer(UpstreamError):
    """The stream ended without content and without a finish_reason."""

    label = "empty"


class BadStatus(UpstreamError):
    """The upstream answered with an error status."""

    label = "status"


class RequestModeRejected(BadStatus):
    """The upstream refused to stream, or to be asked for token counts; asked again, it is asked in another way."""

    label = "stream_refused"

    def __init__(self, said: UpstreamError) -> None:
        super().__init__(said.message, status=said.status, kind=said.kind, param=said.param, code=said.code)


class Unsupported(UpstreamError):
    """This upstream cannot be asked for this: its protocol has no words for it. Nothing was sent; another may do it.

    Args:
        message: what cannot be served, and what to send instead.
        param: the request field that cannot be honoured, None when it is the whole API.
        code: what is wrong, None for the usual: there are no words for it.
    """

    label = "unsuited"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        status = 404 if param is None and code is None else 400  # the whole API is not there
        super().__init__(message, status=status, kind="invalid_request_error", param=param, code=code)


class ErrorFrame(UpstreamError):
    """An error object inside a 200."""

    label = "error_frame"


class Diverged(UpstreamError):
    """Another answer to the same call says something else."""

    label = "diverged"
