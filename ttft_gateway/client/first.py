"""Finds the first event of a response in the bytes of its body, and classifies failures. No I/O.

The readers of events are the gateway's (`providers`), so the library and the gateway have the same first content.
Whatever they cannot read counts as content: a client library must not withhold an answer because its form is unknown.
Bytes, seconds.
"""

import enum
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final

from ttft_gateway.apis.base import FIRST_CONTENT, Api, EventReader, FrameKind, Headers
from ttft_gateway.apis.errors import BadStatus, ProtocolError
from ttft_gateway.apis.retry_after import retry_after_s
from ttft_gateway.apis.sse import UNCODED, Splitter
from ttft_gateway.client.asked import Asked, Event, name_of, places
from ttft_gateway.client.config import First
from ttft_gateway.client.hedger import Failure, log_failure
from ttft_gateway.hedging.outcomes import Outcome

HELD_MAX: Final = 256 * 1024  # bytes before the first event; more are passed on
_EVENT_MAX: Final = 1024 * 1024
_ERRORS: Final = frozenset({408, 425, 429})  # with 5xx, statuses that another replica may not answer with
_LIMITED: Final = 429
_NOT_CONNECTED: Final = frozenset({"ConnectError", "ConnectTimeout", "ClientConnectorError", "ConnectionTimeoutError"})
_TIMED_OUT: Final = frozenset({"TimeoutException", "TimeoutError"})  # of httpx and of aiohttp


class Verdict(enum.Enum):
    """Result of reading a piece of a body."""

    WAIT = "wait"
    FIRST = "first"
    ERROR = "error"


Detector = Callable[[bytes], Verdict]
"""Reads the next piece of a body, up to its first event."""

_HEADERS: Final = Event.HEADERS
_WAIT, _FIRST, _ERROR = Verdict.WAIT, Verdict.FIRST, Verdict.ERROR
_FAILED: Final = FrameKind.ERROR
_BLANK: Final = b"\n\n"  # ends an event
_RETURN: Final = ord("\r")  # a number is found in bytes with a third of the instructions for bytes
_NAMES: Final = (b"content-type", b"content-encoding")


class _Pieces:
    """Calls a function for each piece, or for each event of a stream of events."""

    def __init__(self, is_first: Callable[[bytes], bool], *, events: bool) -> None:
        self._is_first = is_first
        self._splitter = Splitter(_EVENT_MAX) if events else None

    def feed(self, data: bytes) -> Verdict:
        try:
            pieces: Iterable[bytes] = (data,) if self._splitter is None else self._splitter.feed(data)
        except ProtocolError:
            return _FIRST
        try:
            return _FIRST if any(map(self._is_first, pieces)) else _WAIT
        except Exception:  # a bug in the function costs no answer
            log_failure()
            return _FIRST


class _Events:
    """Finds the first content in a stream of events of an LLM API."""

    __slots__ = ("_choices", "_has_output", "_make", "_reader", "_splitter")

    def __init__(self, api: Api, choices: int) -> None:
        self._choices = choices
        self._has_output, self._make = _readers_of(api)
        self._reader: EventReader | None = None  # until an event is unusual
        self._splitter: Splitter | None = None  # until a piece is not one event

    def feed(self, data: bytes) -> Verdict:
        splitter = self._splitter
        try:
            if splitter is None and 0 < data.find(_BLANK) == len(data) - 2 and _RETURN not in data:
                events: Sequence[bytes] = (data,)
            else:
                self._splitter = splitter = splitter or Splitter(_EVENT_MAX)
                events = splitter.feed(data)
            for event in events:
                found = None if self._has_output is None else self._has_output(event)
                if found is None:
                    self._reader = self._reader or self._make(self._choices)
                    kind = self._reader.read(event).kind
                    if kind is _FAILED:
                        return _ERROR
                    found = kind in FIRST_CONTENT
                if found:
                    return _FIRST
        except Exception:  # an event that is too long, or a bug
            return _FIRST
        return _WAIT


class _Inflated:
    """Decompresses a body for another detector."""

    def __init__(self, feed: Detector) -> None:
        self._feed = feed
        self._inflate = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)  # gzip or zlib, by their headers

    def feed(self, data: bytes) -> Verdict:
        try:
            plain = self._inflate.decompress(data, HELD_MAX)
        except zlib.error:
            return _FIRST
        return self._feed(plain) if plain else _WAIT


def _any_byte(data: bytes) -> Verdict:
    """Take the first byte for the first event."""
    return _FIRST if data else _WAIT


def detector(asked: Asked, first: First, headers: Headers) -> Detector | None:
    """Return the detector for a response; None if its headers are the first event.

    Args:
        headers: its headers, names in any case.
    """
    if asked.first is not None:
        first = asked.first
    is_usual = first == "content"
    if asked.event is _HEADERS if is_usual else first == "headers":
        return None
    if first == "body":
        return _any_byte
    media_at, coding_at = places(tuple(map(name_of, headers)), _NAMES)
    media = b"" if media_at is None else headers[media_at][1].lower()
    coding = b"" if coding_at is None else headers[coding_at][1].strip().lower()
    if not is_usual and callable(first):
        found: Detector = _Pieces(first, events=b"event-stream" in media).feed
    elif asked.api is None or media.find(b"json") >= 0:
        return _any_byte
    else:
        found = _Events(asked.api, asked.choices).feed
    if coding in UNCODED:
        return found
    return _Inflated(found).feed if coding in (b"gzip", b"deflate") else _any_byte


def is_error(asked: Asked, status: int) -> bool:
    """Return True for a status that does not win a race; a 404 of any other API is an answer like another."""
    if asked.api is not None:
        return status >= 400
    return status >= 500 or status in _ERRORS


def failure_of(status: int, headers: Headers) -> Failure:
    """Classify an error status without its body."""
    from ttft_gateway.hedging.failures import classify

    wait_s = retry_after_s([(name.lower(), value) for name, value in headers])
    if status == _LIMITED:
        return Failure(Outcome.RATE_LIMITED, wait_s)
    failure = classify(BadStatus("", status=status))
    return Failure(Outcome.MISCONFIGURED if failure.ours else failure.outcome, wait_s)


def failure_by(error: BaseException) -> Failure:
    """Classify an exception of a client library by its name."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "PoolTimeout" in names or not isinstance(error, Exception):
        return Failure(Outcome.CLIENT_GONE, error="connect")  # nothing was sent, or the caller has gone
    if names & _NOT_CONNECTED:
        from ttft_gateway.apis.shortages import causes, shortage

        if any(shortage(below) for below in causes(error)):
            return Failure(Outcome.OUT_OF_RESOURCES, error="connect")  # of this machine
        return Failure(Outcome.FAILED, error="connect")
    return Failure(Outcome.TTFT_TIMEOUT if names & _TIMED_OUT else Outcome.FAILED, error="cut")


@cache
def _readers_of(api: Api) -> tuple[Callable[[bytes], bool | None] | None, Callable[[int], EventReader]]:
    """Import and return the readers of an API's events: a process that uses one API loads one.

    Returns:
        A function that shows whether an ordinary event is the first content, None for no such function; and the reader
        of all events, by the number of choices. The reader does not learn to recognise events by their bytes, because
        it reads no event after the first content.
    """
    if api is Api.MESSAGES:
        from ttft_gateway.apis.anthropic.events import MessageReader

        return None, lambda _: MessageReader()
    if api is Api.RESPONSES:
        from ttft_gateway.apis.responses.events import ResponsesReader

        return None, lambda _: ResponsesReader()
    from ttft_gateway.apis.openai.events import ChunkReader, has_output

    return has_output, ChunkReader
