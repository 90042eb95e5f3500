"""Errors that a client can receive, each with its HTTP status and its OpenAI type, code and param.

    GatewayError
    +-- BadRequest            400  the request cannot be served
    |   +-- BodyTooLarge      413
    |   +-- UnknownModel      404
    |   +-- UnknownRoute      404
    |   +-- UnsupportedApi    404  the model exists, but does not support the request's API
    |   +-- MethodNotAllowed  405
    |   +-- UnsupportedUpgrade 426  the request is a WebSocket handshake
    |   +-- ReloadFailed      422  on the admin address: the new configuration cannot be used
    |   +-- UnknownReplica    404  on the admin address
    |   +-- LastReplica       409  on the admin address: the model would have no replica left
    +-- Unauthorized          401  no API key, or an unknown one
    +-- Forbidden             403  a web page of another origin sent a request
    |   +-- ModelNotAllowed   403  the key may not use this model
    +-- UnknownHost           421  an address without a key got a request for another name
    +-- RateLimited           429  every upstream is rate-limited by its provider
    +-- RequestTimeout        408  the request body did not arrive in time
    +-- OverKeyLimit          429  the key is at one of its limits
    +-- UpstreamFailed        the upstream's own status (4xx, 5xx), 502 or 504
    +-- Overloaded            503  a model or the gateway is at its limit
    +-- LimitsAway            503  the key's limits are unknown
    +-- ShuttingDown          503  the gateway drains
    +-- Internal              500

Never answers with `{"detail": ...}`: SDKs would lose code, type and param. Units: seconds.
"""

import math
from typing import Literal

import msgspec

_encode = msgspec.json.Encoder().encode

Limit = Literal["key", "provider", "model", "gateway"]
"""The owner of the limit that a request has met: the caller's key, the providers, the model (its concurrency), or the
gateway itself; the value of the header `x-ttft-limit`."""


class GatewayError(Exception):
    """An error with its HTTP response.

    Args:
        message: `<what> is <state>; <action>`.
        param: request field that caused the error; None if no field did.
        code: code in place of the class's code; None for the class's code.
        retry_after_s: time until a retry; None if unknown.

    Attributes:
        details: Anthropic's details of the error as JSON, which its SDKs read; None for none.
    """

    details: str | None = None
    status = 500
    kind = "server_error"
    code: str | None = None
    closes = False  # the remaining request is not read, so the connection cannot be reused
    should_retry: bool | None = None
    limit: Limit | None = None  # None for an error that is not about a limit
    extra_headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code

    def body(self) -> bytes:
        """Return the OpenAI error object as JSON."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return _encode({"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the response headers of the error."""
        headers = list(self.extra_headers)
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % math.ceil(self.retry_after_s)))
            headers.append((b"retry-after-ms", b"%d" % math.ceil(1000 * self.retry_after_s)))
        if self.limit is not None:
            headers.append((b"x-ttft-limit", self.limit.encode()))
        if self.should_retry is not None:
            headers.append((b"x-should-retry", b"true" if self.should_retry else b"false"))
        if self.closes:
            headers.append((b"connection", b"close"))
        return headers

    def event(self) -> bytes:
        """Return the error as the last event of a stream that has already begun."""
        return b"data: " + self.body() + b"\n\n"


class BadRequest(GatewayError):
    """The request cannot be served as it was sent."""

    status = 400
    kind = "invalid_request_error"


class BodyTooLarge(BadRequest):
    """The request body exceeds the limit."""

    status = 413
    closes = True
    code = "request_too_large"


class UnknownModel(BadRequest):
    """The model does not exist."""

    status = 404
    code = "model_not_found"


class UnknownRoute(BadRequest):
    """The path does not exist."""

    status = 404
    code = "unknown_url"


class UnsupportedApi(BadRequest):
    """No replica of the model supports this API."""

    status = 404
    code = "unsupported_api"

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model")


