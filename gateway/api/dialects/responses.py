"""Ends a failed stream of the Responses API with `response.failed`.

The event continues the stream's sequence numbers and contains the response as it was created, so the first and the
latest event are kept; if there were no events, the response is the gateway's own. Units: Unix seconds in `created_at`.
"""

from typing import Final

import msgspec

from gateway.errors import GatewayError
from gateway.race.phases import last_event

_CODES: Final = {429: "rate_limit_exceeded"}  # the API's own codes; every other error here is a "server_error"


class _Numbered(msgspec.Struct, gc=False):
    sequence_number: int | None = None
    response: dict[str, object] | None = None


_decode = msgspec.json.Decoder(_Numbered).decode
_encode = msgspec.json.Encoder().encode


class ResponsesTerminator:
    """The `gateway.api.dialects.base.StreamTerminator` of one stream.

    Args:
        request_id: the gateway's id of the request, for the response's id if the upstream sent none.
    """

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._first = self._latest = b""

    def note(self, raw: bytes) -> None:
        """See `StreamTerminator.note`."""
        self._latest = last_event(raw)
        if not self._first:
            self._first = raw.partition(b"\n\n")[0]

    def error(self, error: GatewayError) -> bytes:
        """See `StreamTerminator.error`."""
        created = _read(self._first.replace(b"\r", b"").split(b"\n\n", 1)[0]).response
        last = _read(self._latest.replace(b"\r", b"").rstrip(b"\n").rsplit(b"\n\n", 1)[-1]).sequence_number
        answer = {
            "id": f"resp_{self._request_id}",
            "object": "response",
            "output": [],
            **(created or {}),
            "status": "failed",
            "error": {
                "code": error.code or _CODES.get(error.status, "server_error"),
                "message": error.message,
                "type": error.kind,
                "param": error.param,
            },
        }
        event = {"type": "response.failed", "sequence_number": 0 if last is None else last + 1, "response": answer}
        return b"event: response.failed\ndata: %s\n\n" % _encode(event)


def _read(event: bytes) -> _Numbered:
    """Read an event's number and its response; neither if the event cannot be read."""
    try:
        return _decode(event.partition(b"data:")[2])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Numbered()
