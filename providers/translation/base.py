"""A client API served by an upstream that speaks another one: two pure halves put together as one `WireProtocol`.

A `Translation` says the client's request in the upstream's words and gives a `Translator`, which turns the upstream's
events into the client's, one by one. What an event *is* (content, error, usage, end) is never asked twice: the reader
of the upstream's own protocol says it, and its frames only get other bytes. Translations therefore compose: what this
file makes of one protocol can be translated again.

The rule: complete or refused. A request field is said in other words, or `Unsupported` names it, or it is dropped where
the configuration allows that, and then told. Nothing is changed in silence.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from providers.base import Api, Assembler, Call, EventReader, Frame, FrameKind, Headers, WireProtocol
from providers.errors import Unsupported, UpstreamError
from providers.openai.request import written
from providers.sse import events_of
from providers.tolerant_json import dumps

OnDropped = Callable[[Sequence[str]], None]
"""Hears which fields of a request were left out because the upstream has no words for them."""


class TranslatedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request in the words of another API.

    Attributes:
        fields: the body, all but `model`, `stream` and `stream_options`, which are the upstream protocol's business.
        unsupported: fields that the other API has no words for, each with why.
    """

    fields: Mapping[str, object]
    unsupported: Mapping[str, str] = {}


class Translator(Protocol):
    """Turns one answer's events into the client's; stateful, sans-I/O."""

    def read(self, event: bytes) -> bytes:
        """The client's events for one event of the upstream's (blank line included), empty for none.

        An event that ends the answer ends it here, too; no event after that gives anything.
        """

    def close(self) -> bytes:
        """What the client's protocol still wants where the upstream's answer ended without a closing event.

        Called once, behind the last event of a complete answer; empty if the answer has been ended by `read`.
        """


class Translation(Protocol):
    """One client API in the words of another.

    Attributes:
        asked: what the client speaks.
        spoken: what it is translated to.
    """

    client_api: Api
    upstream_api: Api

    def request(self, call: Call) -> TranslatedRequest:
        """The same request in the other API's words.

        Raises:
            Unsupported: a field has a value that cannot be understood, so nothing can be said of it in other words.
        """

    def translator(self, call: Call) -> Translator:
        """A fresh translator for the answer to this call."""

    def assembler(self, call: Call) -> Assembler:
        """Makes a JSON body, in the client's API, of the client's events."""


class TranslatedProtocol:
    """The `providers.base.WireProtocol` for clients of one API on upstreams of another.

    Args:
        translation: between the two.
        inner: how the upstream serves the API that is translated to.
        dropped: hears what was left out; None: what would have to be left out is refused.
    """

    def __init__(self, translation: Translation, inner: WireProtocol, on_dropped: OnDropped | None = None) -> None:
        self._translation = translation
        self._inner = inner
        self._on_dropped = on_dropped

    def path(self, _api: Api) -> str:
        """See `WireProtocol.path`."""
        return self._inner.path(self._translation.upstream_api)

    def build(self, call: Call, model: str, *, stream: bool) -> bytes:
        """See `WireProtocol.build`."""
        request = self._translation.request(call)
        if request.unsupported:
            if self._on_dropped is None:
                param, why = next(iter(request.unsupported.items()))
                raise Unsupported(why, param=param)
            self._on_dropped(tuple(request.unsupported))
        return self._inner.build(
            _translated_call(call, self._translation.upstream_api, request.fields), model, stream=stream
        )

    def reader(self, call: Call) -> EventReader:
        """See `WireProtocol.reader`."""
        upstream_call = msgspec.structs.replace(call, api=self._translation.upstream_api, include_usage=True)
        return _TranslatingReader(self._inner.reader(upstream_call), self._translation.translator(call))

    def whole(self, call: Call, body: bytes) -> Frame:
        """See `WireProtocol.whole`: the body is taken apart into events, and they are put together for the client."""
        reader, assembler = self.reader(call), self._translation.assembler(call)
        usage = None
        for frame in reader.read_body(body):
            if frame.kind is FrameKind.ERROR:
                return frame
            usage = frame.usage or usage
            assembler.add(frame.raw)
        return Frame(FrameKind.CONTENT, assembler.body(), usage)

    def error(self, status: int, headers: Headers, body: bytes) -> UpstreamError:
        """See `WireProtocol.error`."""
        return self._inner.error(status, headers, body)


class _TranslatingReader:
    """Frames of the upstream's own reader with the client's bytes."""

    __slots__ = ("_inner", "_translator")

    def __init__(self, inner: EventReader, translator: Translator) -> None:
        self._inner = inner
        self._translator = translator

    @property
    def complete(self) -> bool:
        return self._inner.complete

    @property
    def closed(self) -> bool:
        return self._inner.closed

    def read(self, event: bytes) -> Frame:
        return self._translated(self._inner.read(event))

    def content_run(self, data: bytes) -> tuple[int, int]:
        """Every event is looked at; see `EventReader.content_run`."""
        return 0, 0

    def close(self) -> Frame | None:
        last = self._inner.close()
        before = b"" if last is None else self._raw(last)
        raw = before + self._translator.close()
        return Frame(FrameKind.DONE, raw, None if last is None else last.usage) if raw else None

    def read_body(self, body: bytes) -> Sequence[Frame]:
        frames = [self._translated(frame) for frame in self._inner.read_body(body)]
        if any(frame.kind is FrameKind.ERROR for frame in frames):
            return frames
        last = self._translator.close()
        return [*frames, Frame(FrameKind.DONE, last)] if last else frames

    def _translated(self, frame: Frame) -> Frame:
        return msgspec.structs.replace(frame, raw=self._raw(frame))

    def _raw(self, frame: Frame) -> bytes:
        if not frame.raw or frame.kind is FrameKind.COMMENT or frame.kind is FrameKind.ERROR:
            return b""  # an error is worded by whoever answers the client
        read = self._translator.read
        return b"".join(read(event) for event in events_of(frame.raw))


def _translated_call(call: Call, api: Api, fields: Mapping[str, object]) -> Call:
    """A call of another API with these fields for its body."""
    body, spans = written({key: dumps(value) for key, value in fields.items()})
    return msgspec.structs.replace(
        call, api=api, body=body, spans=spans, insert_at=1, streaming=False, include_usage=False
    )


def unsupported_fields(fields: Iterable[str], given: Mapping[str, object], why: Callable[[str], str]) -> dict[str, str]:
    """Which of these fields a request has with a value that means something (null and false ask for nothing)."""
    return {name: why(name) for name in fields if given.get(name) not in (None, False)}