class MethodNotAllowed(BadRequest):
    """The path does not support the method."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.extra_headers = ((b"allow", allow.encode()),)


class UnsupportedUpgrade(BadRequest):
    """The path does not support WebSocket.

    Of the responses tried with Codex 0.169, only a 426 makes it use HTTP immediately. After 401, 403, 404, 405, 501,
    503 or a closed connection Codex repeats the handshake for 6 s; after a 400 it fails.
    """

    status = 426
    code = "unsupported_upgrade"
    # RFC 9110 requires `Upgrade` in a 426 (15.5.22) and `Connection: upgrade` with it (7.8). `close`: a proxy may treat
    # the response to a handshake as a tunnel, which ends with the connection only.
    extra_headers = ((b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade, close"))


class Unauthorized(GatewayError):
    """The API key is missing or unknown."""

    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"
    extra_headers = ((b"www-authenticate", b"Bearer"),)


class Forbidden(GatewayError):
    """A web page of another origin may not do this, or with a subclass the key."""

    status = 403
    kind = "permission_error"
    code = "forbidden"


class UnknownHost(GatewayError):
    """The request's `Host` is no name of the gateway."""

    status = 421
    kind = "invalid_request_error"
    code = "unknown_host"


class RateLimited(GatewayError):
    """Every upstream is rate-limited by its provider, or at an enforced limit of it."""

    status = 429
    kind = "rate_limit_error"
    code = "upstream_rate_limited"
    limit = "provider"


class ModelNotAllowed(Forbidden):
    """The key may not use this model; status, type and code are OpenAI's for a project without access to a model."""

    kind = "invalid_request_error"
    code = "model_not_found"


class ReloadFailed(BadRequest):
    """The new configuration cannot be used; the current one stays in force."""

    status = 422
    code = "config_refused"


class UnknownReplica(BadRequest):
    """On the admin address: no replica has this name."""

    status = 404
    code = "replica_not_found"


class LastReplica(BadRequest):
    """On the admin address: the replica cannot be taken out, because its model has no other one."""

    status = 409
    code = "last_replica"


class RequestTimeout(GatewayError):
    """The request body did not arrive in time."""

    status = 408
    closes = True
    kind = "timeout_error"
    code = "request_timeout"


class OverKeyLimit(GatewayError):
    """The caller's key is at one of its limits."""

    status = 429
    kind = "rate_limit_error"
    code = "rate_limit_exceeded"
    limit = "key"

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        if retry_after_s is None:
            self.should_retry = False  # a retry will not fit either


class NoReplicas(GatewayError):
    """The source of the model's replicas has not found any yet."""

    status = 503
    code = "no_replicas"


class Overloaded(GatewayError):
    """The model's queue or the memory for request bodies is full, or the gateway is out of files, ports or memory."""

    status = 503
    code = "overloaded"

    def __init__(self, message: str, retry_after_s: float, *, limit: Limit = "gateway", closes: bool = False) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.limit = limit
        self.closes = closes


class LimitsAway(GatewayError):
    """The key's limits are shared, and the engine that counts them is away."""

    status = 503
    code = "limits_unavailable"


class ShuttingDown(GatewayError):
    """The gateway is draining, and this stream lasted longer than the drain."""

    status = 503
    kind = "server_error"
    code = "gateway_shutting_down"


class LoopDetected(GatewayError):
    """The request has gone through more gateways than lead anywhere: they lead to each other."""

    status = 508
    code = "loop_detected"
    should_retry = False


class Internal(GatewayError):
    """A bug in the gateway; details are in the log, never in the response."""

    code = "internal_error"


class UpstreamFailed(GatewayError):
    """Every upstream attempt failed, or the answer was cut; has the upstream's own message and status."""

    def __init__(  # the fields of the OpenAI error object
        self,
        message: str,
        *,
        status: int,
        kind: str = "upstream_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
        details: str | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code, retry_after_s=retry_after_s)
        self.details = details
        self.status = status
        self.kind = kind
        self.should_retry = should_retry
