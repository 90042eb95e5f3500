"""Ends the failed streams of the APIs with events of their own: Anthropic's Messages, OpenAI's Responses.

Also the other forms of the Messages API, its error body and its keep-alive. Its SDKs distinguish errors by status and
by `error.type`; `param` and `code` are added for people. If the status does not determine the type, an upstream's own
type is kept if it is one of the API's. Units: Unix seconds in `created_at`.
"""

import contextlib
from collections.abc import Iterator
from typing import Final

import msgspec

from gateway.errors import GatewayError
from ttft_gateway.apis.sse import data_of, events_of

PING: Final = b'event: ping\ndata: {"type": "ping"}\n\n'
_MESSAGES_TYPES: Final = {
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
_MESSAGES_TYPE_NAMES: Final = frozenset({*_MESSAGES_TYPES.values(), "api_error"})
_NUMBER: Final = b'"sequence_number"'  # JSON escapes quotes, so that no text of an answer has it
_RESPONSES_CODES: Final = {429: "rate_limit_exceeded"}  # the API's own codes; every other error is a "server_error"


class _Numbered(msgspec.Struct, gc=False):
    sequence_number: int | None = None
    response: dict[str, object] | None = None


_decode = msgspec.json.Decoder(_Numbered).decode
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
        """See `gateway.api.dialects.base.StreamTerminator.error`."""
        return b"event: error\ndata: " + _encode({**_messages_error(error), "request_id": self._request_id}) + b"\n\n"


def messages_error_body(error: GatewayError) -> bytes:
    """Return Anthropic's error body."""
    return _encode(_messages_error(error))


def _messages_error(error: GatewayError) -> dict[str, object]:
    kind = _MESSAGES_TYPES.get(error.status) or (error.kind if error.kind in _MESSAGES_TYPE_NAMES else "api_error")
    details = None if error.details is None else msgspec.Raw(error.details.encode())
    fields = {"type": kind, "message": error.message, "param": error.param, "code": error.code, "details": details}
    return {"type": "error", "error": {key: value for key, value in fields.items() if value is not None}}


class ResponsesTerminator:
    """Ends a stream of the Responses API with `error` and `response.failed`, as OpenAI does.

    OpenAI's SDKs raise an exception for `error`, but not for `response.failed`, which LangChain.js then ignores. The
    events continue the stream's sequence numbers and the second one contains the response as it was created, so the
    first and the latest numbered event are kept, not comments; if there were none, the response is the gateway's own.

    Args:
        request_id: the gateway's id of the request, for the response's id if the upstream sent none.
    """

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._first = self._latest = b""

    def note(self, raw: bytes) -> None:
        """See `gateway.api.dialects.base.StreamTerminator.note`."""
        at = raw.rfind(_NUMBER)
        if at < 0:
            return
        self._latest = _event_at(raw, at)
        if not self._first:
            self._first = _event_at(raw, raw.find(_NUMBER))

    def error(self, error: GatewayError) -> bytes:
        """See `gateway.api.dialects.base.StreamTerminator.error`."""
        created = next((event.response for event in _read(self._first)), None)
        last = max((event.sequence_number or 0 for event in _read(self._latest)), default=-1)
        problem = {
            "code": error.code or _RESPONSES_CODES.get(error.status, "server_error"),
            "message": error.message,
            "type": error.kind,
            "param": error.param,
        }
        answer = {
            "id": f"resp_{self._request_id}",
            "object": "response",
            "output": [],
            **(created or {}),
            "status": "failed",
            "error": problem,
        }
        raised = {"type": "error", "sequence_number": last + 1, "error": problem}
        failed = {"type": "response.failed", "sequence_number": last + 2, "response": answer}
        return b"event: error\ndata: %s\n\nevent: response.failed\ndata: %s\n\n" % (_encode(raised), _encode(failed))


def _event_at(raw: bytes, at: int) -> bytes:
    """Return the event at a position; with other line ends than LF perhaps with others."""
    end = raw.find(b"\n\n", at)
    return raw[raw.rfind(b"\n\n", 0, at) + 1 : end if end >= 0 else None]


def _read(events: bytes) -> Iterator[_Numbered]:
    """Read the numbered events among these, without those that cannot be read."""
    for event in events_of(events):
        if _NUMBER in event:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                yield _decode(data_of(event) or b"")
