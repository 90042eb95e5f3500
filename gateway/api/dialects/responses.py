"""How a stream of the Responses API ends when it cannot be completed: with `response.failed`.

The event goes on with the numbers of the stream and carries the response as it was begun, so the first event and the
latest are kept; where nothing had come, the response is the gateway's own. Units: Unix seconds in `created_at`.
"""

from typing import Final

import msgspec

from gateway.errors import GatewayError

_WORDS: Final = {429: "rate_limit_exceeded"}  # the API's own words; all else that goes wrong here is a server's error


class _Numbered(msgspec.Struct, gc=False):
    sequence_number: int | None = None
    response: dict[str, object] | None = None


_decode = msgspec.json.Decoder(_Numbered).decode
_encode = msgspec.json.Encoder().encode


class ResponsesTerminator:
    """The `gateway.api.dialects.base.StreamTerminator` of one stream.

    Args:
        request_id: names the response where the upstream has not.
    """

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._first = self._latest = b""

    def note(self, raw: bytes) -> None:
        """See `Ending.note`."""
        self._latest = raw
        if not self._first:
            self._first = raw

    def error(self, error: GatewayError) -> bytes:
        """See `Ending.error`."""
        begun = _read(self._first.split(b"\n\n", 1)[0]).response
        last = _read(self._latest.rstrip(b"\n").rsplit(b"\n\n", 1)[-1]).sequence_number
        answer = {
            "id": f"resp_{self._request_id}",
            "object": "response",
            "output": [],
            **(begun or {}),
            "status": "failed",
            "error": {
                "code": error.code or _WORDS.get(error.status, "server_error"),
                "message": error.message,
                "type": error.kind,
                "param": error.param,
            },
        }
        event = {"type": "response.failed", "sequence_number": 0 if last is None else last + 1, "response": answer}
        return b"event: response.failed\ndata: %s\n\n" % _encode(event)


def _read(event: bytes) -> _Numbered:
    """What an event says of its number and of the response; nothing where it cannot be read."""
    try:
        return _decode(event.partition(b"data:")[2])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Numbered()
