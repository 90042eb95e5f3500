"""How one client API looks on its way out: its errors, its signs of life, its answer in one piece.

Everything that differs between the APIs a client may speak, so that whoever serves them need not ask which it is. What
they have in common, headers and the order of things, is `response.py`'s; how their requests are read, `inbound.py`'s.
No units.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import GatewayError
from providers.base import Assembler, Call

COMMENT = b": waiting for the first token\n\n"
_LAST_EVENT = re.compile(  # of a complete stream; JSON has no line end in it, so no text of an answer looks like this
    rb"^(?:data: ?\[DONE\]|event: ?(?:message_stop|response\.(?:completed|incomplete)))[ \t]*$", re.MULTILINE
)


def is_last(event: bytes) -> bool:
    """Whether a complete stream ends with this event, in whichever API."""
    return _LAST_EVENT.search(event.replace(b"\r", b"")) is not None


class StreamTerminator(Protocol):
    """Ends one stream that cannot be completed."""

    @property
    def note(self) -> Callable[[bytes], None] | None:
        """Hears everything that goes to the client; None where an error's form does not depend on it."""

    def error(self, error: GatewayError) -> bytes:
        """The last events of the stream."""


class ErrorEventTerminator:
    """The ending of chat completions and completions: `data: {"error": ...}`, and no `[DONE]`."""

    note = None

    def __init__(self, _request_id: str) -> None:
        """An error's form does not depend on the stream."""

    def error(self, error: GatewayError) -> bytes:
        """See `StreamTerminator.error`."""
        return error.event()


def plain_body(error: GatewayError) -> bytes:
    """OpenAI's error body."""
    return error.body()


@dataclass(frozen=True, slots=True)
class ClientApi:
    """One client API.

    Attributes:
        assembler: makes a JSON body of the events of a stream; None where answers never come as a stream.
        ending: makes a fresh ending for one stream, given our id of the request.
        error_body: the JSON body of an error response.
        keep_alive: what a waiting client gets as a sign of life.
    """

    assembler: Callable[[Call], Assembler] | None
    ending: Callable[[str], StreamTerminator] = ErrorEventTerminator
    error_body: Callable[[GatewayError], bytes] = plain_body
    keep_alive: bytes = COMMENT
