"""Ends a failed stream of the Responses API with `response.failed`.

The event continues the stream's sequence numbers and contains the response as it was created, so the first and the
latest numbered event are kept, not comments; if there were none, the response is the gateway's own. Units: Unix seconds
in `created_at`.
"""

import contextlib
from collections.abc import Iterator
from typing import Final

import msgspec

from gateway.errors import GatewayError

_NUMBER: Final = b'"sequence_number"'  # JSON escapes quotes, so that no text of an answer has it
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
        at = raw.rfind(_NUMBER)
        if at < 0:
            return
        self._latest = _event_at(raw, at)
        if not self._first:
            self._first = _event_at(raw, raw.find(_NUMBER))

    def error(self, error: GatewayError) -> bytes:
        """See `StreamTerminator.error`."""
        created = next((event.response for event in _read(self._first)), None)
        last = max((event.sequence_number or 0 for event in _read(self._latest)), default=-1)
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
        event = {"type": "response.failed", "sequence_number": last + 1, "response": answer}
        return b"event: response.failed\ndata: %s\n\n" % _encode(event)


def _event_at(raw: bytes, at: int) -> bytes:
    """Return the event at a position; with CRLF line ends perhaps with others."""
    end = raw.find(b"\n\n", at)
    return raw[raw.rfind(b"\n\n", 0, at) + 1 : end if end >= 0 else None]


def _read(events: bytes) -> Iterator[_Numbered]:
    """Read the numbered events among these, without those that cannot be read."""
    for event in events.replace(b"\r", b"").split(b"\n\n"):
        if _NUMBER in event:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                yield _decode(event.partition(b"data:")[2])
