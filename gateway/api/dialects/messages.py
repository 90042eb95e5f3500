"""Responses of Anthropic's Messages API that differ from OpenAI's: errors and keep-alives.

Its SDKs distinguish errors by status and by `error.type`; `param` and `code` are added for people. If the status does
not determine the type, an upstream's own type is kept if it is one of the API's. No units.
"""

import msgspec

from gateway.errors import GatewayError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_TYPE_NAMES = frozenset({*_TYPES.values(), "api_error"})

PING = b'event: ping\ndata: {"type": "ping"}\n\n'

_encode = msgspec.json.Encoder().encode


class MessagesTerminator:
    """Ends a Messages stream with `event: error`, without `message_stop`.

    Args:
        request_id: the gateway's id of the request.
    """

    note = None

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def error(self, error: GatewayError) -> bytes:
        """See `StreamTerminator.error`."""
        return b"event: error\ndata: " + _encode({**_body(error), "request_id": self._request_id}) + b"\n\n"


def error_body(error: GatewayError) -> bytes:
    """Return Anthropic's error body."""
    return _encode(_body(error))


def _body(error: GatewayError) -> dict[str, object]:
    kind = _TYPES.get(error.status) or (error.kind if error.kind in _TYPE_NAMES else "api_error")
    fields = {"type": kind, "message": error.message, "param": error.param, "code": error.code}
    return {"type": "error", "error": {key: value for key, value in fields.items() if value is not None}}
