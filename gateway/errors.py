"""Errors a client can get; each knows its HTTP status and its OpenAI type, code and param.

    GatewayError
    +-- BadRequest            400  what was sent cannot be served
    |   +-- BodyTooLarge      413
    |   +-- UnknownModel      404
    |   +-- UnknownRoute      404
    |   +-- UnsupportedApi    404  the model is here, but not in the API it was asked in
    |   +-- MethodNotAllowed  405
    |   +-- ReloadFailed     422  on the admin address: the new configuration cannot be used
    +-- Unauthorized          401  no key, or a wrong one
    +-- Forbidden             403
    |   +-- ModelNotAllowed   403  the key may not use this model
    +-- RateLimited           429  every upstream was told to wait
    +-- RequestTimeout            408  the request body did not arrive in time
    +-- OverKeyLimit          429  the key has used up what it may
    +-- UpstreamFailed        the upstream's own status (4xx, 429, 5xx), 502 or 504
    +-- Overloaded            503  a model or the gateway has all it can take
    +-- ShuttingDown          503  the gateway drains
    +-- Internal              500

Never answers with `{"detail": ...}`: SDKs lose code, type and param with it. Units: seconds.
"""

import math

import msgspec

_encode = msgspec.json.Encoder().encode


class GatewayError(Exception):
    """An error with its HTTP answer.

    Args:
        message: what was found, where, and what to do.
        param: the request field at fault, None when there is none.
        code: overrides the class's code.
    """

    status = 500
    kind = "server_error"
    code: str | None = None
    closes = False  # the rest of the request is not read, so the connection cannot be used again
    retry_after_s: float | None = None
    should_retry: bool | None = None
    extra_headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code

    def body(self) -> bytes:
        """The OpenAI error object as JSON."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return _encode({"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Response headers that go with it."""
        headers = list(self.extra_headers)
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % math.ceil(self.retry_after_s)))
            headers.append((b"retry-after-ms", b"%d" % math.ceil(1000 * self.retry_after_s)))
        if self.should_retry is not None:
            headers.append((b"x-should-retry", b"true" if self.should_retry else b"false"))
        if self.closes:
            headers.append((b"connection", b"close"))
        return headers

    def event(self) -> bytes:
        """The same as the last event of a stream that already began."""
        return b"data: " + self.body() + b"\n\n"


class BadRequest(GatewayError):
    """The request cannot be served as it was sent."""

    status = 400
    kind = "invalid_request_error"


class BodyTooLarge(BadRequest):
    """The body is over the limit."""

    status = 413
    closes = True
    code = "request_too_large"


class UnknownModel(BadRequest):
    """No such model."""

    status = 404
    code = "model_not_found"


class UnknownRoute(BadRequest):
    """No such path."""

    status = 404
    code = "unknown_url"


class UnsupportedApi(BadRequest):
    """No replica of the model can serve this API."""

    status = 404
    code = "unsupported_api"

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model")


class MethodNotAllowed(BadRequest):
    """The path exists, the method does not."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.extra_headers = ((b"allow", allow.encode()),)


class Unauthorized(GatewayError):
    """No key, or one that is not known."""

    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"
    extra_headers = ((b"www-authenticate", b"Bearer"),)


class Forbidden(GatewayError):
    """The key may not do this."""

    status = 403
    kind = "permission_error"
    code = "forbidden"


class RateLimited(GatewayError):
    """Nothing may be sent to any upstream for a while.

    Args:
        message: why.
        retry_after_s: how long, None when that is not known.
    """

    status = 429
    kind = "rate_limit_error"
    code = "upstream_rate_limited"

    def __init__(self, message: str, *, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelNotAllowed(Forbidden):
    """The key may not use this model; status, type and code are OpenAI's for a project without access to a model."""

    kind = "invalid_request_error"
    code = "model_not_found"


class ReloadFailed(BadRequest):
    """The configuration was read again and cannot be used; the one in force goes on."""

    status = 422
    code = "config_refused"


class RequestTimeout(GatewayError):
    """The request body did not arrive in time."""

    status = 408
    closes = True
    kind = "timeout_error"
    code = "request_timeout"


class OverKeyLimit(GatewayError):
    """The caller's key has used up one of its own limits."""

    status = 429
    kind = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        if retry_after_s is None:
            self.should_retry = False  # it will not fit later either


class Overloaded(GatewayError):
    """No room for this request: in a model's queue, or for its body."""

    status = 503
    code = "overloaded"

    def __init__(self, message: str, retry_after_s: float, *, closes: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.closes = closes


class ShuttingDown(GatewayError):
    """The gateway is draining and this stream outlived the drain."""

    status = 503
    kind = "server_error"
    code = "gateway_shutting_down"


class Internal(GatewayError):
    """A bug of ours; details are in the log, never in the answer."""

    code = "internal_error"


class UpstreamFailed(GatewayError):
    """Every upstream attempt failed, or the answer was cut; carries the upstream's own words and status."""

    def __init__(  # the fields are those of the OpenAI error object
        self,
        message: str,
        *,
        status: int,
        kind: str = "upstream_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status
        self.kind = kind
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry
