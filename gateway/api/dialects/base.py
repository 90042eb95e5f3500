"""Describes the responses of a client API: its errors, its keep-alives, its non-streaming body.

A `ClientApi` holds everything in which the responses of the APIs differ, so that code that serves them needs no
branches by API. `response.py` has what they share, `ttft_gateway.requests` reads their requests. No units.
"""

import re
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from gateway.errors import GatewayError
from ttft_gateway.apis.base import Assembler, Call

COMMENT = b": keep-alive\n\n"
_LAST_EVENT = re.compile(  # JSON escapes line ends, so that no text of an answer matches
    rb"^(?:data: ?\[DONE\]|event: ?(?:message_stop|response\.(?:completed|incomplete)))[ \t]*$", re.MULTILINE
)


def is_last(event: bytes) -> bool:
    """Return True if a complete stream of any API ends with this event."""
    return _LAST_EVENT.search(event.replace(b"\r", b"")) is not None


class StreamTerminator(Protocol):
    """Ends one stream that failed after it had started."""

    @property
    def note(self) -> Callable[[bytes], None] | None:
        """Receives everything sent to the client; None if the error event does not depend on it."""

    def error(self, error: GatewayError) -> bytes:
        """Return the last events of the stream."""


class ErrorEventTerminator:
    """Ends chat completions and completions with `data: {"error": ...}`, without `[DONE]`."""

    note = None

    def error(self, error: GatewayError) -> bytes:
        """See `StreamTerminator.error`."""
        return error.event()


ERROR_EVENT: Final = ErrorEventTerminator()


def plain_body(error: GatewayError) -> bytes:
    """Return OpenAI's error body."""
    return error.body()


class ClientApi(msgspec.Struct, frozen=True):
    """One client API.

    Attributes:
        assembler: assembles the events of a stream into a JSON body; None if the API does not stream.
        terminator: makes the terminator of one stream from the gateway's id of the request; None for `ERROR_EVENT`.
        error_body: returns the JSON body of an error response.
        keep_alive: bytes that keep a waiting client's connection alive.
    """

    assembler: Callable[[Call], Assembler] | None
    terminator: Callable[[str], StreamTerminator] | None = None
    error_body: Callable[[GatewayError], bytes] = plain_body
    keep_alive: bytes = COMMENT
